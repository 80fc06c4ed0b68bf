import { html } from "../dom.js";
import { Page } from "../parts.js";
export const Fabric = () => html`<${Page} title="Fabric"><//>`;
