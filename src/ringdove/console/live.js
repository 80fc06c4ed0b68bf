// The live stream: one for the page that is shown, and what it told before.
import { effect, signal } from "./dom.js";
import { readSession, session, toast } from "./calls.js";

// How many seconds are remembered.
const KEPT = 600;
// Seconds over which delays are judged.
const WINDOW = 10;
// Milliseconds before a stream that was refused is asked for again.
const RETRY_MS = 2000;

// The last snapshot, and whether the stream is well.
export const latest = signal(null);
export const connected = signal(false);

// What the page that is shown wants besides totals.
export const wanted = signal({});

// Points of the overview's charts, oldest first.
export const history = signal([]);

// Points of single queues: {t, waiting, leased, sent, done}.
const tracks = new Map();

let source = null;
let asked = "";
let before = null;
const delays = [];

effect(() => {
  const open = session.value?.signed_in;
  const query = new URLSearchParams({ totals: "1" });
  for (const [name, value] of Object.entries(wanted.value)) if (value) query.set(name, value);
  const next = open ? query.toString() : "";
  if (next === asked) return;
  asked = next;
  source?.close();
  source = null;
  if (next) listen(next);
});

function listen(query) {
  const mine = new EventSource(`/console/api/live?${query}`);
  source = mine;
  mine.onopen = () => (connected.value = true);
  mine.onerror = () => {
    connected.value = false;
    // A browser does not come back by itself from a refusal, as of a server that has just begun.
    if (mine.readyState === EventSource.CLOSED) {
      setTimeout(() => comeBack(mine, query), RETRY_MS);
    }
  };
  mine.addEventListener("ended", () => {
    mine.close();
    asked = "";
    readSession();
  });
  mine.addEventListener("problem", (event) => toast(JSON.parse(event.data), "bad"));
  mine.onmessage = (event) => source === mine && take(JSON.parse(event.data));
}

async function comeBack(mine, query) {
  await readSession().catch(() => {});
  if (source === mine) listen(query);
}

function take(snapshot) {
  const rows = { ...snapshot.totals?.deepest, ...snapshot.queues };
  for (const [name, row] of Object.entries(rows)) note(name, snapshot.at_ms, row);
  history.value = [...history.value.slice(1 - KEPT), point(snapshot)];
  before = snapshot;
  latest.value = snapshot;
}

function point(snapshot) {
  const { totals, server } = snapshot;
  const seconds = before ? (snapshot.at_ms - before.at_ms) / 1000 : 0;
  const grown = (get) => {
    const was = before && get(before);
    const is = get(snapshot);
    return seconds > 0 && was !== undefined && is !== undefined && is >= was ? (is - was) / seconds : null;
  };
  const made = {
    t: snapshot.at_ms / 1000,
    waiting: totals.waiting,
    leased: totals.leased,
    sent: grown((s) => (s.server ? s.server.appended_messages : s.totals?.sent)),
    delivered: grown((s) => s.server?.delivered_messages),
    requests: grown((s) => s.server && s.server.requests + s.server.http_requests),
    errors: grown((s) => s.server && s.server.http_refused + s.server.connections_refused),
    cpu: grown((s) => s.server?.cpu_seconds),
    p50: null,
    p99: null,
  };
  if (server) {
    delays.push(server.delays);
    if (delays.length > WINDOW) delays.shift();
    const fresh = delays.at(-1).map((value, i) => value - delays[0][i]);
    if (fresh.every((value) => value >= 0)) {
      made.p50 = percentile(fresh, 0.5);
      made.p99 = percentile(fresh, 0.99);
    } else delays.length = 0;
  }
  return made;
}

// Counts by powers of two of a millisecond; within one, as if they were spread evenly.
function percentile(counts, share) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  let left = share * total;
  for (let power = 0; power < counts.length; power += 1) {
    if (counts[power] >= left && counts[power]) {
      const low = power === 0 ? 0 : 2 ** (power - 1);
      return low + (left / counts[power]) * (2 ** power - low);
    }
    left -= counts[power];
  }
  return 2 ** counts.length;
}

function note(name, at_ms, row) {
  const done = row.sent - row.waiting - row.leased - row.delayed;
  const track = tracks.get(name) || [];
  const t = at_ms / 1000;
  if (track.at(-1)?.t === t) return;
  track.push({ t, waiting: row.waiting, leased: row.leased, sent: row.sent, done });
  if (track.length > KEPT) track.shift();
  if (tracks.size > 500) tracks.delete(tracks.keys().next().value);
  tracks.set(name, track);
}

export const track = (name) => tracks.get(name) || [];

// Messages per second in and out of a queue, over the last few seconds.
export function pace(name) {
  const points = track(name).slice(-4);
  if (points.length < 2) return { in: null, out: null };
  const [first, last] = [points[0], points.at(-1)];
  const seconds = last.t - first.t;
  return { in: Math.max(0, last.sent - first.sent) / seconds, out: Math.max(0, last.done - first.done) / seconds };
}
