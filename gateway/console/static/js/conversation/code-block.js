/** Blocks of code: their language, a copy button, and colours once they are complete. */

import DOMPurify from "../../vendor/dompurify.js";
import { copyText } from "../ui/button.js";

const MAX_HIGHLIGHTED = 60_000;
const ALIASES = { zsh: "bash", console: "shell", vue: "xml", make: "makefile", json5: "json", jsonl: "json" };
const OF_ENDING = { js: 1, mjs: "js", cjs: "js", ts: 1, tsx: 1, jsx: 1, py: 1, pyi: "py", sh: 1, bash: 1, c: 1, h: 1, cc: "cpp", cpp: 1, hpp: 1, cs: 1, html: 1,
  svg: 1, xml: 1, css: 1, json: 1, yml: 1, yaml: 1, toml: 1, ini: 1, cfg: "ini", rs: 1, rb: 1, kt: 1, go: 1, md: 1, diff: 1, patch: 1, java: 1, php: 1, sql: 1 };

let library = null;

/** highlight.js, which is loaded with the first block of code. */
function highlighter() {
  library ??= import("../../vendor/highlight.js").then(
    (module) => module.default,
    () => null,
  );
  return library;
}

/** The language of a file by its name; null if it is none that is known. */
export function languageOfPath(path) {
  const name = String(path ?? "").split("/").pop() ?? "";
  if (/^dockerfile/i.test(name)) return "dockerfile";
  if (/^makefile/i.test(name)) return "makefile";
  const ending = name.includes(".") ? name.split(".").pop().toLowerCase() : "";
  const found = OF_ENDING[ending];
  return found === 1 ? ending : (found ?? null);
}

function languageName(given) {
  const name = String(given ?? "").trim().split(/[\s,{:]/)[0].toLowerCase();
  return ALIASES[name] ?? name;
}

/** Replaces the text of a `code` element by coloured text, if its language is known. It never fails: else it stays as it is. */
export async function highlight(code, language) {
  const source = code.textContent;
  const name = languageName(language);
  if (!name || source.length > MAX_HIGHLIGHTED) return;
  const hljs = await highlighter();
  if (!hljs?.getLanguage(name) || code.textContent !== source) return;
  const marked = hljs.highlight(source, { language: name, ignoreIllegals: true }).value;
  const clean = DOMPurify.sanitize(marked, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true });
  if (clean.textContent === source) code.replaceChildren(clean);
}

const waiting = new Map();
const near = new IntersectionObserver(
  (seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      highlight(target, waiting.get(target));
      waiting.delete(target);
    }
  },
  { rootMargin: "400px" },
);

/** Highlights a block when it is near the visible part of the page. */
export function highlightWhenNear(code, language) {
  if (!languageName(language)) return;
  waiting.set(code, language);
  near.observe(code);
}

/** The element of a block: `{figure, code}`, in which `code` takes the text. */
export function codeFigure(language) {
  const figure = document.createElement("figure");
  figure.className = "code";
  const bar = figure.appendChild(document.createElement("figcaption"));
  const name = bar.appendChild(document.createElement("span"));
  name.className = "code-language";
  name.textContent = language || "";
  const copy = bar.appendChild(document.createElement("button"));
  copy.type = "button";
  copy.className = "code-copy";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", language ? `Copy ${language} code` : "Copy code");
  const pre = figure.appendChild(document.createElement("pre"));
  pre.tabIndex = 0;
  pre.dir = "ltr";
  pre.setAttribute("aria-label", language ? `${language} code` : "Code");
  pre.setAttribute("role", "region");
  const code = pre.appendChild(document.createElement("code"));
  return { figure, code, name };
}

/** A click in text that has blocks of code: copies the block whose button it is. */
export async function onCodeClick(event) {
  const button = event.target.closest?.(".code-copy");
  if (!button) return;
  try {
    await copyText(button.closest("figure").querySelector("code").textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 1500);
}
