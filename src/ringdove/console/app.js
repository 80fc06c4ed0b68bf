// The frame around the pages: signing in, the way around, and which page is shown.
import { effect, html, render, signal, useEffect, useState } from "./dom.js";
import { api, attempt, readSession, session, toast } from "./calls.js";
import { setTheme, theme } from "./chart.js";
import { count } from "./figures.js";
import { connected, history, latest, wanted } from "./live.js";
import { Rings, Toasts } from "./parts.js";
import { Accounts } from "./pages/accounts.js";
import { Fabric } from "./pages/fabric.js";
import { Overview } from "./pages/overview.js";
import { Pipeline } from "./pages/pipeline.js";
import { Planner } from "./pages/planner.js";
import { Queue } from "./pages/queue.js";
import { Queues } from "./pages/queues.js";
import { Tiers } from "./pages/tiers.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["queues", "Queues", Queues],
  ["fabric", "Fabric", Fabric],
  ["tiers", "Tiers", Tiers],
  ["planner", "Planner", Planner],
  ["pipeline", "Pipeline", Pipeline],
  ["accounts", "Accounts", Accounts],
];

const place = signal(location.hash);
addEventListener("hashchange", () => (place.value = location.hash));

// Pages that show more than totals say so when they are drawn; the others want nothing.
effect(() => {
  place.value;
  wanted.value = {};
});

function App() {
  if (session.value === null) return html`<div class="waiting" aria-busy="true">Loading</div>`;
  if (!session.value.signed_in) return html`<${SignIn} /><${Toasts} />`;
  const [, page = "overview", ...rest] = place.value.split("/");
  const name = rest.map(decodeURIComponent).join("/");
  const [, , Shown] = PAGES.find(([known]) => known === page) || PAGES[0];
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("h1")?.focus(); }}>To the content</a>
    <${Side} page=${page} />
    <main id="main">${page === "queues" && name ? html`<${Queue} key=${name} name=${name} />` : html`<${Shown} />`}</main>
    <${Toasts} />`;
}

function Side({ page }) {
  const { open, name, role, version } = session.value;
  const dark = theme.value === "dark";
  return html`
    <aside class="side">
      <a class="brand" href="#/overview"><${Rings} /><span>Ringdove</span></a>
      <nav aria-label="Pages">
        <ul>${PAGES.map(([key, label]) => html`
          <li key=${key}><a href=${`#/${key}`} aria-current=${page === key ? "page" : undefined}>${label}</a></li>`)}</ul>
      </nav>
      <div class="side-foot">
        <${Pulse} />
        <button class="quiet" onClick=${() => setTheme(dark ? "light" : "dark")} aria-label=${dark ? "Use the light theme" : "Use the dark theme"}>${dark ? "☀" : "☾"}<span> ${dark ? "Light" : "Dark"}</span></button>
        ${open
          ? html`<p class="who">Open to everybody on this machine</p>`
          : html`<p class="who"><b>${name}</b> · ${role}</p><button class="quiet" onClick=${signOut}>Sign out</button>`}
        <p class="who version">${version}</p>
      </div>
    </aside>`;
}

function Pulse() {
  const last = history.value.at(-1);
  const well = connected.value && latest.value;
  return html`
    <p class="pulse ${well ? "well" : "ill"}"><i aria-hidden="true"></i>
      ${well ? html`<span>${count(last?.waiting)} waiting</span>` : html`<span>Not connected</span>`}
    </p>`;
}

async function signOut() {
  await attempt(() => api("DELETE", "session"));
  await readSession();
}

function SignIn() {
  const [by, setBy] = useState(session.value.token ? "token" : "account");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => { document.title = "Sign in · Ringdove"; }, []);
  const submit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    setBusy(true);
    setWrong("");
    try {
      await api("POST", "session", given);
      await readSession();
    } catch (problem) {
      setWrong(problem.message);
      setBusy(false);
    }
  };
  return html`
    <main class="sign-in">
      <form class="card" onSubmit=${submit}>
        <${Rings} />
        <h1>Sign in to Ringdove</h1>
        ${session.value.token && html`
          <div class="choice" role="group" aria-label="How to sign in">
            ${[["token", "Server token"], ["account", "Account"]].map(([key, label]) => html`
              <button type="button" key=${key} class=${by === key ? "" : "secondary"} aria-pressed=${by === key} onClick=${() => { setBy(key); setWrong(""); }}>${label}</button>`)}
          </div>`}
        ${by === "token"
          ? html`<label>Token<input key="token" name="token" type="password" autocomplete="off" required autofocus /></label>`
          : html`<label>Account<input key="name" name="name" autocomplete="username" required autofocus /></label>
                 <label>Password<input key="password" name="password" type="password" autocomplete="current-password" required /></label>`}
        ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
        <button aria-busy=${busy} disabled=${busy}>Sign in</button>
        <p class="hint">A password for an account is set with <code>ringdove account password NAME</code>.</p>
      </form>
    </main>`;
}

addEventListener("unhandledrejection", (event) => toast(event.reason?.message || "Something went wrong.", "bad"));
render(html`<${App} />`, document.body);
readSession().catch((problem) => toast(problem.message, "bad"));
