"""The events pane: a session's raw log with filters, copies and replay, its turns as frames of each protocol, and as curl."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.main_thread import tasks, unit
from tests.console.session_rows import until
from tests.support.daemon import KEY

HOSTILE = "it's \"quoted\" $HOME `id` $(id) \\ !! \n second line; rm -rf / & \t ünïcödé 💡 'x"
STEPS = [
    {"thinking": "A moment."},
    {"text": {"text": "Hello there, you.", "chunk": 6}},
    {"tool_call": {"name": "lookup", "input": {"query": "rain", "deep": {"list": [1, 2, 3]}}, "result": "3 hits"}},
]
LONGEST = 4
"""Units of the longest task, so that keys and clicks are answered at once: 0.2 s on a usual machine."""
TOOLS = {"tools": [{"name": "lookup", "trust": True}]}


@pytest.fixture
def session(daemon: ConsoleDaemon) -> str:
    """A session of the agent `script` with one turn."""
    found = daemon.new_session(STEPS, agent_fields=TOOLS)
    daemon.send(found, "begin")
    return found


def events_of(daemon: ConsoleDaemon, session: str) -> list[dict[str, Any]]:
    answer = daemon.api.get(f"/aap/v3/sessions/{session}/log", params={"after": 0, "limit": 5000})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["events"])


def open_events(windows: Windows, session: str, **options: Any) -> Page:
    context = windows.context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return windows.open(f"/console/sessions/{session}/events", context)


def row(page: Page, number: int) -> Locator:
    return page.locator(".row-list-row", has=page.locator(f'[data-row="{number}"]'))


def clipboard(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_the_log_has_every_event_with_its_number_and_kind(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    events = events_of(daemon, session)
    page = open_events(windows, session)
    for entry in events:
        expect(row(page, entry["id"]).locator(".event-kind")).to_have_text(entry["event"]["kind"])
    expect(page.locator(".events-status", has_text=f"{len(events)} events")).to_be_visible()
    expect(row(page, events[0]["id"])).to_contain_text("user: begin")


def test_stored_events_have_no_time_but_runs_and_live_events_have(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    before = events_of(daemon, session)
    page = open_events(windows, session)
    expect(row(page, 1).locator(".event-time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(row(page, before[-1]["id"]).locator(".event-time")).to_have_text("·")
    expect(page.get_by_text("Stored events have no time of their own")).to_be_visible()
    daemon.send(session, "again")
    after = events_of(daemon, session)
    last = row(page, after[-1]["id"])
    expect(last.locator(".event-time")).to_have_text(re.compile(r"^\+\d+(\.\d+)? (s|ms|µs)$"))
    assert after[-1]["id"] > before[-1]["id"]


def test_filters_by_kind_and_by_text(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    events = events_of(daemon, session)
    page = open_events(windows, session)
    calls = [entry for entry in events if entry["event"]["kind"] == "tool_call"]
    page.get_by_role("button", name="tool_call").click()
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(len(calls))
    expect(page.get_by_text(f"{len(calls)} of {len(events)} events")).to_be_visible()
    page.get_by_role("searchbox").fill('"deep"')
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(1)
    page.get_by_role("button", name="all kinds").click()
    page.get_by_role("searchbox").fill("3 HITS")
    expect(page.locator(".row-list-scroll .event-kind")).to_have_text(["tool_result"])
    page.get_by_role("searchbox").fill("")
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(len(events))


def test_copies_one_event_and_all_filtered_as_json_lines(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    events = events_of(daemon, session)
    page = open_events(windows, session)
    result = next(entry for entry in events if entry["event"]["kind"] == "tool_result")
    row(page, result["id"]).get_by_role("button").first.click()
    page.get_by_role("button", name=f"Copy JSON of event {result['id']}").click()
    expect(page.get_by_role("button", name=f"Copy JSON of event {result['id']}")).to_contain_text("Copied")
    assert json.loads(clipboard(page)) == result["event"]
    page.get_by_role("button", name="agent_token").click()
    page.get_by_role("button", name=re.compile("Copy .* as JSON lines")).click()
    tokens = [entry for entry in events if entry["event"]["kind"] == "agent_token"]
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    until(page, lambda: [json.loads(line) for line in clipboard(page).splitlines() if line.startswith('{"')] == tokens)


def test_the_json_of_an_event_can_be_folded(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    call = next(entry for entry in events_of(daemon, session) if entry["event"]["kind"] == "tool_call")
    page = open_events(windows, session)
    row(page, call["id"]).click()
    detail = row(page, call["id"]).locator(".row-list-detail")
    expect(detail).to_contain_text('query: "rain"')
    detail.locator("summary", has_text="input").click()
    expect(detail).not_to_contain_text("rain")


def test_the_keyboard_moves_through_the_list(windows: Windows, session: str) -> None:
    page = open_events(windows, session)
    page.locator('[data-row="1"]').focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator('[data-row="2"]')).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator('[data-row="2"]')).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    expect(page.locator('[data-row="1"]')).to_be_focused()


def test_the_keyboard_goes_on_from_a_row_that_has_left_the_page(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"events": {"count": 300, "text": "token {n} "}}])
    daemon.send(session, "go")
    page = open_events(windows, session)
    # The list follows its end, to which events are added that push the row out of the page.
    page.locator('[data-row="302"]').focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator('[data-row="303"]')).to_be_focused()
    daemon.send(session, "more")
    expect(page.locator(".events-status", has_text=f"{len(events_of(daemon, session))} events")).to_be_visible()
    expect(page.locator('[data-row="303"]')).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(page.locator('[data-row="304"]')).to_be_focused()
    # A filter takes the row away.
    page.get_by_role("searchbox").fill("token 297")
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(2)
    expect(page.locator('[data-row][tabindex="0"]')).to_have_count(1)


def test_a_hostile_agent_shows_text_only(windows: Windows, daemon: ConsoleDaemon) -> None:
    text = '<img src=x onerror="window.ran=1"><svg onload="window.ran=1"> \x1b[31mred \u202egnp.exe\U000e0041'
    session = daemon.new_session([{"text": {"text": text, "chunk": 500}}, {"big_line": 1_000_000}])
    daemon.send(session, "<script>window.ran=1</script>")
    page = open_events(windows, session)
    token = next(entry for entry in events_of(daemon, session) if entry["event"]["kind"] == "agent_token")
    expect(row(page, token["id"])).to_contain_text("<img src=x onerror=")
    expect(row(page, token["id"])).to_contain_text("\\u001b[31mred \\u202egnp.exe\\udb40\\udc41")
    row(page, token["id"] + 1).click()
    row(page, token["id"] + 1).get_by_role("button", name=re.compile("Show all .* characters")).click()
    assert page.evaluate("window.ran") is None


def test_replay_from_a_number_at_once_and_in_steps(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    events = events_of(daemon, session)
    page = open_events(windows, session)
    rows = page.locator(".row-list-scroll [role=row]")
    expect(rows).to_have_count(len(events))
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("From event").fill("4")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text("Replay from 4")).to_be_visible()
    expect(rows).to_have_count(len(events) - 3)
    page.get_by_role("button", name="End the replay").click()
    expect(rows).to_have_count(len(events))
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("Speed of the replay").select_option("steps")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text(f"{len(events) - 3} are waiting")).to_be_visible()
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="Next event").click()
    page.get_by_role("button", name="Next event").click()
    expect(rows).to_have_count(2)
    assert page.locator("[data-row]").first.get_attribute("data-row") == "4"
    page.get_by_role("button", name="End the replay").click()
    # The live stream goes on where it was.
    daemon.send(session, "more")
    expect(row(page, events_of(daemon, session)[-1]["id"])).to_be_visible()
    assert len(set(page.locator("[data-row]").evaluate_all("(rows) => rows.map((row) => row.dataset.row)"))) == rows.count()


def test_replay_as_they_came(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "one"}, {"wait_for_file": "go-on-{turn}"}, {"text": "two"}])
    page = open_events(windows, session)
    expect(page.get_by_text("This session has no events yet")).to_be_visible()
    (daemon.scenes / "go-on-{turn}").unlink(missing_ok=True)
    daemon.send(session, "go", wait=False)
    expect(page.locator(".event-summary", has_text="one")).to_be_visible()
    # Far longer than a busy machine takes to show an event.
    page.wait_for_timeout(2000)
    (daemon.scenes / "go-on-{turn}").touch()
    expect(page.locator(".event-kind", has_text="session_end")).to_be_visible()
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("Speed of the replay").select_option("live")
    page.evaluate(
        """() => { window.times = {}; new MutationObserver(() => {
            for (const text of document.querySelectorAll(".event-summary")) window.times[text.textContent] ??= performance.now();
        }).observe(document.body, {childList: true, subtree: true}); }"""
    )
    page.evaluate("window.times = {}")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text("Replay from 1")).to_be_visible()
    expect(page.locator(".event-kind", has_text="session_end")).to_be_visible()
    times = page.evaluate("window.times")
    assert times["two"] - times["one"] > 1000


PROTOCOLS = {
    "aap-delta": "text_delta",
    "aap-message": "tool_result",
    "aap-none": "Hello there, you.",
    "acp": "agent_message_chunk",
    "execute": "session_end",
    "openai-chat": "chat.completion.chunk",
    "openai-responses": "response.completed",
    "anthropic-messages": "message_stop",
}


@pytest.mark.parametrize(("protocol", "part"), PROTOCOLS.items())
def test_a_turn_as_frames(windows: Windows, session: str, protocol: str, part: str) -> None:
    page = open_events(windows, session)
    page.get_by_role("tab", name="As frames").click()
    page.get_by_label("Protocol").select_option(protocol)
    expect(page.get_by_text("of this protocol")).to_be_visible()
    expect(page.locator(".row-list-rows")).to_contain_text(part)
    page.get_by_role("button", name="Copy all frames").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert "data: " in clipboard(page) and part in clipboard(page)


def open_requests(windows: Windows, session: str) -> Page:
    """Open the requests of a session's newest turn, once that is known: the stored events may be some milliseconds late."""
    page = open_events(windows, session)
    expect(page.locator(".event-kind", has_text="turn_start").last).to_be_visible()
    page.get_by_role("tab", name="As curl").click()
    return page


def run_copied(page: Page, title: str) -> str:
    """Copy the command of a request, run it in bash, and return its output."""
    button = page.get_by_role("button", name=f"Copy as curl : {title}")
    button.click()
    expect(button).to_contain_text("Copied")
    command = clipboard(page)
    assert KEY not in command
    environment = {"PATH": os.environ["PATH"], "PORTICO_KEY": KEY, "HOME": "/nonexistent"}
    # Not as an argument, which may be too short for it: bash reads it as it reads what is pasted.
    found = subprocess.run(["bash"], input=command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_requests_as_curl_run_in_bash(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "You said: {prompt}"}], agent_fields=TOOLS)
    daemon.send(session, HOSTILE)
    page = open_requests(windows, session)
    made = json.loads(run_copied(page, "Create a session like this one"))["sessionId"]
    assert daemon.session(made)["agent"] == daemon.session(session)["agent"]
    streamed = run_copied(page, "Send this turn")
    said = "".join(json.loads(line[6:])["delta"] for line in streamed.splitlines() if line.startswith('data: {"delta"'))
    assert said == f"You said: {HOSTILE}"
    assert json.loads(run_copied(page, "Cancel the run"))["cancelled"] is False


def test_tasks_and_model_apis_as_curl_run_in_bash(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(agent="echo")
    daemon.send(session, HOSTILE)
    page = open_requests(windows, session)
    lines = [
        json.loads(line[6:]) for line in run_copied(page, "Run the prompt as a task").splitlines() if line.startswith("data: ")
    ]
    assert HOSTILE in "".join(line["text"] for line in lines if line["kind"] == "agent_token")
    chunks = [line[6:] for line in run_copied(page, "OpenAI chat completions").splitlines() if line.startswith("data: {")]
    assert HOSTILE in "".join(
        json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks if '"choices":[{' in chunk
    )
    blocks = [json.loads(line[6:]) for line in run_copied(page, "Anthropic messages").splitlines() if line.startswith("data: ")]
    assert HOSTILE in "".join(block["delta"].get("text", "") for block in blocks if block["type"] == "content_block_delta")


@pytest.mark.parametrize("title", ["Follow the session as AAP", "Follow the raw log"])
def test_follow_as_curl_runs_in_bash(windows: Windows, session: str, title: str) -> None:
    page = open_requests(windows, session)
    page.get_by_role("button", name=f"Copy as curl : {title}").click()
    environment = {"PATH": os.environ["PATH"], "PORTICO_KEY": KEY}
    process = subprocess.Popen(
        ["bash", "-c", clipboard(page)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        # The stream does not end by itself: its first event is enough.
        assert any("turn_start" in line for line in process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def test_turns_with_answers_to_calls_as_curl(windows: Windows, daemon: ConsoleDaemon) -> None:
    steps = [{"tool_call": {"name": "lookup", "id": "look-{turn}", "input": {"query": "x"}}}]
    session = daemon.new_session(steps, agent_fields={"tools": [{"name": "lookup"}]})
    assert daemon.send(session, "begin")["stopReason"] == "tool_use"
    reply = {"role": "tool_permission", "toolCallId": "look-1", "granted": False, "reason": "it's not needed"}
    daemon.send(session, reply)
    page = open_requests(windows, session)
    reply_as_word = json.dumps(reply, separators=(",", ":")).replace("'", "'\\''")
    expect(page.locator("[data-request=turn]")).to_contain_text(reply_as_word)


def test_a_long_message_as_curl_runs_in_bash(windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session(agent="echo")
    text = HOSTILE + "END_OF_BODY\n" * 20_000
    daemon.send(session, text)
    page = open_requests(windows, session)
    streamed = run_copied(page, "Send this turn")
    said = "".join(json.loads(line[6:])["delta"] for line in streamed.splitlines() if line.startswith('data: {"delta"'))
    assert text in said


def test_shell_quoting_keeps_every_text(windows: Windows) -> None:
    page = windows.open()
    texts = [HOSTILE, "", "'", "''", "-n", "a b", "\\", "\n\n", "$'x'", "*?[a]~", "a\rb", "%s %d", "#", "\u202e"]
    quoted = page.evaluate("async (texts) => texts.map((await import('/console/assets/js/pages/curl.js')).shellQuote)", texts)
    for text, word in zip(texts, quoted, strict=True):
        for shell in (["bash", "-c"], ["sh", "-c"]):
            assert subprocess.run([*shell, f"printf '%s.' {word}"], capture_output=True).stdout.decode() == f"{text}."


def test_100_000_events_scroll_and_filter(browser: Browser, windows: Windows, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"events": {"count": 100_000, "text": "token {n} "}}])
    daemon.send(session, "flood")
    page = open_events(windows, session)
    expect(page.locator(".events-status", has_text="100,003 events")).to_be_visible(timeout=60_000)
    expect(page.locator(".event-kind", has_text="session_end")).to_be_visible()
    assert page.locator(".row-list-scroll [role=row]").count() < 100
    one = unit(browser, page)
    tries = []
    # A place far away each time. The best of three: the processor may be slower for a while than it was for the unit.
    for _ in range(3):
        with tasks(browser, page) as found:
            page.evaluate(
                """() => new Promise((done) => {
                    const list = document.querySelector(".row-list-scroll");
                    let count = 0;
                    const step = () => {
                        list.scrollTop = (count * 7919 * 28) % list.scrollHeight;
                        if (++count < 60) requestAnimationFrame(step); else done();
                    };
                    requestAnimationFrame(step);
                })"""
            )
        tries.append(sum(found) / 60 / one)
        if tries[-1] < 1:
            break
    assert min(tries) < 1, tries
    page.get_by_role("searchbox").fill("token 77777 ")
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    # The rows are filtered after the next frame: until then the key would go to the row that was found.
    expect(page.locator(".events-status", has_text=re.compile("^100,003 events"))).to_be_visible()
    page.locator("[data-row]").first.focus()
    page.keyboard.press("Home")
    expect(row(page, 1)).to_contain_text("user: flood")


def test_a_burst_does_not_stop_the_page(browser: Browser, windows: Windows, daemon: ConsoleDaemon) -> None:
    tries = []
    for _ in range(3):
        session = daemon.new_session([{"events": {"count": 20_000, "text": "token {n} "}}])
        page = open_events(windows, session)
        expect(page.get_by_text("This session has no events yet")).to_be_visible()
        one = unit(browser, page)
        with tasks(browser, page) as found:
            daemon.send(session, "flood")
            expect(page.locator(".events-status", has_text="20,003 events")).to_be_visible(timeout=60_000)
            expect(page.locator(".event-kind", has_text="session_end")).to_be_visible()
        page.close()
        tries.append(max(found) / one)
        if tries[-1] < LONGEST:
            break
    assert min(tries) < LONGEST, tries


def test_a_session_that_is_deleted_or_unknown(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    windows.expect("404")
    page = open_events(windows, session)
    expect(row(page, 1)).to_be_visible()
    assert daemon.api.delete(f"/aap/v3/sessions/{session}").status_code == 204
    expect(page.get_by_text("The session has been deleted")).to_be_visible()
    page = open_events(windows, "sess_unknown")
    expect(page.get_by_text("The event log cannot be loaded")).to_be_visible()


def test_the_log_goes_on_after_a_restart_of_the_daemon(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    windows.expect("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|net::|503")
    page = open_events(windows, session)
    expect(row(page, 1)).to_be_visible()
    daemon.kill()
    daemon.start()
    daemon.send(session, "after the restart")
    events = events_of(daemon, session)
    expect(page.locator(".event-summary", has_text="after the restart").first).to_be_visible(timeout=30_000)
    expect(row(page, events[-1]["id"])).to_be_visible()
    shown = page.locator("[data-row]").evaluate_all("(rows) => rows.map((row) => Number(row.dataset.row))")
    assert shown == [entry["id"] for entry in events]
