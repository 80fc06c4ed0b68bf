// Pieces that several pages are made of.
import { html, useEffect, useRef, useState } from "./dom.js";
import { dismiss, toasts } from "./calls.js";
import { Spark } from "./chart.js";

export function Page({ title, children, actions, lead }) {
  const heading = useRef();
  useEffect(() => {
    document.title = `${title} · Ringdove`;
    heading.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [title]);
  return html`
    <header class="page-head">
      <div><h1 tabindex="-1" ref=${heading}>${title}</h1>${lead && html`<p class="lead">${lead}</p>`}</div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}`;
}

export function Card({ title, children, actions, className = "", id }) {
  return html`
    <section class="card ${className}" id=${id}>
      ${title && html`<header class="card-head"><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>`}
      ${children}
    </section>`;
}

export function Tile({ label, value, note, values, colour, tone = "" }) {
  return html`
    <div class="tile ${tone}">
      <span class="tile-label">${label}</span>
      <span class="tile-value">${value}</span>
      <span class="tile-note">${note || " "}</span>
      ${values && html`<${Spark} values=${values} width=${160} height=${28} colour=${colour} />`}
    </div>`;
}

export function Empty({ title, children, action }) {
  return html`<div class="empty"><${Rings} /><p class="empty-title">${title}</p><div>${children}</div>${action}</div>`;
}

export function Rings() {
  return html`
    <svg class="rings-mark" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="12.6" stroke-dasharray="62 17.2" transform="rotate(-62 16 16)" />
      <circle cx="16" cy="16" r="7.4" stroke-dasharray="36 10.5" transform="rotate(118 16 16)" />
      <circle class="eye" cx="16" cy="16" r="2.2" />
    </svg>`;
}

export const Badge = ({ children, tone = "" }) => html`<span class="badge ${tone}">${children}</span>`;

export function Dialog({ title, children, onClose, wide }) {
  const box = useRef();
  useEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const name = `dialog-${title.replace(/\W+/g, "-")}`;
  return html`
    <dialog ref=${box} aria-labelledby=${name} onCancel=${(event) => { event.preventDefault(); onClose(); }}>
      <article class=${wide ? "wide" : ""}>
        <header class="dialog-head">
          <h2 id=${name}>${title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button>
        </header>
        ${children}
      </article>
    </dialog>`;
}

// Asks for the name of what is about to be lost.
export function Confirm({ title, name, verb, children, onDone, onClose }) {
  const [typed, setTyped] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (typed === name) onDone();
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <form onSubmit=${submit}>
        <p>${children}</p>
        <label>Type <code>${name}</code> to confirm
          <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" spellcheck=${false} autofocus />
        </label>
        <footer class="actions end">
          <button type="button" class="secondary" onClick=${onClose}>Cancel</button>
          <button class="danger" disabled=${typed !== name}>${verb}</button>
        </footer>
      </form>
    <//>`;
}

export function Field({ label, hint, children, id }) {
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${children}
      ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
    </div>`;
}

export function Toasts() {
  return html`
    <div class="toasts" role="status" aria-live="polite">
      ${toasts.value.map((one) => html`
        <div class="toast ${one.kind}" key=${one.id}>
          <span>${one.text}</span>
          <button class="quiet" aria-label="Dismiss" onClick=${() => dismiss(one.id)}>✕</button>
        </div>`)}
    </div>`;
}

// A table with a heading row; columns: [{key, label, number, sort}].
export function Table({ label, columns, children, sort, onSort }) {
  return html`
    <div class="table-box" role="region" aria-label=${label} tabindex="0">
      <table>
        <thead><tr>${columns.map((column) => html`
          <th scope="col" key=${column.key} class=${column.number ? "number" : ""} aria-sort=${column.sort && sort === column.sort ? (column.sort === "name" ? "ascending" : "descending") : undefined}>
            ${column.sort ? html`<button type="button" class="sorter" onClick=${() => onSort(column.sort)}>${column.label}${sort === column.sort ? html`<span aria-hidden="true"> ${column.sort === "name" ? "↑" : "↓"}</span>` : ""}</button>` : column.label || html`<span class="unseen">Actions</span>`}
          </th>`)}</tr></thead>
        <tbody>${children}</tbody>
      </table>
    </div>`;
}
