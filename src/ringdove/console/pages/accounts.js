import { html } from "../dom.js";
import { Page } from "../parts.js";
export const Accounts = () => html`<${Page} title="Accounts"><//>`;
