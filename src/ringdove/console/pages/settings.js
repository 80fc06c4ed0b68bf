// The form for a queue's settings. What each one means comes from the server, where it is said once.
import { html, signal, useEffect, useState } from "../dom.js";
import { api, attempt, call, queuePath, session } from "../calls.js";
import { bytes, duration, readBytes, readDuration } from "../figures.js";
import { Dialog, Field } from "../parts.js";

// How they are grouped; what is not named here comes last.
const GROUPS = [
  ["Promise", ["order", "delivery", "durability", "stripes"]],
  ["Failures", ["receives_max", "dead_letter", "backoff_ms", "backoff_ms_max"]],
  ["Time", ["lease_ms", "delay_ms", "retention_ms", "keep_done_ms", "dedup_ms"]],
  ["Limits", ["bytes_max", "when_full", "body_bytes_max", "receive_rate_max", "priority"]],
  ["Receiving", ["dequeue", "dequeue_tries", "dequeue_pause_ms", "spread"]],
  ["On a fabric", ["copies", "when_short"]],
  ["In tiers", ["relay_done", "relayed"]],
];

const known = signal(null);
export async function loadSettings() {
  if (!known.value) known.value = await api("GET", "settings");
  return known.value;
}

const isDuration = (name) => name.endsWith("_ms") || name.endsWith("_ms_max");
const isBytes = (name) => name.endsWith("bytes_max");
const isSwitch = (setting) => typeof setting.default === "boolean";
const wordsOf = (setting) => (isSwitch(setting) ? ["false", "true"] : setting.words);

export function show(name, value) {
  if (value === null || value === undefined) return "";
  if (name === "notes") return Object.entries(value).map(([key, text]) => `${key}=${text}`).join("\n");
  if (isDuration(name)) return duration(value).replace(" ", "");
  if (isBytes(name)) return bytes(value).replace(" ", "");
  return String(value);
}

// The value of what was typed; throws with a reason.
function read(setting, text) {
  const { name } = setting;
  text = text.trim();
  if (name === "notes") return readNotes(text);
  if (text === "") return setting.default;
  if (isSwitch(setting)) return text === "true";
  if (setting.words.length || name === "dead_letter") return text;
  if (name === "spread" && !/^\d+$/.test(text)) return text;
  const value = isDuration(name) ? readDuration(text) : isBytes(name) ? readBytes(text) : Number(text);
  if (value === undefined || Number.isNaN(value)) throw new Error(`${name} cannot be read: ${text}`);
  return value;
}

function readNotes(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`A note is written name=text: ${line}`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

// Makes a queue, or changes the one given with its settings.
export function QueueForm({ queue, onClose, onDone }) {
  const [wrong, setWrong] = useState("");
  useEffect(() => { attempt(loadSettings); }, []);
  if (!known.value) return null;
  const settings = known.value;

  const submit = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      const given = new FormData(event.target);
      const name = queue?.name || `${session.value.prefix || ""}${given.get("name").trim()}`;
      const before = queue ? queue.settings : Object.fromEntries(settings.map((one) => [one.name, one.default]));
      const chosen = {};
      for (const one of settings) {
        const typed = given.get(one.name);
        if (typed === null || typed === show(one.name, before[one.name])) continue;
        chosen[one.name] = read(one, typed);
      }
      await call(queue ? "PATCH" : "PUT", queuePath(name), chosen);
      onDone(name);
    } catch (problem) {
      setWrong(problem.message);
    }
  };

  const grouped = GROUPS.flatMap(([, names]) => names);
  const rest = settings.map((one) => one.name).filter((name) => !grouped.includes(name));
  return html`
    <${Dialog} wide title=${queue ? `Settings of ${queue.name}` : "New queue"} onClose=${onClose}>
      <form onSubmit=${submit}>
        ${!queue && html`
          <${Field} label="Name" id="set-name" hint="1 to 96 letters, digits, '_', '-' or '.'.">
            <input id="set-name" name="name" required maxlength="96" autocomplete="off" spellcheck=${false} aria-describedby="set-name-hint" autofocus />
          <//>`}
        ${[...GROUPS, ["More", rest]].map(([title, names], i) => html`
          <details key=${title} class="group" open=${i === 0}>
            <summary>${title}</summary>
            <div class="fields">
              ${names.map((name) => html`<${Setting} key=${name} setting=${settings.find((one) => one.name === name)} value=${queue ? queue.settings[name] : undefined} editing=${!!queue} />`)}
            </div>
          </details>`)}
        ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
        <footer class="actions end">
          <button type="button" class="secondary" onClick=${onClose}>Cancel</button>
          <button>${queue ? "Save" : "Make the queue"}</button>
        </footer>
      </form>
    <//>`;
}

function Setting({ setting, value, editing }) {
  const { name, text, shaping } = setting;
  const words = wordsOf(setting);
  const id = `set-${name}`;
  const shown = show(name, value === undefined ? setting.default : value);
  const more = [
    shaping && editing && "Can change only while the queue is empty, if at all.",
    isDuration(name) && "For example 500ms, 30s, 5min, 4d.",
    isBytes(name) && "For example 64KiB, 10GiB.",
    setting.default === null && "Empty: none.",
  ].filter(Boolean).join(" ");
  const input = words.length
    ? html`<select id=${id} name=${name} aria-describedby=${`${id}-hint`}>${words.map((word) => html`<option key=${word} value=${word} selected=${word === shown}>${word}</option>`)}</select>`
    : name === "notes"
      ? html`<textarea id=${id} name=${name} rows="2" placeholder="name=text" aria-describedby=${`${id}-hint`} defaultValue=${shown}>${shown}</textarea>`
      : html`<input id=${id} name=${name} defaultValue=${shown} autocomplete="off" spellcheck=${false} aria-describedby=${`${id}-hint`} />`;
  return html`<${Field} label=${name} id=${id} hint=${`${text} ${more}`}>${input}<//>`;
}
