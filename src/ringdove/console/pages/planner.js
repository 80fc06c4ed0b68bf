// The planner: sliders on the models; what a load needs, and where it would break.
import { html, signal, useEffect, useState } from "../dom.js";
import { api, attempt, isAdmin } from "../calls.js";
import { Chart } from "../chart.js";
import { count, duration, rate, scaled } from "../figures.js";
import { latest } from "../live.js";
import { Card, Page, Tile } from "../parts.js";

// Sliders move over powers of ten where a value spans several.
const SLIDERS = [
  { name: "rate", label: "Messages per second", low: 1, high: 1e5, log: true, show: rate },
  { name: "service_ms", label: "Time to process one", low: 0.1, high: 1e4, log: true, show: duration },
  { name: "variation", label: "Variation of that time (0: none, 1: exponential)", low: 0, high: 4, step: 0.1, show: scaled },
  { name: "loss", label: "Deliveries that fail", low: 0, high: 0.5, step: 0.01, show: (value) => `${scaled(100 * value)} %` },
  { name: "p99_ms", label: "Wanted for 99 of 100 messages", low: 0, high: 1e5, log: true, show: (value) => (value ? duration(value) : "any delay") },
  { name: "load_max", label: "How busy threads may be", low: 0.3, high: 0.95, step: 0.05, show: (value) => `${scaled(100 * value)} %` },
];

const load = signal({ rate: 1000, service_ms: 5, variation: 1, loss: 0.01, p99_ms: 100, load_max: 0.8, cores: 2, fabric: false });
const plan = signal(null);
const wrong = signal("");

let turn = 0;
let timer;
async function make() {
  const mine = ++turn;
  try {
    const made = await api("GET", "plan", undefined, load.value);
    if (mine === turn) {
      plan.value = made;
      wrong.value = "";
    }
  } catch (problem) {
    if (mine === turn) wrong.value = problem.message;
  }
}

function change(part) {
  load.value = { ...load.value, ...part };
  clearTimeout(timer);
  timer = setTimeout(make, 120);
}

export function Planner() {
  useEffect(() => { make(); }, []);
  return html`
    <${Page} title="Planner" lead="How many threads, controllers and servers a load needs, from the models of queues and stations.">
      <div class="planner">
        <div>
          <${Card} title="Load">
            <div class="pad">${SLIDERS.map((slider) => html`<${Slider} key=${slider.name} ...${slider} value=${load.value[slider.name]} />`)}
              <div class="fields">
                <div class="field"><label for="plan-cores">Cores of a server</label><input id="plan-cores" type="number" min="1" max="1024" value=${load.value.cores} onInput=${(event) => change({ cores: Math.max(1, Number(event.target.value) || 1) })} /></div>
                <label class="check"><input type="checkbox" checked=${load.value.fabric} onChange=${(event) => change({ fabric: event.target.checked })} /> On a fabric, with three copies</label>
              </div>
            </div>
          <//>
          ${isAdmin() && html`<${Calibration} />`}
        </div>
        <div>${wrong.value ? html`<p class="wrong" role="alert">${wrong.value}</p>` : ""}${plan.value ? html`<${Answer} made=${plan.value} />` : !wrong.value && html`<div class="waiting" aria-busy="true">Computing</div>`}</div>
      </div>
    <//>`;
}

function Slider({ name, label, low, high, step, log, show, value }) {
  const floor = log ? Math.log10(low || high / 1e5) : low;
  const place = log ? (value ? Math.log10(value) : floor) : value;
  const read = (text) => {
    if (!log) return Number(text);
    if (low === 0 && Number(text) <= floor) return 0;
    return Number((10 ** Number(text)).toPrecision(2));
  };
  const id = `plan-${name}`;
  return html`
    <div class="slider">
      <label for=${id}>${label}</label><output for=${id}>${show(value)}</output>
      <input id=${id} type="range" min=${floor} max=${log ? Math.log10(high) : high} step=${log ? 0.02 : step} value=${place} aria-valuetext=${show(value)} onInput=${(event) => change({ [name]: read(event.target.value) })} />
    </div>`;
}

function Answer({ made }) {
  const { figures, by_threads: threads, by_rate: rates } = made;
  const curve = (rows, x) => [rows.map((row) => row[x]), rows.map((row) => row.mean_ms), rows.map((row) => row.p99_ms)];
  const series = [{ label: "mean", colour: "--c1" }, { label: "99 %", colour: "--c5" }];
  const goal = load.value.p99_ms ? [{ at: load.value.p99_ms, scale: "y", label: "wanted", colour: "--muted" }] : [];
  return html`
    <div class="tiles">
      <${Tile} label="Receiving threads" value=${count(figures.threads)} note=${`${scaled(100 * figures.utilisation)} % busy`} />
      <${Tile} label="Controllers" value=${count(figures.controllers)} note=${`${scaled(100 * figures.controller_utilisation)} % busy`} />
      <${Tile} label="Servers" value=${count(figures.servers)} />
      <${Tile} label="Mean delay" value=${duration(figures.mean_ms)} note=${`99 %: ${duration(figures.p99_ms)}`} />
      <${Tile} label="Headroom" value=${`${scaled(100 * figures.headroom)} %`} note=${`up to ${rate(figures.rate_max_per_s)}`} />
    </div>
    <${Card}><${Chart} label="Delay by threads" time=${false} log height=${220} x=${count} format=${duration} series=${series} data=${curve(threads, "threads")} marks=${[{ at: figures.threads, label: "the plan", colour: "--c2" }, ...goal]} /><//>
    <${Card}><${Chart} label="Delay by rate, with the plan's threads" time=${false} log height=${220} x=${rate} format=${duration} series=${series} data=${curve(rates, "rate_per_s")} marks=${[{ at: figures.rate_per_s, label: "the plan", colour: "--c2" }, { at: figures.knee_per_s, label: "half as slow again", colour: "--c3" }, ...goal]} /><//>`;
}

// Takes the load from a queue that is in use.
function Calibration() {
  const [busy, setBusy] = useState(false);
  const [seen, setSeen] = useState(null);
  const names = Object.keys(latest.value?.totals?.deepest || {});
  const look = async (event) => {
    event.preventDefault();
    setBusy(true);
    const told = await attempt(() => api("GET", "observed", undefined, { queue: new FormData(event.target).get("queue") }));
    setBusy(false);
    if (!told) return;
    setSeen(told);
    const part = { loss: Number(told.loss.toFixed(3)) };
    if (told.rate_per_s) part.rate = Number(told.rate_per_s.toPrecision(3));
    if (told.service_s) part.service_ms = Number((1000 * told.service_s).toPrecision(3));
    change(part);
  };
  return html`
    <${Card} title="From a queue in use">
      <form class="pad" onSubmit=${look}>
        <p class="muted">Watches a queue for two seconds and sets the sliders to what it does. Right when receivers take one message at a time, and no other queue is read.</p>
        <div class="toolbar">
          <input name="queue" list="plan-queues" aria-label="Queue" placeholder="Queue" required autocomplete="off" />
          <datalist id="plan-queues">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
          <button class="secondary" aria-busy=${busy} disabled=${busy}>Watch</button>
        </div>
        ${seen && html`<p role="status">${seen.advice}</p>`}
      </form>
    <//>`;
}
