// One queue: how it does, who reads it, what is in it, and what died of it.
import { html, useEffect, useMemo, useState } from "../dom.js";
import { attempt, call, mayChange, queuePath, toast } from "../calls.js";
import { Chart } from "../chart.js";
import { age, bytes, count, rate, scaled } from "../figures.js";
import { latest, pace, track, wanted } from "../live.js";
import { Card, Confirm, Dialog, Empty, Field, Page, Table, Tile } from "../parts.js";
import { DeadLetters } from "./dead.js";
import { Messages, SendForm } from "./messages.js";
import { Marks } from "./queues.js";
import { QueueForm, show } from "./settings.js";

export function Queue({ name }) {
  const [info, setInfo] = useState(null);
  const [gone, setGone] = useState("");
  const [asking, setAsking] = useState("");
  const load = () => call("GET", queuePath(name)).then(setInfo, (problem) => setGone(problem.message));
  useEffect(() => {
    load();
    wanted.value = { queue: name, queues: name };
  }, []);
  if (gone) return html`<${Page} title=${name}><${Empty} title="There is no such queue" action=${html`<a role="button" href="#/queues">All queues</a>`}><p>${gone}</p><//><//>`;
  if (!info) return html`<${Page} title=${name}><div class="waiting" aria-busy="true">Loading</div><//>`;

  const close = () => setAsking("");
  const purge = () => attempt(() => call("POST", queuePath(name, "/purge"), {}), (told) => `${count(told.purged)} messages dropped.`).then(close);
  const remove = () => attempt(() => call("DELETE", queuePath(name)), `Queue ${name} is deleted.`).then((done) => done && (location.hash = "#/queues"));
  const now = latest.value;
  const stats = now?.queue?.name === name ? now.queue : null;
  return html`
    <${Page} title=${name} lead=${html`<a href="#/queues">Queues</a> <${Marks} settings=${info.settings} />`} actions=${mayChange() && html`
        <button onClick=${() => setAsking("send")}>Send</button>
        <button class="secondary" onClick=${() => setAsking("edit")}>Settings</button>
        <button class="secondary" onClick=${() => setAsking("purge")}>Purge</button>
        <button class="secondary danger" onClick=${() => setAsking("delete")}>Delete</button>`}>
      <${Figures} name=${name} now=${now} stats=${stats} />
      <${Regularity} tally=${stats ? now.tally : null} />
      <${Curves} name=${name} now=${now} />
      <div class="halves">
        <${Subscriptions} name=${name} stats=${stats} />
        <${Stripes} stats=${stats} now=${now} />
      </div>
      <${Messages} name=${name} stats=${stats} settings=${info.settings} />
      <${DeadLetters} name=${name} settings=${info.settings} stats=${stats} />
      <${Settings} settings=${info.settings} />
      ${asking === "send" && html`<${SendForm} name=${name} settings=${info.settings} onClose=${close} />`}
      ${asking === "edit" && html`<${QueueForm} queue=${info} onClose=${close} onDone=${() => { close(); load(); toast("The settings are changed."); }} />`}
      ${asking === "purge" && html`<${Confirm} title="Purge" name=${name} verb="Purge" onDone=${purge} onClose=${close}>Every message of this queue is dropped, for all subscriptions, those in flight too. That cannot be undone.<//>`}
      ${asking === "delete" && html`<${Confirm} title="Delete" name=${name} verb="Delete" onDone=${remove} onClose=${close}>The queue goes with its settings, its subscriptions and its messages. That cannot be undone.<//>`}
    <//>`;
}

function Figures({ name, now, stats }) {
  const row = now?.queues?.[name];
  const { in: sent, out } = pace(name);
  const points = track(name).slice(-60);
  return html`
    <div class="tiles">
      <${Tile} label="Waiting" value=${count(row?.waiting)} note=${row?.delayed ? `${count(row.delayed)} due later` : ""} values=${points.map((point) => point.waiting)} colour="c3" />
      <${Tile} label="In flight" value=${count(row?.leased)} values=${points.map((point) => point.leased)} colour="c4" />
      <${Tile} label="Oldest" value=${row?.waiting ? age(row.oldest_ms, now.at_ms) : "–"} note=${row?.waiting ? "" : "nothing waits"} />
      <${Tile} label="In" value=${rate(sent)} note=${`${count(row?.sent)} ever`} values=${speeds(points, "sent")} colour="c1" />
      <${Tile} label="Out" value=${rate(out)} values=${speeds(points, "done")} colour="c2" />
      <${Tile} label="Stored" value=${bytes(row?.bytes)} note=${stats ? `${count(stats.messages)} messages` : ""} />
    </div>`;
}

// Order and duplicates as this server has seen them since it began; nothing of it is an error. It has
// its place before it is known: what is below must not move away from under a finger.
function Regularity({ tally }) {
  const share = (part) => (part ? `${scaled((100 * part) / tally.delivered)} %: ` : "");
  return html`
    <section class="tiles" aria-label="Order and duplicates">
      <${Tile} label="Handed out" value=${count(tally?.delivered)} note="since the server began" />
      <${Tile} label="Handed out again" value=${count(tally?.again)} note=${`${share(tally?.again)}a lease ended, or it was given back`} />
      <${Tile} label="Out of order" value=${count(tally?.late)} note=${`${share(tally?.late)}behind a later one of the stripe`} />
      <${Tile} label="Sent twice" value=${count(tally?.repeated)} note="recognised, and not stored again" />
    </section>`;
}

// How fast a count grows, point by point.
const speeds = (points, field) => points.map((point, i) => (i ? Math.max(0, (point[field] - points[i - 1][field]) / (point.t - points[i - 1].t)) : null));

function Curves({ name, now }) {
  const points = track(name);
  const data = useMemo(() => {
    const times = points.map((point) => point.t);
    return {
      depth: [times, points.map((point) => point.waiting), points.map((point) => point.leased)],
      rates: [times, speeds(points, "sent"), speeds(points, "done")],
    };
  }, [now]);
  return html`
    <div class="charts">
      <${Card}><${Chart} label="Messages per second" format=${rate} series=${[{ label: "in", colour: "--c1", fill: true }, { label: "out", colour: "--c2" }]} data=${data.rates} /><//>
      <${Card}><${Chart} label="Depth" series=${[{ label: "waiting", colour: "--c3", fill: true }, { label: "in flight", colour: "--c4" }]} data=${data.depth} /><//>
    </div>`;
}

const SUBSCRIPTIONS = [
  { key: "name", label: "Subscription" },
  { key: "waiting", label: "Lag", number: true },
  { key: "leased", label: "In flight", number: true },
  { key: "delayed", label: "Due later", number: true },
  { key: "act", label: "" },
];

function Subscriptions({ name, stats }) {
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState("");
  const path = (subscription) => queuePath(name, `/subscriptions/${encodeURIComponent(subscription)}`);
  const remove = () => attempt(() => call("DELETE", path(removing)), `${removing} is removed.`).then(() => setRemoving(""));
  const add = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    const made = await attempt(() => call("PUT", path(given.get("name")), { start: given.get("start") }), "The subscription is there.");
    if (made) setAdding(false);
  };
  return html`
    <${Card} title="Subscriptions" actions=${mayChange() && html`<button class="secondary" onClick=${() => setAdding(true)}>Add</button>`}>
      <${Table} label="Subscriptions" columns=${SUBSCRIPTIONS}>
        ${Object.entries(stats?.subscriptions || {}).map(([subscription, own]) => html`
          <tr key=${subscription}>
            <th scope="row">${subscription}</th>
            <td class="number">${count(own.waiting)}</td>
            <td class="number">${count(own.leased)}</td>
            <td class="number">${count(own.delayed)}</td>
            <td class="number">${mayChange() && html`<button class="quiet" aria-label=${`Remove ${subscription}`} onClick=${() => setRemoving(subscription)}>✕</button>`}</td>
          </tr>`)}
      <//>
      ${adding && html`
        <${Dialog} title="Add a subscription" onClose=${() => setAdding(false)}>
          <form onSubmit=${add}>
            <p>A subscription is an independent reader: each gets every message once.</p>
            <${Field} label="Name" id="sub-name"><input id="sub-name" name="name" required autofocus autocomplete="off" /><//>
            <${Field} label="Starts with" id="sub-start">
              <select id="sub-start" name="start"><option value="latest">messages sent from now on</option><option value="earliest">the oldest message stored</option></select>
            <//>
            <footer class="actions end"><button>Add</button></footer>
          </form>
        <//>`}
      ${removing && html`<${Confirm} title="Remove a subscription" name=${removing} verb="Remove" onDone=${remove} onClose=${() => setRemoving("")}>What only this subscription was waiting for is gone with it.<//>`}
    <//>`;
}

const STRIPES = [
  { key: "stripe", label: "Stripe" },
  { key: "head", label: "First offset", number: true },
  { key: "tail", label: "Next offset", number: true },
  { key: "bytes", label: "Stored", number: true },
  { key: "oldest", label: "Oldest", number: true },
  { key: "share", label: "Share" },
];

function Stripes({ stats, now }) {
  const stripes = stats?.stripes || [];
  const most = Math.max(1, ...stripes.map((own) => own.tail - own.head));
  return html`
    <${Card} title="Stripes">
      <${Table} label="Stripes" columns=${STRIPES}>
        ${stripes.slice(0, 256).map((own) => html`
          <tr key=${`${own.priority}.${own.stripe}`}>
            <th scope="row">${own.stripe}${own.priority ? ` (priority ${own.priority})` : ""}</th>
            <td class="number">${count(own.head)}</td>
            <td class="number">${count(own.tail)}</td>
            <td class="number">${bytes(own.bytes)}</td>
            <td class="number">${age(own.oldest_ms, now.at_ms)}</td>
            <td><progress value=${own.tail - own.head} max=${most} aria-label=${`${own.tail - own.head} messages`}></progress></td>
          </tr>`)}
      <//>
    <//>`;
}

function Settings({ settings }) {
  const shown = Object.entries(settings).filter(([name]) => name !== "notes");
  const notes = Object.entries(settings.notes || {});
  return html`
    <${Card} title="Settings">
      <dl class="facts">
        ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${show(name, value) || "none"}</dd></div>`)}
        ${notes.map(([name, text]) => html`<div key=${name}><dt>${name}</dt><dd>${text}</dd></div>`)}
      </dl>
    <//>`;
}
