// The fabric: both rings, who serves and who copies what, and what the loss of a server would do.
import { html, signal, useEffect } from "../dom.js";
import { isAdmin, session } from "../calls.js";
import { bytes, count, scaled } from "../figures.js";
import { latest, wanted } from "../live.js";
import { Badge, Card, Empty, Page, Table } from "../parts.js";

const chosen = signal("");

const SIZE = 640;
const MIDDLE = SIZE / 2;
const RADII = [250, 108];
const SERVERS = 178;
// Above the outer ring nothing is drawn.
const MARGIN = 50;

export function Fabric() {
  const there = session.value.views.includes("fabric") && isAdmin();
  useEffect(() => { if (there) wanted.value = { fabric: "1" }; }, [there]);
  const seen = latest.value?.fabric;
  if (!there) return html`<${Page} title="Fabric"><${Explained} /><//>`;
  if (!seen) return html`<${Page} title="Fabric"><div class="waiting" aria-busy="true">Asking the nodes</div><//>`;
  if (seen.kind === "rings") return html`<${Page} title="Fabric" lead=${html`<${Verdict} seen=${seen} />`}><${RingsPage} seen=${seen} /><//>`;
  if (seen.kind === "masters") return html`<${Page} title="Fabric" lead=${seen.slots_missing ? `${count(seen.slots_missing)} slots are not served.` : "All slots are served."}><${Foreign} seen=${seen} /><//>`;
  return html`<${Page} title="Fabric"><p class="wrong" role="alert">${seen.problem}</p><${Nodes} nodes=${seen.nodes} /><//>`;
}

function Explained() {
  return html`
    <${Empty} title=${isAdmin() ? "These queues are not on a fabric" : "Only an admin sees the fabric"}>
      <p>A fabric keeps each message on three servers of a Redis or Valkey cluster, in two rings that run in opposite directions, so that losing a server loses nothing. To try one on this machine:</p>
      <pre><code>ringdove cluster up --servers 5 --dir fabric --detach${"\n"}ringdove serve --store redis://… --cluster fabric</code></pre>
    <//>`;
}

function Verdict({ seen }) {
  if (seen.ok) return html`<${Badge} tone="good">well<//> Every shard is served and every copy is in sync.`;
  if (seen.serving) return html`<${Badge} tone="warn">short of copies<//> Everything is served; some copies are missing or behind.`;
  return html`<${Badge} tone="bad">not serving<//> Some shards are served by nobody.`;
}

function RingsPage({ seen }) {
  const servers = Object.keys(seen.servers);
  const server = servers.includes(chosen.value) ? chosen.value : "";
  return html`
    <div class="fabric">
      <${Card} title="Rings"><${Drawing} seen=${seen} servers=${servers} server=${server} /><${Legend} /><//>
      <div>
        <${Card} title="Servers">
          <${Table} label="Servers" columns=${[{ key: "s", label: "Server" }, { key: "state", label: "State" }, { key: "m", label: "Serves", number: true }, { key: "c", label: "Copies", number: true }, { key: "a", label: "" }]}>
            ${servers.map((name) => html`<${Server} key=${name} name=${name} seen=${seen} chosen=${server === name} />`)}
          <//>
        <//>
        <${Card} title="If a server went away"><${Loss} seen=${seen} server=${server} /><//>
      </div>
    </div>
    <${Shards} seen=${seen} />
    <${Nodes} nodes=${seen.nodes} members=${seen.members} />`;
}

const choose = (name) => (chosen.value = chosen.value === name ? "" : name);

function Server({ name, seen, chosen: picked }) {
  const own = seen.members.filter((member) => member.server === name);
  const state = seen.servers[name];
  return html`
    <tr>
      <th scope="row">${name}</th>
      <td><${Badge} tone=${state === "up" ? "good" : state === "paused" ? "warn" : "bad"}>${state}<//></td>
      <td class="number">${own.filter((member) => member.state === "master").length}</td>
      <td class="number">${own.filter((member) => member.state === "copy").length}</td>
      <td class="number"><button class="quiet" aria-pressed=${picked} aria-label=${`What if ${name} went away`} onClick=${() => choose(name)}>What if</button></td>
    </tr>`;
}

function Loss({ seen, server }) {
  if (!server) return html`<p class="muted pad">Choose a server, in the drawing or above, to see who would take over what it serves.</p>`;
  const { moves, lost } = seen.losses[server];
  const moved = Object.entries(moves);
  return html`
    <div class="pad">
      ${lost.length ? html`<p class="wrong">Nobody could serve ${lost.join(", ")} until ${server} is back: no copy is in sync.</p>` : ""}
      ${moved.length
        ? html`<p>${server} serves ${moved.length} ${moved.length === 1 ? "shard" : "shards"}. Within seconds ${moved.map(([shard, heir]) => html`<span class="move" key=${shard}><b>${shard}</b> → ${heir}</span>`)}</p>`
        : !lost.length && html`<p>${server} serves nothing now${seen.servers[server] === "down" ? "; it is down" : ": nobody would notice"}.</p>`}
      ${!lost.length && seen.servers[server] !== "down" && html`<p class="muted">No message would be lost, and loose queues would go on at once on other shards.</p>`}
    </div>`;
}

// -- the drawing -----------------------------------------------------------------------------------

const at = (angle, radius) => [MIDDLE + radius * Math.sin(angle), MIDDLE - radius * Math.cos(angle)];

function Drawing({ seen, servers, server }) {
  const angle = (name) => (2 * Math.PI * servers.indexOf(name)) / servers.length;
  const places = new Map();
  for (const name of servers) {
    for (const ring of [1, 2]) {
      const own = seen.members.filter((member) => member.server === name && seen.homes[member.shard].ring === ring);
      const step = Math.min((ring === 1 ? 0.15 : 0.3), (0.8 * 2 * Math.PI) / servers.length / Math.max(1, own.length));
      own.forEach((member, i) => places.set(`${name}/${member.shard}`, { member, at: at(angle(name) + (i - (own.length - 1) / 2) * step, RADII[ring - 1]) }));
    }
  }
  const moves = server ? Object.entries(seen.losses[server].moves) : [];
  return html`
    <svg class="rings" viewBox=${`0 ${MARGIN} ${SIZE} ${SIZE - MARGIN - 30}`} role="group" aria-label=${`Two rings of ${servers.length} servers`}>
      <defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" /></marker></defs>
      ${[0, 1].map((ring) => html`<${Track} key=${ring} ring=${ring} direction=${seen.directions[ring]} count=${servers.length} />`)}
      ${moves.map(([shard, heir]) => html`<${Move} key=${shard} from=${places.get(`${server}/${shard}`)} to=${places.get(`${heir}/${shard}`)} />`)}
      ${servers.map((name) => html`<${Node} key=${name} name=${name} state=${seen.servers[name]} place=${at(angle(name), SERVERS)} picked=${server === name} />`)}
      ${[...places.values()].map(({ member, at: [x, y] }) => html`
        <g key=${`${member.server}/${member.shard}`} class="shard ${member.state}" transform=${`translate(${x} ${y})`}>
          <title>${member.shard} on ${member.server}: ${member.state}${member.lag_bytes ? `, ${bytes(member.lag_bytes)} behind` : ""}</title>
          <rect x="-16" y="-10" width="32" height="20" rx="10" /><text y="4">${member.shard}</text>
        </g>`)}
    </svg>`;
}

function Track({ ring, direction, count: servers }) {
  const radius = RADII[ring];
  const arrows = Array.from({ length: servers }, (_, i) => {
    const middle = (2 * Math.PI * (i + 0.5)) / servers;
    const [x, y] = at(middle, radius);
    return html`<path key=${i} class="arrow" d="M-5 -5L4 0L-5 5" transform=${`translate(${x} ${y}) rotate(${(middle * 180) / Math.PI + (direction > 0 ? 0 : 180)})`} />`;
  });
  return html`<g class="track"><circle cx=${MIDDLE} cy=${MIDDLE} r=${radius} />${arrows}<text x=${MIDDLE} y=${ring ? MIDDLE + 5 : MIDDLE + RADII[0] + 26}>ring ${ring + 1}</text></g>`;
}

function Node({ name, state, place: [x, y], picked }) {
  const press = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(name);
    }
  };
  return html`
    <g class="server ${state === "up" ? "up" : state === "paused" ? "paused" : "down"}" transform=${`translate(${x} ${y})`} role="button" tabindex="0"
       aria-pressed=${picked} aria-label=${`Server ${name}, ${state}`} onClick=${() => choose(name)} onKeyDown=${press}>
      <circle r="33" /><text class="name" y="2">${name}</text><text class="state" y="17">${state.length > 8 ? "partly" : state}</text>
    </g>`;
}

function Move({ from, to }) {
  if (!from || !to) return null;
  const bend = 0.55;
  const control = [0, 1].map((axis) => MIDDLE + ((from.at[axis] + to.at[axis]) / 2 - MIDDLE) * bend);
  return html`<path class="move" d=${`M${from.at}Q${control} ${to.at}`} marker-end="url(#head)" />`;
}

function Legend() {
  return html`
    <ul class="marks">
      ${[["master", "serves"], ["copy", "copy in sync"], ["behind", "behind"], ["down", "down"]].map(([state, text]) => html`<li key=${state}><i class="mark ${state}"></i>${text}</li>`)}
    </ul>`;
}

// -- tables ----------------------------------------------------------------------------------------

function Shards({ seen }) {
  const columns = [{ key: "s", label: "Shard" }, { key: "r", label: "Ring", number: true }, { key: "l", label: "Slots" }, { key: "m", label: "Served by" }, { key: "c", label: "Copies in sync" }, { key: "g", label: "Lag", number: true }];
  return html`
    <${Card} title="Shards">
      <${Table} label="Shards" columns=${columns}>
        ${seen.shards.map((shard) => html`
          <tr key=${shard.shard}>
            <th scope="row">${shard.shard}</th>
            <td class="number">${seen.homes[shard.shard].ring}</td>
            <td>${shard.first_slot} to ${shard.last_slot}</td>
            <td>${shard.master || html`<${Badge} tone="bad">nobody<//>`}</td>
            <td>${shard.copies.join(", ") || "none"}</td>
            <td class="number">${bytes(shard.lag_bytes)}</td>
          </tr>`)}
      <//>
    <//>`;
}

function Nodes({ nodes, members = [] }) {
  const known = Object.entries(nodes || {});
  if (!known.length) return null;
  const named = Object.fromEntries(members.map((member) => [member.address, `${member.server}/${member.shard}`]));
  return html`
    <${Card} title="As this server sees them">
      <${Table} label="Nodes" columns=${[{ key: "n", label: "Node" }, { key: "w", label: "Process" }, { key: "l", label: "Answers in", number: true }, { key: "x", label: "" }]}>
        ${known.map(([address, node]) => html`
          <tr key=${address}>
            <th scope="row" class="mono">${address}</th>
            <td>${named[address] || ""}</td>
            <td class="number">${scaled(node.latency_ms)} ms</td>
            <td>${node.excluded && html`<${Badge} tone="warn">left alone: slow or gone<//>`}</td>
          </tr>`)}
      <//>
    <//>`;
}

function Foreign({ seen }) {
  return html`
    <p class="muted">Somebody else made this cluster, or the server was not told where it is described: start it with <code>--cluster DIRECTORY</code> to see its rings.</p>
    <${Card} title="Masters">
      <${Table} label="Masters" columns=${[{ key: "m", label: "Master" }, { key: "s", label: "Slots", number: true }, { key: "c", label: "Copies" }, { key: "d", label: "" }]}>
        ${seen.masters.map((master) => html`
          <tr key=${master.master}><th scope="row" class="mono">${master.master}</th><td class="number">${count(master.slots)}</td><td class="mono">${master.copies.join(", ") || "none"}</td><td>${master.down && html`<${Badge} tone="bad">down<//>`}</td></tr>`)}
      <//>
    <//>
    <${Nodes} nodes=${seen.nodes} />`;
}
