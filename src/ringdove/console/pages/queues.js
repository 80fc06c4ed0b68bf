// The table of queues: thousands of them, a page at a time; the server searches and sorts.
import { html, signal, useEffect } from "../dom.js";
import { api, attempt, mayChange } from "../calls.js";
import { Spark } from "../chart.js";
import { age, bytes, count, rate } from "../figures.js";
import { latest, pace, track, wanted } from "../live.js";
import { Badge, Empty, Page, Table } from "../parts.js";
import { QueueForm } from "./settings.js";

const SIZE = 50;
const ask = signal({ search: "", filter: "all", sort: "name", page: 0 });
const found = signal(null);
const making = signal(false);

const FILTERS = [["all", "All"], ["waiting", "With messages"], ["leased", "In flight"], ["empty", "Empty"], ["dead", "Dead letters"]];
const COLUMNS = [
  { key: "name", label: "Queue", sort: "name" },
  { key: "waiting", label: "Waiting", number: true, sort: "waiting" },
  { key: "leased", label: "In flight", number: true, sort: "leased" },
  { key: "in", label: "In", number: true },
  { key: "out", label: "Out", number: true },
  { key: "oldest", label: "Oldest", number: true, sort: "oldest" },
  { key: "bytes", label: "Stored", number: true, sort: "bytes" },
  { key: "depth", label: "Depth" },
];

let newest = 0;
async function load() {
  const turn = ++newest;
  const result = await attempt(() => api("GET", "queues", undefined, { ...ask.value, size: SIZE }));
  if (!result || turn !== newest) return;
  found.value = result;
  wanted.value = { queues: result.queues.map((queue) => queue.name).join(",") };
}

let timer;
function change(part, wait = 0) {
  ask.value = { ...ask.value, page: 0, ...part };
  clearTimeout(timer);
  timer = setTimeout(load, wait);
}

export function Queues() {
  useEffect(() => { load(); }, []);
  const { search, filter, sort } = ask.value;
  const shown = found.value;
  return html`
    <${Page} title="Queues" actions=${mayChange() && html`<button onClick=${() => (making.value = true)}>New queue</button>`}>
      <div class="toolbar">
        <input type="search" aria-label="Search queues" placeholder="Search by name" value=${search} onInput=${(event) => change({ search: event.target.value }, 150)} />
        <select aria-label="Show" value=${filter} onChange=${(event) => change({ filter: event.target.value })}>
          ${FILTERS.map(([key, label]) => html`<option key=${key} value=${key}>${label}</option>`)}
        </select>
        ${shown && html`<span class="muted" role="status">${told(shown)}</span>`}
      </div>
      ${!shown ? html`<div class="waiting" aria-busy="true">Loading</div>`
        : shown.queues.length ? html`
          <${Table} label="Queues" columns=${COLUMNS} sort=${sort} onSort=${(next) => change({ sort: next })}>
            ${shown.queues.map((queue) => html`<${Row} key=${queue.name} queue=${queue} />`)}
          <//>
          <${Pager} shown=${shown} />`
        : html`<${Nothing} all=${shown.all} />`}
      ${making.value && html`<${QueueForm} onClose=${() => (making.value = false)} onDone=${(name) => { making.value = false; location.hash = `#/queues/${encodeURIComponent(name)}`; }} />`}
    <//>`;
}

const told = ({ found, all }) => (found === all ? `${count(all)} ${all === 1 ? "queue" : "queues"}` : `${count(found)} of ${count(all)}`);

function Row({ queue }) {
  const now = latest.value;
  const { name, settings } = queue;
  const row = now?.queues?.[name] || queue.row;
  const { in: sent, out } = pace(name);
  return html`
    <tr>
      <th scope="row"><a href=${`#/queues/${encodeURIComponent(name)}`}>${name}</a> <${Marks} settings=${settings} dead=${queue.dead} /></th>
      <td class="number">${count(row.waiting)}</td>
      <td class="number">${count(row.leased)}</td>
      <td class="number">${rate(sent)}</td>
      <td class="number">${rate(out)}</td>
      <td class="number">${row.waiting && now ? age(row.oldest_ms, now.at_ms) : "–"}</td>
      <td class="number">${bytes(row.bytes)}</td>
      <td><${Spark} values=${track(name).slice(-60).map((point) => point.waiting)} colour="c3" /></td>
    </tr>`;
}

export function Marks({ settings, dead }) {
  return html`
    ${dead && html`<${Badge} tone="bad">dead letters<//>`}
    ${settings.order !== "loose" && html`<${Badge}>order ${settings.order}<//>`}
    ${settings.delivery === "exactly-once" && html`<${Badge} tone="good">exactly once<//>`}
    ${settings.durability === "memory" && html`<${Badge}>memory<//>`}
    ${settings.stripes > 1 && html`<${Badge}>${settings.stripes} stripes<//>`}`;
}

function Pager({ shown }) {
  const pages = Math.ceil(shown.found / SIZE);
  if (pages < 2) return null;
  const { page } = ask.value;
  return html`
    <nav class="pager" aria-label="Pages of the table">
      <button class="secondary" disabled=${page === 0} onClick=${() => change({ page: page - 1 })}>Previous</button>
      <span>Page ${page + 1} of ${pages}</span>
      <button class="secondary" disabled=${page + 1 >= pages} onClick=${() => change({ page: page + 1 })}>Next</button>
    </nav>`;
}

function Nothing({ all }) {
  if (all) return html`<${Empty} title="No queue is like that"><p>${count(all)} others are there: search for something else, or show all.</p><//>`;
  return html`
    <${Empty} title="There are no queues yet">
      <p>A queue takes messages from those who send and keeps them until somebody has dealt with them.</p>
      ${mayChange() ? html`<p>Press <b>New queue</b> above, or run <code>ringdove queue create readings</code>.</p>` : ""}
    <//>`;
}
