import { html } from "../dom.js";
import { Page } from "../parts.js";
export const Planner = () => html`<${Page} title="Planner"><//>`;
