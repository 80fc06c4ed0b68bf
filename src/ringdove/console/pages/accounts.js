// Accounts: who may use which queues, with which keys, and who may use this console.
import { html, signal, useEffect, useState } from "../dom.js";
import { api, attempt, isAdmin } from "../calls.js";
import { bytes, readBytes, time } from "../figures.js";
import { Badge, Card, Confirm, Dialog, Empty, Field, Page, Table } from "../parts.js";

const accounts = signal(null);
const administer = async (command, given = {}) => (await api("POST", `accounts/${command}`, given)).result;
const load = async () => (accounts.value = (await attempt(() => administer("list"))) || []);

export function Accounts() {
  const [asking, setAsking] = useState(null);
  const [secret, setSecret] = useState(null);
  useEffect(() => { if (isAdmin()) load(); }, []);
  if (!isAdmin()) return html`<${Page} title="Accounts"><${Empty} title="Only an admin administers accounts"><p>Sign in with the server's token, or ask for the role admin: <code>ringdove account role NAME admin</code>.</p><//><//>`;
  const close = () => setAsking(null);
  const done = (made) => { close(); if (made?.secret) setSecret(made); load(); };
  const act = (command, given, told) => attempt(() => administer(command, given), told).then((made) => (made === undefined ? load() : done(made)));
  return html`
    <${Page} title="Accounts" lead="Each account owns queues and has keys; its password signs in here." actions=${html`<button onClick=${() => setAsking({ kind: "create" })}>New account</button>`}>
      ${accounts.value === null ? html`<div class="waiting" aria-busy="true">Loading</div>`
        : accounts.value.length ? accounts.value.map((account) => html`<${Account} key=${account.id} account=${account} ask=${setAsking} act=${act} />`)
        : html`<${Empty} title="There are no accounts"><p>Without an account and a token, everybody who reaches this server may do everything. The first account changes that: from then on every request needs a key, and this console a password. Give the first one a password and the role admin.</p><//>`}
      ${asking?.kind === "create" && html`<${Create} onClose=${close} onDone=${done} />`}
      ${asking?.kind === "password" && html`<${Password} account=${asking.account} onClose=${close} onDone=${done} />`}
      ${asking?.kind === "grant" && html`<${Grant} account=${asking.account} onClose=${close} onDone=${done} />`}
      ${asking?.kind === "quota" && html`<${Quota} account=${asking.account} onClose=${close} onDone=${done} />`}
      ${asking?.kind === "delete" && html`<${Confirm} title="Delete an account" name=${asking.account.name} verb="Delete" onClose=${close} onDone=${() => act("delete", { account: asking.account.id }, "The account is deleted.")}>Its keys work no more. Its queues stay.<//>`}
      ${asking?.kind === "revoke" && html`<${Confirm} title="Revoke a key" name=${asking.key.id} verb="Revoke" onClose=${close} onDone=${() => act("revoke_key", { key: asking.key.id }, "The key works no more.")}>Whoever uses it is refused from now on.<//>`}
      ${secret && html`<${Secret} made=${secret} onClose=${() => setSecret(null)} />`}
    <//>`;
}

const KEYS = [{ key: "k", label: "Key" }, { key: "r", label: "May" }, { key: "m", label: "Made" }, { key: "s", label: "State" }, { key: "a", label: "" }];

function Account({ account, ask, act }) {
  const actions = html`
    <button class="secondary" onClick=${() => act("add_key", { account: account.id })}>New key</button>
    <button class="secondary" onClick=${() => ask({ kind: "grant", account })}>Grant</button>
    <button class="secondary" onClick=${() => ask({ kind: "quota", account })}>Quota</button>
    <button class="secondary" onClick=${() => ask({ kind: "password", account })}>Password</button>
    <button class="secondary danger" onClick=${() => ask({ kind: "delete", account })}>Delete</button>`;
  const grants = Object.entries(account.grants);
  return html`
    <${Card} title=${account.name} actions=${actions}>
      <p class="pad muted">
        ${account.id} · made ${time(account.created_ms)} · ${account.requests_per_s ? `${account.requests_per_s} requests/s` : "any rate"} · ${account.bytes_max ? bytes(account.bytes_max) : "any size"} · console: ${account.password ? html`<select class="inline" aria-label=${`Role of ${account.name} in the console`} value=${account.console_role} onChange=${(event) => act("set_console_role", { account: account.id, role: event.target.value }, "The role is changed.")}>${["viewer", "operator", "admin"].map((role) => html`<option key=${role}>${role}</option>`)}</select>` : "no password"}
      </p>
      <${Table} label=${`Keys of ${account.name}`} columns=${KEYS}>
        ${account.keys.map((key) => html`
          <tr key=${key.id}>
            <th scope="row" class="mono">${key.id}</th><td>${key.roles.join(", ")}</td><td>${time(key.created_ms)}</td>
            <td><${Badge} tone=${key.active ? "good" : ""}>${key.active ? "works" : "revoked"}<//></td>
            <td class="number">${key.active && html`<button class="quiet" onClick=${() => ask({ kind: "revoke", key })}>Revoke</button>`}</td>
          </tr>`)}
      <//>
      ${grants.length > 0 && html`
        <${Table} label=${`Grants of ${account.name}`} columns=${[{ key: "q", label: "Granted on" }, { key: "r", label: "May" }, { key: "a", label: "" }]}>
          ${grants.map(([queue, roles]) => html`<tr key=${queue}><th scope="row" class="mono">${queue}</th><td>${roles.join(", ")}</td><td class="number"><button class="quiet" onClick=${() => act("ungrant", { account: account.id, queue }, "The grant is taken back.")}>Take back</button></td></tr>`)}
        <//>`}
    <//>`;
}

// A dialog with a form that carries out one command.
function Asked({ title, verb, command, read, onClose, onDone, children }) {
  const [wrong, setWrong] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      onDone(await administer(command, read(new FormData(event.target))));
    } catch (problem) {
      setWrong(problem.message);
    }
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <form onSubmit=${submit}>
        ${children}
        ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
        <footer class="actions end"><button type="button" class="secondary" onClick=${onClose}>Cancel</button><button>${verb}</button></footer>
      </form>
    <//>`;
}

function Create({ onClose, onDone }) {
  const [role, setRole] = useState("admin");
  const made = async (account) => {
    if (account.password && role !== account.console_role) await attempt(() => administer("set_console_role", { account: account.id, role }));
    onDone({ ...account.key, account: account.name });
  };
  return html`
    <${Asked} title="New account" verb="Make the account" command="create" onClose=${onClose} onDone=${made} read=${(given) => ({ name: given.get("name"), ...(given.get("password") && { password: given.get("password") }) })}>
      <${Field} label="Name" id="account-name"><input id="account-name" name="name" required autofocus autocomplete="off" /><//>
      <${Field} label="Password for the console" id="account-password" hint="8 characters or more; empty: none."><input id="account-password" name="password" type="password" autocomplete="new-password" aria-describedby="account-password-hint" /><//>
      <${Field} label="Role in the console" id="account-role" hint="A viewer looks, an operator does what the account may, an admin everything.">
        <select id="account-role" value=${role} onChange=${(event) => setRole(event.target.value)} aria-describedby="account-role-hint">${["viewer", "operator", "admin"].map((one) => html`<option key=${one}>${one}</option>`)}</select>
      <//>
    <//>`;
}

function Password({ account, onClose, onDone }) {
  return html`
    <${Asked} title=${`Password of ${account.name}`} verb="Set the password" command="set_password" onClose=${onClose} onDone=${onDone} read=${(given) => ({ account: account.id, password: given.get("password") || null })}>
      <${Field} label="Password" id="new-password" hint="8 characters or more; empty takes it away. Sessions of the account end."><input id="new-password" name="password" type="password" autocomplete="new-password" aria-describedby="new-password-hint" autofocus /><//>
    <//>`;
}

function Grant({ account, onClose, onDone }) {
  return html`
    <${Asked} title=${`Grant ${account.name} a queue of others`} verb="Grant" command="grant" onClose=${onClose} onDone=${onDone} read=${(given) => ({ account: account.id, queue: given.get("queue"), roles: given.getAll("roles") })}>
      <${Field} label="Queue" id="grant-queue" hint="Its full name; a '*' at the end stands for all that begin so, alone for all with plain names."><input id="grant-queue" name="queue" required autofocus autocomplete="off" aria-describedby="grant-queue-hint" /><//>
      <fieldset><legend>May</legend>${["send", "receive", "manage"].map((role) => html`<label key=${role} class="check"><input type="checkbox" name="roles" value=${role} /> ${role}</label>`)}</fieldset>
    <//>`;
}

function Quota({ account, onClose, onDone }) {
  const read = (given) => ({
    account: account.id,
    requests_per_s: given.get("rate").trim() ? Number(given.get("rate")) : null,
    bytes_max: given.get("bytes").trim() ? readBytes(given.get("bytes")) : null,
  });
  return html`
    <${Asked} title=${`Quota of ${account.name}`} verb="Set the quota" command="set_quota" onClose=${onClose} onDone=${onDone} read=${read}>
      <${Field} label="Requests per second" id="quota-rate" hint="Empty: any."><input id="quota-rate" name="rate" defaultValue=${account.requests_per_s ?? ""} autofocus aria-describedby="quota-rate-hint" /><//>
      <${Field} label="Bytes stored" id="quota-bytes" hint="For example 10GiB; empty: any."><input id="quota-bytes" name="bytes" defaultValue=${account.bytes_max ? bytes(account.bytes_max) : ""} aria-describedby="quota-bytes-hint" /><//>
    <//>`;
}

function Secret({ made, onClose }) {
  return html`
    <${Dialog} title="The new key" onClose=${onClose}>
      <p>Keep the secret: it is not shown again.</p>
      <dl class="facts one"><div><dt>access key id</dt><dd class="mono">${made.id}</dd></div><div><dt>secret access key</dt><dd class="mono">${made.secret}</dd></div></dl>
      <footer class="actions end"><button onClick=${onClose}>I have it</button></footer>
    <//>`;
}
