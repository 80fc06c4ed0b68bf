import { html } from "../dom.js";
import { Page } from "../parts.js";
export const Pipeline = () => html`<${Page} title="Pipeline"><//>`;
