"""The pages for those who run the daemon, with the real claude and codex: agents, policy, audit, and the inbox."""

from __future__ import annotations

import json
import re

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.waiting_sessions import ready
from tests.real.clis import CLIS
from tests.real.console.conftest import Real
from tests.real.console_windows import ANSWER_MS, WIDE, begin_in, choose, expect_answer
from tests.real.processes import clis_of

PACKAGES = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex"}
SHELL = {"claude": "Bash", "codex": "shell"}


@pytest.mark.parametrize("agent", PACKAGES)
def test_the_versions_of_the_clis(real: Real, windows: Windows, agent: str) -> None:
    page = windows.open("/console/agents", viewport=WIDE)
    version = json.loads((CLIS / "node_modules" / PACKAGES[agent] / "package.json").read_text())["version"]
    card = page.get_by_role("article", name=agent, exact=True)
    expect(card).to_contain_text("can be used")
    expect(card).to_contain_text(version)
    expect(card).to_contain_text("tested version")
    expect(card).to_contain_text("logged in")
    expect(card.locator(".chip-text").first).to_be_visible()


@pytest.mark.parametrize("agent", PACKAGES)
def test_a_cli_that_runs_is_stopped(real: Real, windows: Windows, agent: str) -> None:
    page = windows.open("/console/agents", viewport=WIDE)
    tools = [{"name": SHELL[agent], "trust": True}]
    session = real.daemon.new_session(agent=agent, agent_fields={"tools": tools})
    prompt = {"claude": "[[longbash]]", "codex": "[[longshell]]"}[agent]
    real.daemon.send(session, prompt, wait=False)
    line = page.get_by_role("row", name=prompt)
    expect(line).to_contain_text("running", timeout=ANSWER_MS)
    expect(line).to_contain_text(re.compile(r"\d+ MiB"))
    [live] = [one for one in real.daemon.api.get("/v1/live-agents").json()["agents"] if one["sessionId"] == session]
    home = (real.claude_home if agent == "claude" else real.codex_home).path
    process = psutil.Process(live["pid"])
    assert process in clis_of(home)
    assert live["memoryBytes"] > 10_000_000
    line.get_by_role("button", name=f"Stop {agent}").click()
    page.get_by_role("dialog", name=f"Stop {agent}?").get_by_role("button", name="Stop the agent").click()
    expect(line).to_be_hidden()
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()
    assert real.daemon.session(session)["x-portico"]["stopReason"] == "error"
    # The session goes on with another process.
    real.daemon.send(session, "[[echo:alive again]]")
    page.goto(f"/console/sessions/{session}")
    expect_answer(page, "alive again")


def test_a_rule_denies_a_call_which_the_audit_has(real: Real, page: Page) -> None:
    choose(page, "Agent", "guarded")
    session = begin_in(page, "[[run:rm -rf precious-things]]")
    expect_answer(page, "The command ran.")
    expect(page.locator(".tool")).to_contain_text("Move it to the trash.")
    assert "Move it to the trash." in json.dumps(real.claude.last_request())

    page.goto("/console/policy")
    rule = page.get_by_role("region", name="guarded").get_by_role("listitem")
    expect(rule).to_contain_text("Move it to the trash.")
    page.get_by_role("main").get_by_role("combobox", name="Agent").select_option("guarded")
    page.get_by_label("Command", exact=True).fill("cd / && rm -rf precious-things")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".check-answer")).to_contain_text("Move it to the trash.")

    page.goto("/console/audit")
    page.get_by_label("Search").fill("precious-things")
    line = page.locator(".audit-entry")
    expect(line).to_have_count(1)
    expect(line).to_contain_text("Bash")
    expect(line).to_contain_text("denied")
    line.get_by_role("button").first.click()
    expect(line).to_contain_text("Move it to the trash.")
    line.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/console/sessions/{session}$"))


@pytest.mark.parametrize("agent", PACKAGES)
def test_a_call_in_the_inbox_is_answered_by_another_client(real: Real, windows: Windows, agent: str) -> None:
    page = windows.open("/console/inbox", viewport=WIDE)
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    tools = [{"name": SHELL[agent]}]
    session = real.daemon.new_session(agent=agent, agent_fields={"tools": tools})
    real.daemon.send(session, "[[run:echo shown]]")
    card = ready(page)
    expect(card).to_contain_text("echo shown")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    [call] = real.daemon.session(session)["x-portico"]["pendingCalls"]
    answer = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True}
    assert real.daemon.send(session, answer)["stopReason"] == "end_turn"
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    expect(page).not_to_have_title(re.compile(r"^\("))
    expect(page.locator(".approval")).to_have_count(0)
