// Tiers: brokers near the devices feed those above them; drawn as a tree.
import { html, signal, useEffect } from "../dom.js";
import { call } from "../calls.js";
import { count, duration, rate, time } from "../figures.js";
import { Badge, Card, Empty, Page } from "../parts.js";

const PERIOD_MS = 2000;
const seen = signal(null);

// Only a manager of tiers serves them; its description of itself says whether it is one.
let manages;
async function look() {
  try {
    manages ??= "/v1/tiers" in (await call("GET", "/v1/openapi.json")).paths;
    seen.value = manages ? await call("GET", "/v1/tiers") : { brokers: [], alarms: [] };
  } catch (problem) {
    seen.value = { brokers: [], alarms: [], problem };
  }
}

export function Tiers() {
  useEffect(() => {
    look();
    const timer = setInterval(look, PERIOD_MS);
    return () => clearInterval(timer);
  }, []);
  const told = seen.value;
  if (!told) return html`<${Page} title="Tiers"><div class="waiting" aria-busy="true">Loading</div><//>`;
  if (!told.brokers.length) return html`<${Page} title="Tiers"><${Explained} problem=${told.problem} /><//>`;
  const roots = told.brokers.filter((broker) => !told.brokers.some((other) => feeds(other, broker)));
  return html`
    <${Page} title="Tiers" lead=${`${count(told.brokers.length)} brokers`}>
      ${told.alarms.length > 0 && html`
        <${Card} title="Alarms"><ul class="alarms">${told.alarms.map((alarm) => html`<${Alarm} key=${`${alarm.kind}/${alarm.broker}/${alarm.queue}`} alarm=${alarm} />`)}</ul><//>`}
      <${Card} title="Brokers"><ul class="tree">${roots.map((broker) => html`<${Branch} key=${broker.name} broker=${broker} all=${told.brokers} />`)}</ul><//>
    <//>`;
}

// A broker says by name or by address from whom it pulls.
const feeds = (upper, broker) => upper !== broker && broker.upstream && [upper.name, upper.url].includes(broker.upstream);
const TONES = { up: "good", standby: "", away: "warn", full: "warn" };

function Alarm({ alarm }) {
  const over = alarm.cleared_ms > 0;
  return html`
    <li class=${over ? "muted" : ""}>
      <${Badge} tone=${over ? "" : "bad"}>${alarm.kind}<//> ${alarm.text || `${alarm.broker} ${alarm.queue}`}
      <span class="muted"> ${alarm.raised_ms ? `since ${time(alarm.raised_ms)}` : ""}${over ? `, over since ${time(alarm.cleared_ms)}` : ""}</span>
    </li>`;
}

function Branch({ broker, all }) {
  const below = all.filter((other) => feeds(broker, other));
  const tone = TONES[broker.state] ?? "bad";
  return html`
    <li>
      <div class="broker ${tone === "bad" ? "ill" : ""}">
        <b>${broker.name}</b> <${Badge} tone=${tone}>${broker.state}<//>
        <span class="muted">level ${broker.level}${broker.region ? `, ${broker.region}` : ""}</span>
        <span class="broker-figures">${rate(broker.rate)} <span class="muted">lag ${duration(1000 * (broker.lag || 0))}${broker.behind ? `, ${count(broker.behind)} messages` : ""}</span></span>
      </div>
      ${below.length > 0 && html`<ul>${below.map((other) => html`<${Branch} key=${other.name} broker=${other} all=${all} />`)}</ul>`}
    </li>`;
}

function Explained({ problem }) {
  const refused = problem && problem.status !== 404;
  return html`
    <${Empty} title=${refused ? "The tiers cannot be shown" : "There are no tiers"}>
      ${refused ? html`<p>${problem.message}</p>` : html`
        <p>Tiers put small brokers near the devices. They take messages although the way up is cut, and pass them on, region by region, to the brokers above them. When brokers of a hierarchy report here, they are shown as a tree, with their rates, how far they lag, and what is wrong.</p>`}
    <//>`;
}
