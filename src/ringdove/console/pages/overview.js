// The overview: how the server does now, and did in the last minutes.
import { html, useMemo } from "../dom.js";
import { isAdmin } from "../calls.js";
import { Chart, Spark } from "../chart.js";
import { age, bytes, count, duration, rate, scaled } from "../figures.js";
import { history, latest, pace, track } from "../live.js";
import { Card, Empty, Page, Table, Tile } from "../parts.js";

const column = (points, name) => points.map((point) => point[name]);
const COLUMNS = [
  { key: "name", label: "Queue" },
  { key: "waiting", label: "Waiting", number: true },
  { key: "leased", label: "In flight", number: true },
  { key: "in", label: "In", number: true },
  { key: "out", label: "Out", number: true },
  { key: "oldest", label: "Oldest", number: true },
  { key: "depth", label: "Depth" },
];

export function Overview() {
  const points = history.value;
  const now = latest.value;
  const totals = now?.totals;
  if (!totals) return html`<${Page} title="Overview"><div class="waiting" aria-busy="true">Waiting for the first figures</div><//>`;
  if (!totals.queues) return html`<${Page} title="Overview"><${NoQueues} /><//>`;
  const counted = totals.counted < totals.queues ? `${count(totals.counted)} of ${count(totals.queues)} queues counted` : "";
  return html`
    <${Page} title="Overview" lead=${`${count(totals.queues)} ${totals.queues === 1 ? "queue" : "queues"}, ${count(totals.messages)} messages stored, ${bytes(totals.bytes)}. ${counted}`}>
      <${Tiles} points=${points} now=${now} />
      <${Charts} points=${points} />
      <${Card} title="Deepest queues">
        <${Table} label="Deepest queues" columns=${COLUMNS}>
          ${Object.entries(totals.deepest).map(([name, row]) => html`<${Row} key=${name} name=${name} row=${row} now=${now.at_ms} />`)}
        <//>
      <//>
    <//>`;
}

function Tiles({ points, now }) {
  const last = points.at(-1) || {};
  const recent = points.slice(-60);
  return html`
    <div class="tiles">
      <${Tile} label="Sent" value=${rate(last.sent)} values=${column(recent, "sent")} colour="c1" />
      ${isAdmin() && html`<${Tile} label="Delivered" value=${rate(last.delivered)} values=${column(recent, "delivered")} colour="c2" />`}
      <${Tile} label="Waiting" value=${count(last.waiting)} note=${now.totals.oldest_ms ? `oldest ${age(now.totals.oldest_ms, now.at_ms)}` : "nothing waits"} values=${column(recent, "waiting")} colour="c3" />
      <${Tile} label="In flight" value=${count(last.leased)} note=${isAdmin() ? `${count(now.server?.parked)} receivers wait` : ""} values=${column(recent, "leased")} colour="c4" />
      ${isAdmin() && html`
        <${Tile} label="Delay, median" value=${duration(last.p50)} note=${`99 %: ${duration(last.p99)}`} values=${column(recent, "p50")} colour="c2" />
        <${Tile} label="Errors" value=${rate(last.errors)} tone=${last.errors > 0 ? "bad" : ""} note=${`${count(now.server?.connections)} connections`} values=${column(recent, "errors")} colour="c5" />`}
    </div>`;
}

function Charts({ points }) {
  const times = useMemo(() => column(points, "t"), [points]);
  const data = (...names) => [times, ...names.map((name) => column(points, name))];
  return html`
    <div class="charts">
      <${Card}><${Chart} label="Messages per second" format=${rate} series=${[{ label: "sent", colour: "--c1", fill: true }, { label: "delivered", colour: "--c2" }]} data=${data("sent", "delivered")} /><//>
      <${Card}><${Chart} label="Depth" series=${[{ label: "waiting", colour: "--c3", fill: true }, { label: "in flight", colour: "--c4" }]} data=${data("waiting", "leased")} /><//>
      ${isAdmin() && html`
        <${Card}><${Chart} label="From arrival to delivery" format=${duration} series=${[{ label: "median", colour: "--c2" }, { label: "99 %", colour: "--c5" }]} data=${data("p50", "p99")} /><//>
        <${Card}><${Chart} label="Processor time of the server" format=${percent} series=${[{ label: "cores busy", colour: "--c4", fill: true }]} data=${data("cpu")} /><//>`}
    </div>`;
}

const percent = (value) => (value === null || value === undefined ? "–" : `${scaled(100 * value)} %`);

function Row({ name, row, now }) {
  const { in: sent, out } = pace(name);
  return html`
    <tr>
      <th scope="row"><a href=${`#/queues/${encodeURIComponent(name)}`}>${name}</a></th>
      <td class="number">${count(row.waiting)}</td>
      <td class="number">${count(row.leased)}</td>
      <td class="number">${rate(sent)}</td>
      <td class="number">${rate(out)}</td>
      <td class="number">${row.waiting ? age(row.oldest_ms, now) : "–"}</td>
      <td><${Spark} values=${track(name).slice(-60).map((point) => point.waiting)} colour="c3" /></td>
    </tr>`;
}

function NoQueues() {
  return html`
    <${Empty} title="There are no queues yet" action=${html`<a role="button" href="#/queues">Make a queue</a>`}>
      <p>Make one here, or from a terminal:</p>
      <pre><code>ringdove queue create readings${"\n"}ringdove send readings "21.5"</code></pre>
    <//>`;
}
