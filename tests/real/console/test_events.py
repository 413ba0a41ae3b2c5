"""A turn of the real claude and codex in the events pane: its log, a replay, its frames in each protocol, and as curl."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.console.checked_pages import Windows
from tests.console.test_events_pane import clipboard, events_of, open_events, open_requests, row, run_copied
from tests.real.console.conftest import Real

SHELL = {"claude": "Bash", "codex": "shell"}
PROTOCOLS = {
    "aap-delta": "text_delta",
    "aap-message": "tool_result",
    "acp": "agent_message_chunk",
    "execute": "session_end",
    "openai-chat": "chat.completion.chunk",
    "openai-responses": "response.completed",
    "anthropic-messages": "message_stop",
}


def run_command(real: Real, agent: str) -> str:
    """Create a session that runs a command in its first turn. Return its id."""
    tools = [{"name": SHELL[agent], "trust": True}]
    session = real.daemon.new_session(agent=agent, agent_fields={"tools": tools})
    assert real.daemon.send(session, "[[run:echo shown]]")["stopReason"] == "end_turn"
    return session


@pytest.mark.parametrize("agent", SHELL)
def test_the_log_and_a_replay(real: Real, windows: Windows, agent: str) -> None:
    session = run_command(real, agent)
    events = events_of(real.daemon, session)
    kinds = [entry["event"]["kind"] for entry in events]
    assert {"turn_start", "tool_call", "tool_result", "agent_token", "usage", "session_end"} <= {*kinds}
    assert [entry["id"] for entry in events] == list(range(1, len(events) + 1))
    page = open_events(windows, session, viewport={"width": 1440, "height": 2000})
    for entry in events:
        expect(row(page, entry["id"]).locator(".event-kind")).to_have_text(entry["event"]["kind"])
    call = next(entry for entry in events if entry["event"]["kind"] == "tool_call")
    row(page, call["id"]).click()
    expect(row(page, call["id"]).locator(".row-list-detail")).to_contain_text("echo shown")
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("From event").fill(str(call["id"]))
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text(f"Replay from {call['id']}")).to_be_visible()
    expect(page.locator(".row-list-scroll [role=row]")).to_have_count(len(events) - call["id"] + 1)
    page.get_by_role("button", name="End the replay").click()
    # What the CLI does next is live.
    real.daemon.send(session, "[[echo:once more]]")
    added = events_of(real.daemon, session)[len(events) :]
    expect(row(page, added[-1]["id"]).locator(".event-kind")).to_have_text(added[-1]["event"]["kind"])


@pytest.mark.parametrize("agent", SHELL)
def test_a_turn_as_frames_of_each_protocol(real: Real, windows: Windows, agent: str) -> None:
    page = open_events(windows, run_command(real, agent))
    page.get_by_role("tab", name="As frames").click()
    for protocol, part in PROTOCOLS.items():
        page.get_by_label("Protocol").select_option(protocol)
        expect(page.locator(".row-list-rows")).to_contain_text(part)
        page.get_by_role("button", name="Copy all frames").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        frames = clipboard(page)
        assert part in frames
        found = "".join(re.findall(r'"(?:delta|text|content)":\s*"((?:[^"\\]|\\.)*)"', frames))
        assert "The command ran." in found, (protocol, frames[:2000])


@pytest.mark.parametrize("agent", SHELL)
def test_the_requests_as_curl_run_the_real_cli(real: Real, windows: Windows, agent: str) -> None:
    options = {"mode": "ask", "model": {"claude": "haiku", "codex": "gpt-5.5"}[agent]}
    session = real.daemon.new_session(agent=agent, agent_fields={"options": options})
    real.daemon.send(session, '[[echo:it\'s "said"]]')
    page = open_requests(windows, session)
    made = json.loads(run_copied(page, "Create a session like this one"))["sessionId"]
    assert real.daemon.session(made)["agent"] == real.daemon.session(session)["agent"]
    streamed = run_copied(page, "Send this turn")
    said = "".join(json.loads(line[6:])["delta"] for line in streamed.splitlines() if line.startswith('data: {"delta"'))
    assert said == 'it\'s "said"'
    for title, kind in [
        ("Run the prompt as a task", "text"),
        ("OpenAI chat completions", "content"),
        ("Anthropic messages", "text"),
    ]:
        found = run_copied(page, title)
        texts = re.findall(rf'"{kind}":("(?:[^"\\]|\\.)*")', found)
        assert 'it\'s "said"' in "".join(map(json.loads, texts)), (title, found)
