// The pipeline: what `ringdove pipeline status` knows of a project.
import { html, signal, useEffect } from "../dom.js";
import { api, isAdmin, session } from "../calls.js";
import { age, bytes, count, rate } from "../figures.js";
import { latest } from "../live.js";
import { Badge, Card, Empty, Page, Table, Tile } from "../parts.js";

const PERIOD_MS = 2000;
const seen = signal(null);
const wrong = signal("");

async function look() {
  try {
    seen.value = await api("GET", "pipeline");
    wrong.value = "";
  } catch (problem) {
    wrong.value = problem.message;
  }
}

const TONES = { done: "good", running: "good", waiting: "good", failed: "bad", killed: "bad", interrupted: "warn" };

export function Pipeline() {
  const there = session.value.views.includes("pipeline") && isAdmin();
  useEffect(() => {
    if (!there) return undefined;
    look();
    const timer = setInterval(look, PERIOD_MS);
    return () => clearInterval(timer);
  }, [there]);
  if (!there) return html`<${Page} title="Pipeline"><${Explained} /><//>`;
  const told = seen.value;
  if (!told) return html`<${Page} title="Pipeline">${wrong.value ? html`<p class="wrong" role="alert">${wrong.value}</p>` : html`<div class="waiting" aria-busy="true">Loading</div>`}<//>`;
  const { queues } = told;
  const now = latest.value?.at_ms || told.updated_ms;
  return html`
    <${Page} title="Pipeline" lead=${html`<b>${told.pipeline}</b> <${Badge} tone=${TONES[told.state] || ""}>${told.state}<//> ${told.updated_ms ? `${age(told.updated_ms, now)} ago` : ""}`}>
      ${(wrong.value || told.error || queues.error) && html`<p class="wrong" role="alert">${wrong.value || told.error || queues.error}</p>`}
      <div class="tiles">
        <${Tile} label="Lag" value=${count(queues.lag)} note="not in table raw yet" />
        <${Tile} label="Dead letters" value=${count(queues.dead_letters)} tone=${queues.dead_letters ? "bad" : ""} />
        <${Tile} label="Results" value=${count(queues.results)} note="sent back, not yet taken" />
        <${Tile} label="Updates" value=${count(told.updates)} />
      </div>
      <${Card} title="Queries">
        ${told.flows.length ? html`
          <${Table} label="Queries" columns=${[{ key: "f", label: "Query" }, { key: "s", label: "State" }, { key: "r", label: "Rows", number: true }, { key: "p", label: "Rows per second", number: true }, { key: "d", label: "Duplicates", number: true }, { key: "l", label: "Late", number: true }]}>
            ${told.flows.map((flow) => html`
              <tr key=${flow.flow}><th scope="row">${flow.flow}</th><td>${flow.state}</td><td class="number">${count(flow.rows)}</td><td class="number">${rate(flow.rows_per_s)}</td><td class="number">${count(flow.duplicates)}</td><td class="number">${count(flow.late)}</td></tr>`)}
          <//>` : html`<p class="muted pad">No query has run yet: <code>ringdove pipeline run</code>.</p>`}
      <//>
      <${Card} title="Tables">
        ${told.tables.length ? html`
          <${Table} label="Tables" columns=${[{ key: "t", label: "Table" }, { key: "r", label: "Rows", number: true }, { key: "f", label: "Files", number: true }, { key: "b", label: "Size", number: true }]}>
            ${told.tables.map((one) => html`<tr key=${one.table}><th scope="row">${one.table}</th><td class="number">${count(one.rows)}</td><td class="number">${count(one.files)}</td><td class="number">${bytes(one.bytes)}</td></tr>`)}
          <//>` : html`<p class="muted pad">There are no tables yet.</p>`}
      <//>
    <//>`;
}

function Explained() {
  return html`
    <${Empty} title=${isAdmin() ? "No pipeline is shown here" : "Only an admin sees the pipeline"}>
      <p>A pipeline reads a queue with Spark, checks and windows what it finds, and keeps it in tables. Make one, and tell the server where it is:</p>
      <pre><code>ringdove pipeline init meters${"\n"}ringdove serve --pipeline meters</code></pre>
    <//>`;
}
