"""What an agent, a tool or a user says is shown, and does nothing: no script, no request, no dialog, no window."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import open_conversation, rows
from tests.console.main_thread import slowness
from tests.console.other_site import other_site

ATTACKS = [
    "<script>window.ran = 1; fetch('OTHER')</script>",
    '<img src=x onerror="window.ran = 1; alert(1)">',
    '<svg onload="window.ran = 1"><a xlink:href="javascript:window.ran=1"><text>x</text></a></svg>',
    "<iframe src='OTHER'></iframe><object data='OTHER'></object><embed src='OTHER'>",
    "<link rel=stylesheet href='OTHER'><style>@import 'OTHER'; .sidebar { display: none }</style>",
    "<form action='OTHER'><input name=key><button autofocus onfocus=\"window.ran = 1\">Sign in again</button></form>",
    "<meta http-equiv=refresh content='0;url=OTHER'><base href='OTHER'>",
    "![pixel](OTHER/pixel.png)",
    "[link](javascript:window.ran=1) [link](data:text/html,<script>opener.ran=1</script>)",
    "`<b id=app>` **<i onclick=window.ran=1>** <div id=app class=conversation>",
    "\u001b]0;title\u0007\u001b[2J\u001b]8;;OTHER\u0007click\u001b]8;;\u0007 \u001b]52;c;Zm9v\u0007",
    "\u202egpj.exe \u2066\u202d \ufeff\u0000\u0008",
]

SENTINEL = """
window.attacks = [];
const elements = /^(script|iframe|object|embed|form|base|meta|style|frame|math|video|audio|source)$/;
const addresses = /^(href|src|action|xlink:href|srcdoc)$/;
const scripts = /^\\s*(javascript|vbscript|data:text|data:image\\/svg)/i;
const note = (what) => { window.attacks.push(what); };
for (const name of ["alert", "confirm", "prompt", "open", "print"]) window[name] = () => note(name);
const sentinel = new MutationObserver((changes) => {
  for (const { addedNodes } of changes) for (const node of addedNodes) {
    if (node.nodeType !== 1) continue;
    for (const element of [node, ...node.querySelectorAll("*")]) {
      if (elements.test(element.localName)) note(element.localName);
      if (element.localName === "link" && element.rel !== "modulepreload") note("link");
      for (const { name, value } of element.attributes) {
        if (/^on/.test(name) || (addresses.test(name) && scripts.test(value))) note(`${name}=${value}`);
        if (name === "style" && element.closest(".markdown, .tool-output")) note(`style=${value}`);
      }
    }
  }
});
addEventListener("DOMContentLoaded", () => sentinel.observe(document, { childList: true, subtree: true, attributes: true }));
"""


def brace(text: str) -> str:
    """The text as it stands in a scenario."""
    return text.replace("{", "{{")


def everywhere(daemon: ConsoleDaemon, text: str) -> str:
    """Return a session in which the text is in every place that an agent, a tool or a client can write to."""
    said = brace(text)
    steps: list[Any] = [
        {"title": said[:100]},
        {"thinking": said},
        {"text": f"{said}\n\n{said}\n\n```js\n{said}\n```\n\n| a |\n|---|\n| {said} |\n\n> {said}\n\n- {said}"},
        {"message_end": {}},
        {"plan": [{"content": said, "status": "in_progress"}]},
        {"hook": said[:60]},
        {"tool_call": {"name": "Bash", "input": {"command": said, "cwd": said}, "result": said, "detail": said}},
        {"tool_call": {"name": "Read", "input": {"file_path": said}, "error": said}},
        {
            "tool_call": {
                "name": "Edit",
                "input": {"file_path": said, "old_string": said, "new_string": f"{said}\nmore"},
                "result": "ok",
            }
        },
        {"tool_call": {"name": "TodoWrite", "input": {"todos": [{"content": said, "status": "pending"}]}}},
        {"tool_call": {"name": "mcp__x__" + "y", "input": {said[:40] or "x": said}, "result": {"a": said}}},
        {
            "tool_call": {
                "name": "Fetch",
                "input": {"url": said},
                "result": [{"type": "text", "text": said}, {"type": "image", "url": said}],
            }
        },
        {"subagent": {"label": said, "steps": [{"tool_call": {"name": "Grep", "input": {"pattern": said}, "result": said}}]}},
        {"line": said.replace("\n", " ")},
        {"usage": {"input_tokens": 5, "output_tokens": 5}},
        {"stop": {"reason": "error", "message": said}},
    ]
    history = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    session = daemon.new_session(steps, messages=history)
    daemon.send(session, text)
    return session


def open_all(page: Page) -> None:
    """Open everything that is folded, from the end to the beginning."""
    for _ in range(8):
        page.evaluate("() => document.querySelectorAll('.talk-row [aria-expanded=false]').forEach((button) => button.click())")
        page.locator(".talk-list").evaluate("(list) => { list.scrollTop -= 500; }")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize("live", [False, True], ids=["stored", "streamed"])
def test_hostile_text_does_nothing(windows: Windows, daemon: ConsoleDaemon, attack: str, live: bool) -> None:
    with other_site() as other:
        text = attack.replace("OTHER", other.url())
        if live:
            session = daemon.new_session(
                [
                    {"text": {"text": f"{brace(text)} and {brace(text)}", "chunk": 3}},
                    {"thinking": brace(text)},
                    {"text": "The end."},
                ]
            )
        else:
            session = everywhere(daemon, text)
        context = windows.context(viewport={"width": 1440, "height": 900})
        context.add_init_script(SENTINEL)
        page = windows.open(f"/console/sessions/{session}", context)
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        if live:
            daemon.send(session, text)
            expect(page.locator(".talk-answer", has_text="The end.")).to_be_visible()
        else:
            expect(page.locator(".run-end")).to_be_visible()
        open_all(page)
        page.evaluate(
            "() => document.querySelectorAll('.talk-row a').forEach((link) =>"
            " link.dispatchEvent(new MouseEvent('mouseover', { bubbles: true })))"
        )
        assert page.evaluate("[window.ran, window.attacks]") == [None, []]
        assert not dialogs and not other.requests and len(context.pages) == 1
        assert page.locator("#app").count() == 1 and page.locator("#app .conversation").count() == 1
        assert page.locator(".conversation").inner_text().count("\u202e") == 0
        assert page.url == f"{windows.url}/console/sessions/{session}"
        for link in page.locator(".talk-row a[href]").all():
            href = link.get_attribute("href") or ""
            assert href.startswith(("http://", "https://", "mailto:", "/console/"))
            if not href.startswith("/console/"):
                assert link.get_attribute("rel") == "noopener noreferrer" and link.get_attribute("target") == "_blank"


def test_lines_of_a_megabyte_stay_usable(windows: Windows, daemon: ConsoleDaemon) -> None:
    huge = "x" * 1_000_000
    session = daemon.new_session(
        [
            {"big_line": 1_000_000},
            {"message_end": {}},
            {"tool_call": {"name": "Bash", "input": {"command": f"echo {huge}"}, "result": huge}},
            {
                "tool_call": {
                    "name": "Bash",
                    "input": {"command": "seq"},
                    "result": "\n".join(str(number) for number in range(150_000)),
                }
            },
            {"tool_call": {"name": "Write", "input": {"file_path": "a.txt", "content": huge}, "result": "ok"}},
            {"tool_call": {"name": "mcp__x__y", "input": {"value": huge}, "error": huge}},
            {"text": "The end."},
        ]
    )
    daemon.send(session, "go")
    page = open_conversation(windows, session)
    expect(page.locator(".talk-answer", has_text="The end.")).to_be_visible()
    open_all(page)
    longest = page.evaluate("() => Math.max(...[...document.querySelectorAll('.tool')].map((tool) => tool.textContent.length))")
    assert longest < 60_000
    # Everything can be had on demand, and the page still answers at once.
    page.locator(".to-end").click()
    more = page.locator(".tool", has_text="seq").locator(".show-more", has_text="Show more of").first
    for _ in range(60):
        if more.count():
            break
        page.locator(".talk-list").evaluate("(list) => { list.scrollTop -= 300; }")
        page.evaluate("() => new Promise(requestAnimationFrame)")
    more.click()
    expect(page.locator(".tool", has_text="seq").locator(".show-more", has_text="Show less")).to_be_visible()
    took = page.evaluate(
        "() => new Promise((done) => { const from = performance.now(); setTimeout(() => done(performance.now() - from), 0); })"
    )
    assert took < 1000 * slowness(page)


def test_images_are_shown_only_where_nothing_is_requested(windows: Windows, daemon: ConsoleDaemon) -> None:
    dot = "data:image/png;base64," + base64.b64encode(PNG).decode()
    with other_site() as other:
        address = other.url().rstrip("/")
        session = daemon.new_session(
            [
                {"text": f"![a dot]({dot})\n\n![far]({address}/far.png)"},
                {
                    "tool_call": {
                        "name": "Look",
                        "result": [{"type": "image", "url": dot}, {"type": "image", "url": f"{address}/far.png"}],
                    }
                },
            ]
        )
        daemon.send(session, {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "url": dot}]})
        page = open_conversation(windows, session)
        expect(page.get_by_role("img", name="a dot")).to_be_visible()
        expect(page.locator(".talk-prompt img")).to_be_visible()
        expect(page.locator(".tool img")).to_be_visible()
        expect(page.locator(".markdown").get_by_role("link", name="Image: far")).to_have_attribute("href", f"{address}/far.png")
        assert rows(page).locator("img").count() == 3
        for image in rows(page).locator("img").all():
            assert image.evaluate("(image) => image.naturalWidth") == 1
        assert not other.requests


PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
