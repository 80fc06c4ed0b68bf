// Messages of a queue: look at them, send one, take one and settle it.
import { html, useState } from "../dom.js";
import { attempt, call, mayChange, queuePath, toast } from "../calls.js";
import { readDuration, time } from "../figures.js";
import { Card, Dialog, Empty, Field, Table } from "../parts.js";

const PEEK = 20;
const COLUMNS = [
  { key: "offset", label: "Place" },
  { key: "sent", label: "Sent" },
  { key: "key", label: "Key" },
  { key: "body", label: "Body" },
  { key: "attributes", label: "Attributes" },
];

export const bodyOf = (message) => message.body ?? `${atob(message.body_base64).length} bytes that are no text`;
const keyOf = (message) => message.key ?? (message.key_base64 ? `base64 ${message.key_base64}` : "");

export function MessageRow({ message, children }) {
  const attributes = Object.entries(message.attributes || {}).filter(([name]) => !name.startsWith("ringdove.dead."));
  return html`
    <tr>
      <th scope="row" class="mono">${message.stripe}/${message.offset}</th>
      <td>${time(message.sent_ms)}</td>
      <td class="mono">${keyOf(message)}</td>
      <td><${Body} text=${bodyOf(message)} /></td>
      <td class="mono small">${attributes.map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")}</td>
      ${children}
    </tr>`;
}

export function Body({ text }) {
  if (text.length <= 80) return html`<code class="body">${text}</code>`;
  return html`<details class="body"><summary><code>${text.slice(0, 80)}…</code></summary><pre>${text.slice(0, 20000)}</pre></details>`;
}

export function Messages({ name, stats, settings }) {
  const [shown, setShown] = useState(null);
  const [chosen, setChosen] = useState("");
  const [held, setHeld] = useState(null);
  const names = Object.keys(stats?.subscriptions || {});
  const subscription = chosen || names[0] || "default";
  const peek = async () => {
    const told = await attempt(() => call("GET", queuePath(name, "/peek"), undefined, { max: PEEK, subscription }));
    if (told) setShown(told.messages);
  };
  const receive = async () => {
    const told = await attempt(() => call("POST", queuePath(name, "/receive"), undefined, { max: 1, subscription }));
    if (told?.messages.length) setHeld(told.messages[0]);
    else if (told) toast("Nothing can be received now.");
  };
  const actions = html`
    ${names.length > 1 && html`<select aria-label="Subscription" value=${subscription} onChange=${(event) => setChosen(event.target.value)}>${names.map((one) => html`<option key=${one}>${one}</option>`)}</select>`}
    <button class="secondary" onClick=${peek}>Peek</button>
    ${mayChange() && html`<button class="secondary" onClick=${receive}>Receive one</button>`}`;
  return html`
    <${Card} title="Messages" actions=${actions}>
      ${shown === null ? html`<p class="muted pad">Peek shows the oldest ${PEEK} messages that are not done and changes nothing. Receiving takes one: it stays in flight until it is settled.</p>`
        : shown.length ? html`
          <${Table} label="Oldest messages" columns=${COLUMNS}>
            ${shown.map((message) => html`<${MessageRow} key=${`${message.priority}.${message.stripe}.${message.offset}`} message=${message} />`)}
          <//>`
        : html`<${Empty} title="There is nothing to see"><p>Everything that was sent is done.</p><//>`}
      ${held && html`<${Held} name=${name} message=${held} settings=${settings} onDone=${() => { setHeld(null); if (shown) peek(); }} />`}
    <//>`;
}

function Held({ name, message, settings, onDone }) {
  const settle = (verb, more, told) => attempt(() => call("POST", queuePath(name, `/${verb}`), { receipts: [message.receipt], ...more }), told).then(onDone);
  const release = () => settle("release", { delay_ms: 0 }, "The message is back.");
  return html`
    <${Dialog} title="A message in hand" onClose=${release}>
      <p class="muted">Received ${message.receives === 1 ? "for the first time" : `for the ${message.receives}th time`}; yours until ${time(message.lease_until_ms)}.</p>
      <pre class="whole">${bodyOf(message)}</pre>
      <footer class="actions end">
        <button class="secondary" onClick=${release}>Give back</button>
        ${settings.dead_letter && html`<button class="secondary danger" onClick=${() => settle("bury", { reason: "buried in the console" }, "The message is a dead letter now.")}>Bury</button>`}
        <button onClick=${() => settle("ack", {}, "The message is done.")}>Acknowledge</button>
      </footer>
    <//>`;
}

export function SendForm({ name, settings, onClose }) {
  const [wrong, setWrong] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      const given = new FormData(event.target);
      const message = { body: given.get("body") };
      if (given.get("key")) message.key = given.get("key");
      if (given.get("attributes").trim()) message.attributes = readAttributes(given.get("attributes"));
      if (given.get("delay").trim()) message.delay_ms = readDuration(given.get("delay"));
      if (Number(given.get("priority"))) message.priority = Number(given.get("priority"));
      const { messages: [place] } = await call("POST", queuePath(name, "/messages"), message);
      toast(place.duplicate ? "This message was there before." : `Stored at ${place.stripe}/${place.offset}.`);
      onClose();
    } catch (problem) {
      setWrong(problem.message);
    }
  };
  return html`
    <${Dialog} title="Send a message" onClose=${onClose}>
      <form onSubmit=${submit}>
        <${Field} label="Body" id="send-body"><textarea id="send-body" name="body" rows="4" autofocus spellcheck=${false}></textarea><//>
        <${Field} label="Key" id="send-key" hint="Messages of one key stay in order where the queue keeps it."><input id="send-key" name="key" autocomplete="off" aria-describedby="send-key-hint" /><//>
        <${Field} label="Attributes" id="send-attributes" hint="One per line, name=value; a number is stored as one."><textarea id="send-attributes" name="attributes" rows="2" spellcheck=${false} aria-describedby="send-attributes-hint"></textarea><//>
        <div class="fields">
          <${Field} label="Delay" id="send-delay" hint="For example 30s."><input id="send-delay" name="delay" autocomplete="off" aria-describedby="send-delay-hint" /><//>
          ${settings.priority > 0 && html`<${Field} label="Priority" id="send-priority"><input id="send-priority" name="priority" type="number" min="0" max=${settings.priority} value="0" /><//>`}
        </div>
        ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
        <footer class="actions end">
          <button type="button" class="secondary" onClick=${onClose}>Cancel</button>
          <button>Send</button>
        </footer>
      </form>
    <//>`;
}

function readAttributes(text) {
  return Object.fromEntries(text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`An attribute is written name=value: ${line}`);
    const value = line.slice(at + 1).trim();
    return [line.slice(0, at).trim(), value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value];
  }));
}
