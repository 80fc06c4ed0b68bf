// Asks the server: REST for queues and messages, /console/api for the rest.
import { signal } from "./dom.js";

// Who is signed in; null until the server has said.
export const session = signal(null);

// Messages to the user: {id, text, kind}.
export const toasts = signal([]);

export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || `The server answered ${status}.`);
    this.status = status;
    this.code = told.code;
  }
}

export async function call(method, path, body, query) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== undefined && value !== "" && value !== null) url.searchParams.set(name, value);
  }
  const headers = {};
  if (method !== "GET") headers["X-Ringdove-Csrf"] = session.value?.csrf || "";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, { detail: "The server does not answer." });
  }
  const text = await response.text();
  let told = {};
  try {
    told = text ? JSON.parse(text) : {};
  } catch {
    told = { detail: text };
  }
  if (response.ok) return told;
  if ((response.status === 401 || response.status === 403) && !path.endsWith("/session")) await readSession();
  throw new Problem(response.status, told);
}

export const api = (method, path, body, query) => call(method, `/console/api/${path}`, body, query);
export const queuePath = (name, rest = "") => `/v1/queues/${encodeURIComponent(name)}${rest}`;

export async function readSession() {
  session.value = await api("GET", "session");
}

let last = 0;
export function toast(text, kind = "good") {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-3), { id, text, kind }];
  setTimeout(() => dismiss(id), kind === "bad" ? 12000 : 4000);
}
export function dismiss(id) {
  toasts.value = toasts.value.filter((known) => known.id !== id);
}

// Does something that may fail; a failure is told in the server's own words.
export async function attempt(act, done) {
  try {
    const result = await act();
    if (done) toast(typeof done === "function" ? done(result) : done);
    return result;
  } catch (problem) {
    toast(problem.message, "bad");
    return undefined;
  }
}

export const mayChange = () => session.value && session.value.role !== "viewer";
export const isAdmin = () => session.value?.role === "admin";
