"""Markdown of agents: the same elements while it is streamed and when it is complete, and nothing in it that does anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import MODULE, module_page
from tests.console.main_thread import slowness

RENDER = (
    "async ([text, size]) => {"
    f" const {{ renderMarkdown, MarkdownStream }} = await import('{MODULE}markdown.js');"
    """
    const whole = document.createElement("div");
    whole.append(renderMarkdown(text));
    const streamed = document.createElement("div");
    const stream = new MarkdownStream(streamed);
    for (let at = 0; at < text.length; at += size) stream.write(text.slice(at, at + size));
    stream.end();
    // What a reader sees: elements, texts without white space at the ends of lines, links.
    const shape = (node) => {
      if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\\s+/g, " ");
      const name = node.localName;
      const inner = [...node.childNodes].map(shape).join("").replace(/^ | $/g, "");
      if (["span", "div"].includes(name) && !node.className) return inner;
      // Loose lists have paragraphs in their items; the page shows both alike.
      if (name === "p" && node.parentElement.localName === "li") return inner;
      const link = name === "a" && node.hasAttribute("href") ? ` ${node.getAttribute("href")}` : "";
      if (name === "a" && !link) return inner;
      const checked = name === "input" ? ` ${node.checked}` : "";
      return `<${name}${link}${checked}>${inner}</${name}>`;
    };
    const attributes = [...whole.querySelectorAll("*"), ...streamed.querySelectorAll("*")].flatMap((element) =>
      [...element.attributes].map(({ name, value }) => [element.localName, name, value]));
    return { whole: shape(whole), streamed: shape(streamed), attributes,
      text: whole.textContent, streamedText: streamed.textContent };
  }"""
)

DOCUMENT = """# A heading

Some **bold**, *italic*, ~~struck~~ and `code <b>`, with a [link](https://example.com/a?b=1).
A second line of it.

- one
- two with `code`
- three

1. first
2. second

```python
def hello(name):
    return f"<b>{name}</b>"
```

| name | value |
| --- | --- |
| a | 1 |
| b | **2** |

> a quote

---

- [x] done
- [ ] open

The end, https://example.com/x is a link.
"""


@pytest.fixture(scope="module")
def page(browser: Browser, daemon: ConsoleDaemon) -> Iterator[Page]:
    with module_page(browser, daemon.url) as found:
        yield found


def rendered(page: Page, text: str, size: int = 7) -> dict[str, Any]:
    return dict(page.evaluate(RENDER, [text, size]))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_streamed_and_complete_look_the_same(page: Page, size: int) -> None:
    found = rendered(page, DOCUMENT, size)
    streamed, whole = (re.sub(r"\s*(<|>)\s*", r"\1", found[kind]) for kind in ("streamed", "whole"))
    assert streamed == whole
    for element in (
        "h1",
        "strong",
        "em",
        "del",
        "code",
        "ul",
        "ol",
        "figure",
        "table",
        "blockquote",
        "hr",
        "input true",
        "input false",
    ):
        assert f"<{element}>" in found["whole"]
    assert "<a https://example.com/a?b=1>" in found["whole"]


@pytest.mark.parametrize("text", ["Working on it", "**Bold** and done.", "- one\n- two", "`code` 5%"])
def test_the_last_character_is_there_while_the_agent_pauses(page: Page, text: str) -> None:
    script = (
        f"async (text) => {{ const {{ MarkdownStream }} = await import('{MODULE}markdown.js');"
        " const box = document.createElement('div'); const stream = new MarkdownStream(box); const seen = [];"
        " stream.write(text); seen.push(box.textContent); stream.write('!'); stream.end(); return [...seen, box.textContent]; }"
    )
    before, after = page.evaluate(script, text)
    assert before[-1] == text[-1] and after == before + "!"


@pytest.mark.parametrize(
    "text",
    [
        "array[0] is [not] a link",
        "it costs $5 and $10",
        "a * b * c",
        "2 < 3 > 1 & so",
        "**bold",
        "snake_case_name",
        "```\nopen fence",
        "\\(x\\)",
        "C:\\dir",
        "a\\*b",
    ],
)
def test_text_that_looks_like_markdown(page: Page, text: str) -> None:
    found = rendered(page, text, 3)
    squeezed = lambda value: "".join(value.split())  # noqa: E731
    for letter in "abcdefghijklmnopqrstuvwxyz0123456789$[]":
        assert squeezed(found["streamedText"]).count(letter) == squeezed(found["text"]).count(letter), letter


HOSTILE = [
    "<script>window.ran = true</script>",
    "<img src=x onerror='window.ran = true'>",
    "<svg onload='window.ran = true'><script>window.ran = true</script></svg>",
    "<iframe srcdoc='<script>parent.ran = true</script>'></iframe>",
    "[click](javascript:window.ran=true)",
    "[click](JaVaScRiPt:window.ran=true)",
    "[click](java\tscript:window.ran=true)",
    "[click](&#106;avascript:window.ran=true)",
    "[click](data:text/html,<script>window.ran=true</script>)",
    "[click](vbscript:x) [b](file:///etc/passwd) [c](/console/x) [d](//other.example)",
    "<javascript:window.ran=true>",
    "![x](https://other.example/pixel.png)",
    "![x](javascript:window.ran=true)",
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+)",
    '![x"onerror="window.ran=true](x"onerror="window.ran=true)',
    '[a](https://example.com "title\\" onmouseover=\\"window.ran=true")',
    "```html\n<script>window.ran = true</script>\n```",
    '```"><script>window.ran=true</script>\ncode\n```',
    "<style>* { display: none }</style><link rel=stylesheet href=https://other.example/x.css>",
    "<form action=https://other.example><input type=password name=p><button>Sign in</button></form>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.ran=true&gt;">',
    "<base href=https://other.example/><meta http-equiv=refresh content='0;url=https://other.example'>",
    "a <b id=app class=sidebar name=body>clobber</b>",
    "<details open ontoggle=window.ran=true>x</details>",
    "$$<img src=x onerror=window.ran=true>$$ \\(<b onclick=window.ran=true>\\)",
]

PERMITTED = {
    "a": {"href", "target", "rel", "title", "class"},
    "img": {"src", "alt"},
    "input": {"type", "checked", "disabled", "aria-label"},
    "ol": {"start"},
    "th": {"align"},
    "td": {"align"},
    "li": {"class"},
    "figure": {"class"},
    "button": {"type", "class", "aria-label"},
    "pre": {"tabindex", "dir", "aria-label", "role"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "span": {"class"},
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_nothing(page: Page, text: str) -> None:
    found = rendered(page, f"before {text} after\n\n{text}\n\nend", 5)
    for element, name, value in found["attributes"]:
        assert name in PERMITTED.get(element, set()), (element, name, value)
        if name == "href":
            assert value.lower().startswith(("https://", "http://", "mailto:"))
        if name == "src":
            assert value.startswith("data:image/")
    for kind in ("whole", "streamed"):
        for element in ("script", "svg", "iframe", "style", "link", "form", "base", "meta", "math", "details", "object"):
            assert (
                f"<{element}" not in found[kind].replace("&lt;", "").split(" before ")[0]
                or "<figure" in found[kind]
                or f"<{element}" in text
            )
        assert "end" in found[kind]
    assert page.evaluate("window.ran") is None


def test_elements_are_those_of_markdown_only(page: Page) -> None:
    names = page.evaluate(
        "async (texts) => {"
        f" const {{ renderMarkdown, MarkdownStream }} = await import('{MODULE}markdown.js');"
        """
        const names = new Set();
        for (const text of texts) {
          const box = document.createElement("div");
          box.append(renderMarkdown(text));
          const streamed = box.appendChild(document.createElement("div"));
          const stream = new MarkdownStream(streamed);
          for (const letter of text) stream.write(letter);
          stream.end();
          for (const element of box.querySelectorAll("*")) names.add(element.localName);
        }
        return [...names];
      }""",
        HOSTILE,
    )
    assert set(names) <= {
        "a",
        "blockquote",
        "br",
        "button",
        "code",
        "del",
        "div",
        "em",
        "figcaption",
        "figure",
        "h1",
        "h2",
        "h3",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "span",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    }


def test_characters_that_reorder_text_are_visible(page: Page) -> None:
    found = rendered(page, "safe \u202etxt.exe \u2066x\u2069 bell\u0007 tags\U000e0041 `\u202ecode`")
    for text in (found["text"], found["streamedText"]):
        assert (
            "\u202e" not in text
            and "\u2066" not in text
            and "[U+202E]txt.exe" in text
            and "^G" in text
            and "tags[U+E0041]" in text
        )


def test_deep_and_long_nesting(page: Page) -> None:
    slower = slowness(page)
    for text in (
        ">" * 5000 + " x",
        "- " * 3000 + "x",
        "*" * 5000 + "x",
        "[" * 5000,
        "`" * 5000,
        "1. " * 2000,
        "| " * 5000,
        "#" * 5000,
        "\\(" * 2000,
        "![" * 3000,
    ):
        took = page.evaluate(
            "async (text) => {"
            f" const {{ renderMarkdown, MarkdownStream }} = await import('{MODULE}markdown.js');"
            """
            const before = performance.now();
            const box = document.createElement("div");
            box.append(renderMarkdown(text));
            const stream = new MarkdownStream(box);
            for (let at = 0; at < text.length; at += 50) stream.write(text.slice(at, at + 50));
            stream.end();
            return performance.now() - before;
          }""",
            text,
        )
        assert took < 2000 * slower, text[:20]


ANSI = f"async (text) => (await import('{MODULE}ansi.js')).ansiRuns(text)"


def test_colours_of_output_are_classes(page: Page) -> None:
    runs = page.evaluate(ANSI, "plain \x1b[1;31mred\x1b[0m \x1b[38;5;46mgreen\x1b[39m \x1b[48;2;10;20;250mblue\x1b[m.")
    assert runs == [
        {"text": "plain ", "classes": ""},
        {"text": "red", "classes": "ansi-bold ansi-red"},
        {"text": " ", "classes": ""},
        {"text": "green", "classes": "ansi-bright-green"},
        {"text": " ", "classes": ""},
        {"text": "blue", "classes": "ansi-on-bright-blue"},
        {"text": ".", "classes": ""},
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07a\x1b]8;;https://other.example\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1b[2J\x1b[H\x1b[10;10Hx\x1b[?25l", "x"),
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("ab\x08c", "ac"),
        ("\x1b]52;c;c2VjcmV0\x07x", "x"),
        ("\x1bP1$r0m\x1b\\x\x07", "x^G"),
        ("a\x1b[31", "a"),
        ("a\u202eb", "a[U+202E]b"),
    ],
)
def test_other_control_sequences_do_nothing(page: Page, text: str, shown: str) -> None:
    assert "".join(run["text"] for run in page.evaluate(ANSI, text)) == shown


SLOW = {
    "spaces": "a" + " " * 100_000 + "b",
    "heading": "# a" + " " * 100_000 + "b",
    "address": "a." * 50_000 + "@",
    "quote": ">" * 100_000,
    "brackets": "[" * 100_000,
    "tags": "<" * 100_000,
}


@pytest.mark.parametrize("name", SLOW)
def test_hostile_text_takes_no_more_time_than_its_length(page: Page, name: str) -> None:
    code = f"""async (text) => {{
      const {{ renderMarkdown }} = await import('{MODULE}markdown.js');
      const begin = performance.now();
      const found = renderMarkdown(text).textContent;
      return [performance.now() - begin, found === text];
    }}"""
    milliseconds, same = page.evaluate(code, SLOW[name])
    assert same and milliseconds < 3000 * slowness(page)


@pytest.mark.parametrize("text", ["\x1b[" + "!" * 100_000 + "\n", "\rx\n" + "A" * 100_000, "\r" * 100_000 + "A\n"])
def test_hostile_output_takes_no_more_time_than_its_length(page: Page, text: str) -> None:
    code = f"""async (text) => {{
      const {{ ansiRuns }} = await import('{MODULE}ansi.js');
      const begin = performance.now();
      ansiRuns(text);
      return performance.now() - begin;
    }}"""
    assert page.evaluate(code, text) < 3000 * slowness(page)
