import { html } from "../dom.js";
import { Page } from "../parts.js";
export const Tiers = () => html`<${Page} title="Tiers"><//>`;
