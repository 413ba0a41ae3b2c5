import { html } from "./preact.js";
import { Dialog } from "./ui/index.js";
export function Search({ onClose }) {
  return html`<${Dialog} title="Search" onClose=${onClose}>…</${Dialog}>`;
}
export const Switcher = Search;
