// What every part of the page is made with.
import { h } from "preact";
import htm from "htm";

export { render } from "preact";
export { useEffect, useMemo, useRef, useState } from "preact/hooks";
export { signal, computed, effect, batch } from "@preact/signals";

export const html = htm.bind(h);
