/**
 * Untrusted Markdown as elements. While a message is streamed, each delta is appended by streaming-markdown; a complete one is parsed by
 * marked and cleaned by DOMPurify. Both give the same elements. HTML in it is text, links lead to http(s) and mailto only, and images are
 * shown only from `data:` addresses: the page requests nothing from other hosts.
 */

import DOMPurify from "../../vendor/dompurify.js";
import { Marked } from "../../vendor/marked.js";
import * as smd from "../../vendor/streaming-markdown.js";
import { Component, html } from "../preact.js";
import { codeFigure, highlightWhenNear, onCodeClick } from "./code-block.js";
import { visibleText } from "./safe-text.js";

const MAX_SHOWN = 100_000;
const LONG = 50_000;
const SLICE = 1_000;
const SLICE_TIME = 8;
const MAX_SLICE_TIME = 60;
const LINK = /^(?:https?:\/\/|mailto:)[^\s]+$/i;
const DATA_IMAGE = /^data:image\/(?:png|jpe?g|gif|webp|avif|bmp);base64,[a-z0-9+/=\s]+$/i;

/** The address if a link may lead there, else null. */
export function safeLink(address) {
  const given = String(address ?? "").trim();
  return LINK.test(given) ? given : null;
}

/** Whether an image with this address is shown, and not a link to it. */
export function isShownImage(address) {
  return DATA_IMAGE.test(String(address ?? ""));
}

function prepareLink(anchor, address) {
  const href = safeLink(address);
  if (!href) return;
  anchor.setAttribute("href", href);
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  anchor.title = href;
}

/** An image, or what stands for one that is not shown: a link to it, or its text. */
function imageElement(address, alt) {
  const text = alt || "image";
  if (isShownImage(address)) {
    const image = document.createElement("img");
    image.src = String(address).replace(/\s/g, "");
    image.alt = text;
    return image;
  }
  if (safeLink(address)) {
    const anchor = document.createElement("a");
    prepareLink(anchor, address);
    anchor.className = "image-link";
    anchor.textContent = `Image: ${text}`;
    return anchor;
  }
  return document.createTextNode(`[image: ${text}]`);
}

// -- complete messages ------------------------------------------------------------------------------------------------------

const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html({ text }) {
      return escaped(text);
    },
    image({ href, text }) {
      return `<img src="${escaped(href ?? "")}" alt="${escaped(text ?? "")}">`;
    },
  },
});

const CLEAN = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "input", "li", "ol", "p", "pre",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", "src", "alt", "class", "start", "checked", "disabled", "type", "align"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// Marked takes the square of the length of these: 90 s for 100,000 spaces. Text does not have them, so they are shown as they are.
const SLOW = /[ \t]{300}|(?:^|[^\w.!#$%&'*+/=?`{|}~-])[\w.!#$%&'*+/=?`{|}~-]{300,}@|>(?: ?>){60}/m;
const LONG_LINE = 10_000;

/** Whether the time in which marked parses a text is not bounded by its length. */
function isSlow(text) {
  return SLOW.test(text) || text.replace(/data:image\/[^\s)]*/g, "").split("\n").some((line) => line.length > LONG_LINE);
}

/** Text as it is, for what the parsers cannot parse: they give up where blocks are nested thousands of times. */
function plainText(text) {
  const block = document.createElement("p");
  block.className = "plain-text";
  block.textContent = text;
  return block;
}

/** The elements of a complete message, as a DocumentFragment. */
export function renderMarkdown(text) {
  const given = visibleText(text);
  try {
    if (!isSlow(given)) return elementsOf(marked.parse(given));
  } catch {
    // It is nested too deep.
  }
  const fragment = document.createDocumentFragment();
  fragment.append(plainText(given));
  return fragment;
}

function elementsOf(markup) {
  const fragment = DOMPurify.sanitize(markup, CLEAN);
  for (const input of fragment.querySelectorAll("input")) {
    if (input.type !== "checkbox") input.remove();
    else checkbox(input, input.hasAttribute("checked"));
  }
  for (const image of fragment.querySelectorAll("img")) image.replaceWith(imageElement(image.getAttribute("src"), image.getAttribute("alt")));
  for (const anchor of fragment.querySelectorAll("a")) {
    if (anchor.className === "image-link") continue;
    const address = anchor.getAttribute("href");
    for (const { name } of [...anchor.attributes]) anchor.removeAttribute(name);
    prepareLink(anchor, address);
  }
  for (const code of fragment.querySelectorAll("pre > code")) {
    const language = /(?:^|\s)language-(\S+)/.exec(code.className)?.[1] ?? "";
    const block = codeFigure(language);
    block.code.textContent = code.textContent.replace(/\n$/, "");
    code.parentElement.replaceWith(block.figure);
    highlightWhenNear(block.code, language);
  }
  for (const code of fragment.querySelectorAll(":not(pre) > code")) code.removeAttribute("class");
  for (const table of fragment.querySelectorAll("table")) scrolling(table);
  return fragment;
}

function checkbox(input, checked) {
  input.closest("li")?.classList.add("task");
  input.type = "checkbox";
  input.disabled = true;
  input.checked = checked;
  input.setAttribute("aria-label", checked ? "done" : "not done");
}

function scrolling(table) {
  const box = document.createElement("div");
  box.className = "md-table";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Table");
  table.replaceWith(box);
  box.append(table);
}

// -- messages that are being streamed -----------------------------------------------------------------------------------------

const TAGS = {
  [smd.PARAGRAPH]: "p", [smd.HEADING_1]: "h1", [smd.HEADING_2]: "h2", [smd.HEADING_3]: "h3", [smd.HEADING_4]: "h4", [smd.HEADING_5]: "h5",
  [smd.HEADING_6]: "h6", [smd.CODE_INLINE]: "code", [smd.ITALIC_AST]: "em", [smd.ITALIC_UND]: "em", [smd.STRONG_AST]: "strong",
  [smd.STRONG_UND]: "strong", [smd.STRIKE]: "del", [smd.LINK]: "a", [smd.RAW_URL]: "a", [smd.BLOCKQUOTE]: "blockquote", [smd.LINE_BREAK]: "br",
  [smd.RULE]: "hr", [smd.LIST_UNORDERED]: "ul", [smd.LIST_ORDERED]: "ol", [smd.LIST_ITEM]: "li", [smd.EQUATION_BLOCK]: "span",
  [smd.EQUATION_INLINE]: "span",
};

/** One character that begins nothing in Markdown. */
const ORDINARY = /^[\p{L}\p{N}.,;:?")'}%/]$/u;

/** Appends the elements of a message as its text arrives. */
export class MarkdownStream {
  /** @param {HTMLElement} root takes the elements */
  constructor(root) {
    this._stack = [{ node: root }];
    this._broken = null;
    this._held = null;
    this._parser = smd.parser({
      data: null,
      add_token: (_, type) => this._begin(type),
      end_token: () => this._end(),
      add_text: (_, text) => this._text(text),
      set_attr: (_, type, value) => this._attribute(type, value),
    });
  }

  write(text) {
    const given = visibleText(text);
    this._held?.remove();
    this._held = null;
    if (!this._broken) {
      try {
        smd.parser_write(this._parser, given);
        this._showHeld();
        return;
      } catch {
        // It has room for blocks in 24 others.
        this._broken = this._stack[0].node.appendChild(plainText(""));
      }
    }
    this._broken.append(given);
  }

  end() {
    this._held?.remove();
    if (!this._broken) smd.parser_end(this._parser);
  }

  /** The parser keeps the last character until the next one comes: an agent that pauses would look cut off. */
  _showHeld() {
    const { pending } = this._parser;
    if (this._stack.length < 2 || !ORDINARY.test(pending)) return;
    this._held = document.createTextNode(pending);
    this._top.node.append(this._held);
  }

  get _top() {
    return this._stack[this._stack.length - 1];
  }

  _begin(type) {
    let parent = this._top.node;
    let node;
    const entry = { type };
    if (type === smd.CODE_FENCE || type === smd.CODE_BLOCK) {
      const block = codeFigure("");
      parent.append(block.figure);
      node = block.code;
      entry.block = block;
    } else if (type === smd.TABLE) {
      node = document.createElement("table");
      parent.append(node);
      scrolling(node);
    } else if (type === smd.TABLE_ROW) {
      const part = parent.tHead ? (parent.tBodies[0] ?? parent.appendChild(document.createElement("tbody"))) : parent.createTHead();
      node = part.appendChild(document.createElement("tr"));
    } else if (type === smd.TABLE_CELL) {
      node = parent.appendChild(document.createElement(parent.parentElement.tagName === "THEAD" ? "th" : "td"));
    } else if (type === smd.CHECKBOX) {
      node = parent.appendChild(document.createElement("input"));
      checkbox(node, false);
    } else if (type === smd.IMAGE) {
      node = document.createElement("span");
      parent.append(node);
    } else {
      node = parent.appendChild(document.createElement(TAGS[type] ?? "span"));
      if (type === smd.EQUATION_INLINE || type === smd.EQUATION_BLOCK) {
        // Formulas are text here, with what they are written in.
        const mark = this._parser.pending[0] === "\\" ? (type === smd.EQUATION_INLINE ? "()" : "[]") : type === smd.EQUATION_INLINE ? "$$" : null;
        entry.close = mark ? mark[1] : "$$";
        node.append(mark ? mark[0] : "$$");
      }
    }
    this._stack.push({ ...entry, node });
  }

  _end() {
    const { type, node, block, close, address } = this._stack.pop();
    if (close) node.append(close);
    if (block) highlightWhenNear(block.code, block.name.textContent);
    else if (type === smd.IMAGE) node.replaceWith(imageElement(address, node.textContent));
    else if (type === smd.LINK && address === undefined) node.replaceWith("[", ...node.childNodes, "]");
  }

  _text(text) {
    const node = this._top.node;
    const last = node.lastChild;
    if (last?.nodeType === Node.TEXT_NODE && last.length < 2000) last.appendData(text);
    else node.append(text);
  }

  _attribute(type, value) {
    const top = this._top;
    if (type === smd.HREF) {
      top.address = value;
      prepareLink(top.node, value);
    } else if (type === smd.SRC) top.address = value;
    else if (type === smd.LANG) {
      const language = value.trim().split(/\s/)[0];
      top.block.name.textContent = language;
      top.block.figure.querySelector("pre").setAttribute("aria-label", `${language} code`);
      top.block.figure.querySelector(".code-copy").setAttribute("aria-label", `Copy ${language} code`);
    } else if (type === smd.START) top.node.setAttribute("start", value);
    else if (type === smd.CHECKED) checkbox(top.node, true);
  }
}

// -- the component ------------------------------------------------------------------------------------------------------------

/** A message. With `streaming` only what `text` has more than before is added to the page. */
export class Markdown extends Component {
  constructor(props) {
    super(props);
    this.state = { whole: false };
    this.written = 0;
    this.begun = 0;
    this.stream = null;
  }

  componentDidMount() {
    this.draw();
  }

  shouldComponentUpdate(next, state) {
    return next.text !== this.props.text || next.streaming !== this.props.streaming || state.whole !== this.state.whole;
  }

  componentDidUpdate(previous) {
    const { text, streaming } = this.props;
    if (!streaming && previous.streaming && this.stream && text.startsWith(previous.text) && text.length > LONG) {
      // Long text would be parsed for so long that the page stands still.
      this.streamed = text;
      this.write();
      return;
    }
    if (!streaming && this.streamed === text) return;
    // Text that is only complete now is rendered once more, by the other parser.
    if (!streaming || !previous.streaming || !text.startsWith(previous.text)) this.stream = null;
    this.draw();
  }

  draw() {
    const { text, streaming } = this.props;
    if (streaming) {
      if (!this.stream) {
        this.root.replaceChildren();
        this.stream = new MarkdownStream(this.root);
        this.written = 0;
      }
      this.write();
      return;
    }
    cancelAnimationFrame(this.frame);
    const cut = text.length > MAX_SHOWN && !this.state.whole;
    this.root.replaceChildren(renderMarkdown(cut ? text.slice(0, MAX_SHOWN) : text));
  }

  /** Appends what is new, for some milliseconds a frame: a fast agent does not keep the page from answering. */
  write() {
    cancelAnimationFrame(this.frame);
    const { text, streaming } = this.props;
    const begun = performance.now();
    // The more the layout of a frame takes, the fewer frames there are, and the more each of them has to bring.
    const until = begun + Math.max(SLICE_TIME, Math.min(MAX_SLICE_TIME, (begun - this.begun) / 2));
    this.begun = begun;
    while (this.written < text.length && performance.now() < until) {
      let end = Math.min(text.length, this.written + SLICE);
      // No half of a character that is two in UTF-16.
      if (end < text.length && (text.charCodeAt(end) & 0xfc00) === 0xdc00) end += 1;
      this.stream.write(text.slice(this.written, end));
      this.written = end;
    }
    if (this.written < text.length) this.frame = requestAnimationFrame(() => this.write());
    else if (!streaming) this.stream.end();
  }

  componentWillUnmount() {
    cancelAnimationFrame(this.frame);
  }

  render({ text, streaming }, { whole }) {
    const more = !streaming && !whole && text.length > MAX_SHOWN && !this.stream;
    return html`
      <div class="markdown" ref=${(node) => (this.root = node)} onClick=${onCodeClick}></div>
      ${more && html`<button type="button" class="show-more" onClick=${() => this.setState({ whole: true })}>Show the other ${(text.length - MAX_SHOWN).toLocaleString("en")} characters</button>`}
    `;
  }
}
