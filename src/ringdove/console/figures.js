// Numbers as people read them, and back.
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${scaled(value / 1e6)} M`;
  return short.format(value);
}

export function scaled(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 0.01) return value.toPrecision(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size === 0 ? 0 : 2).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${scaled(value / 1e6)} M/s`;
  if (value >= 1e4) return `${scaled(value / 1e3)} k/s`;
  return `${value >= 100 ? count(value) : scaled(value)}/s`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${scaled(value)} ${UNITS[unit]}`;
}

const SPANS = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000], ["ms", 1]];
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0 s";
  if (ms < 1) return `${scaled(ms)} ms`;
  const [unit, size] = SPANS.find(([, size]) => ms >= size) || SPANS.at(-1);
  return `${scaled(ms / size)} ${unit}`;
}

export function age(at_ms, now_ms) {
  return at_ms ? duration(Math.max(0, now_ms - at_ms)) : "–";
}

export function time(at_ms) {
  const date = new Date(at_ms);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
}

// 30s, 5 min, 4d or plain milliseconds; undefined when it is none of these.
export function readDuration(text) {
  const match = /^\s*([\d.]+)\s*(ms|s|min|m|h|d)?\s*$/.exec(text);
  if (!match) return undefined;
  const size = { ms: 1, s: 1000, m: 60000, min: 60000, h: 3600000, d: 86400000 }[match[2] || "ms"];
  return Math.round(Number(match[1]) * size);
}

export function readBytes(text) {
  const match = /^\s*([\d.]+)\s*([KMGTP]i?)?B?\s*$/i.exec(text);
  if (!match) return undefined;
  const power = match[2] ? "KMGTP".indexOf(match[2][0].toUpperCase()) + 1 : 0;
  return Math.round(Number(match[1]) * 1024 ** power);
}
