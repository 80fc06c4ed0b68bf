// Dead letters: why each died, and the way back.
import { html, useEffect, useState } from "../dom.js";
import { attempt, call, mayChange, queuePath } from "../calls.js";
import { count, time } from "../figures.js";
import { latest, wanted } from "../live.js";
import { Card, Table } from "../parts.js";
import { Body, bodyOf } from "./messages.js";

const SHOWN = 20;
const COLUMNS = [
  { key: "offset", label: "Place" },
  { key: "died", label: "Died" },
  { key: "from", label: "From" },
  { key: "reason", label: "Reason" },
  { key: "receives", label: "Receives", number: true },
  { key: "body", label: "Body" },
];

const told = (message, name) => message.attributes?.[`ringdove.dead.${name}`];

// Of the queue that takes dead letters; of that queue itself, its own messages.
export function DeadLetters({ name, settings, stats }) {
  const [letters, setLetters] = useState(null);
  const place = settings.dead_letter || name;
  const subscription = place === name ? stats && Object.keys(stats.subscriptions)[0] : "default";
  // A queue without letters is no place for them, and need not be looked at again.
  const worth = settings.dead_letter || letters === null || letters.length > 0;
  const depth = worth && latest.value?.queues?.[place]?.waiting;
  const load = () => call("GET", queuePath(place, "/peek"), undefined, { max: SHOWN, subscription }).then(({ messages }) => setLetters(messages.filter((one) => told(one, "reason"))), () => setLetters([]));
  useEffect(() => { wanted.value = { queue: name, queues: [...new Set([name, place])].join(",") }; }, [place]);
  useEffect(() => { if (worth && subscription) load(); }, [place, depth, subscription]);
  const redrive = (most) => attempt(
    () => call("POST", queuePath(place, "/redrive"), { max: most }),
    ({ moved }) => `${count(moved)} ${moved === 1 ? "message is" : "messages are"} back.`,
  ).then(load);

  if (!settings.dead_letter && !letters?.length) return null;
  const actions = mayChange() && letters?.length > 0 && html`
    <button class="secondary" onClick=${() => redrive(1)}>Redrive one</button>
    <button class="secondary" onClick=${() => redrive(10000)}>Redrive all</button>`;
  return html`
    <${Card} title="Dead letters" id="dead" actions=${actions}>
      ${letters?.length ? html`
        <p class="muted pad">${settings.dead_letter ? html`In <a href=${`#/queues/${encodeURIComponent(place)}`}>${place}</a>. ` : ""}Redriving sends messages back to where they came from, the oldest first.</p>
        <${Table} label="Dead letters" columns=${COLUMNS}>
          ${letters.map((message) => html`
            <tr key=${`${message.stripe}.${message.offset}`}>
              <th scope="row" class="mono">${message.stripe}/${message.offset}</th>
              <td>${time(told(message, "at_ms"))}</td>
              <td>${told(message, "queue")}</td>
              <td>${told(message, "reason")}</td>
              <td class="number">${told(message, "receives")}</td>
              <td><${Body} text=${bodyOf(message)} /></td>
            </tr>`)}
        <//>`
        : html`<p class="muted pad">None. Messages that ${settings.receives_max ? `are received ${count(settings.receives_max)} times without acknowledgement` : "are buried"} go to <a href=${`#/queues/${encodeURIComponent(place)}`}>${place}</a>, with the reason.</p>`}
    <//>`;
}
