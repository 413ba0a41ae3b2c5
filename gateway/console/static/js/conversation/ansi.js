/** Output of commands: the colours of ANSI escape sequences as classes, everything else that a terminal would do as nothing. */

import { html } from "../preact.js";
import { visibleText } from "./safe-text.js";

// Operating system commands (titles, links, clipboard) and the like, with their text; then control sequences; then other escapes.
const STRINGS = /\u001b[\]PX^_][^\u0007\u001b]{0,65536}(?:\u0007|\u001b\\)?/g;
// No character is in two successive repetitions: else a long run of it would take the square of its length.
const SEQUENCE = /\u001b\[([0-9;:?<=>]*)[ -/]*([@-~]|$)|\u001b[ -/]*[0-~]?/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

function afterReturn(line) {
  let end = line.length;
  while (line[end - 1] === "\r") end -= 1;
  return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
}

/** What stands on the line after the last carriage return, and no character that was deleted by a backspace. */
function asPrinted(text) {
  let shown = text.includes("\r") ? text.split("\n").map(afterReturn).join("\n") : text;
  // Nested pairs, as of a deleted word, need as many rounds as it has letters.
  for (let round = 0; round < 100 && shown.includes("\u0008"); round += 1) shown = shown.replace(/(?:[^\n\u0008]|^)\u0008/gm, "");
  return shown;
}

/** The name of the basic colour that is nearest to one of the 256 colours. */
function basic(index) {
  if (index < 8) return NAMES[index];
  if (index < 16) return `bright-${NAMES[index - 8]}`;
  if (index >= 232) return index < 238 ? "black" : index < 244 ? "bright-black" : index < 250 ? "white" : "bright-white";
  const cube = index - 16;
  return ofRgb(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51);
}

function ofRgb(red, green, blue) {
  const most = Math.max(red, green, blue);
  if (most < 48) return "black";
  const bit = (value) => (value > most / 2 ? 1 : 0);
  const name = NAMES[bit(red) | (bit(green) << 1) | (bit(blue) << 2)];
  return most > 200 ? `bright-${name}` : name;
}

function select(style, codes) {
  const next = { ...style };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) for (const key of Object.keys(next)) delete next[key];
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.inverse = false;
    else if (code === 29) next.strike = false;
    else if (code >= 30 && code <= 37) next.fg = NAMES[code - 30];
    else if (code >= 40 && code <= 47) next.bg = NAMES[code - 40];
    else if (code >= 90 && code <= 97) next.fg = `bright-${NAMES[code - 90]}`;
    else if (code >= 100 && code <= 107) next.bg = `bright-${NAMES[code - 100]}`;
    else if (code === 39) next.fg = null;
    else if (code === 49) next.bg = null;
    else if (code === 38 || code === 48) {
      const colour = codes[at + 1] === 5 ? basic(codes[at + 2] & 255) : codes[at + 1] === 2 ? ofRgb(codes[at + 2], codes[at + 3], codes[at + 4]) : null;
      if (colour) next[code === 38 ? "fg" : "bg"] = colour;
      at += codes[at + 1] === 5 ? 2 : codes[at + 1] === 2 ? 4 : 0;
    }
  }
  return next;
}

function classesOf(style) {
  const flags = ["bold", "dim", "italic", "underline", "inverse", "strike"].filter((flag) => style[flag]);
  return [...flags.map((flag) => `ansi-${flag}`), style.fg && `ansi-${style.fg}`, style.bg && `ansi-on-${style.bg}`].filter(Boolean).join(" ");
}

/** The runs of text of one style: `[{text, classes}]`. */
export function ansiRuns(text) {
  const given = asPrinted(String(text ?? "").replace(STRINGS, ""));
  if (!given.includes("\u001b")) return given ? [{ text: visibleText(given), classes: "" }] : [];
  const runs = [];
  let style = {};
  let from = 0;
  const push = (until) => {
    if (until > from) runs.push({ text: visibleText(given.slice(from, until)), classes: classesOf(style) });
  };
  for (const found of given.matchAll(SEQUENCE)) {
    push(found.index);
    from = found.index + found[0].length;
    if (found[2] === "m") style = select(style, found[1] === "" ? [0] : found[1].split(/[;:]/).map(Number));
  }
  push(given.length);
  return runs;
}

/** The text without any escape sequence. */
export function withoutAnsi(text) {
  return ansiRuns(text).map((run) => run.text).join("");
}

export function Ansi({ text }) {
  return ansiRuns(text).map((run) => (run.classes ? html`<span class=${run.classes}>${run.text}</span>` : run.text));
}
