"""Runs of the real claude and codex in the console: steered, queued, edited, generated again, retried, and what they use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.real.console.conftest import Real
from tests.real.console_windows import ANSWER_MS, WIDE, allow, begin_in, choose, expect_answer, send

AGENTS = ("Claude Code", "Codex")


def begin(page: Page, agent: str, prompt: str) -> str:
    """Begin a session with an agent. Return the session's id."""
    choose(page, "Agent", agent)
    return begin_in(page, prompt)


def begin_waiting(real: Real, page: Page, agent: str, name: str) -> Path:
    """Begin a session whose command runs until the file exists that is returned."""
    file = real.daemon.folder / f"{name}-{agent.split()[0]}"
    begin(page, agent, f"[[run:until test -e {file}; do sleep 0.05; done]]")
    allow(page)
    expect(page.locator(".tool-state")).to_have_text("Running")
    return file


def last_request(real: Real, agent: str) -> str:
    """The newest request of the CLI to its model server, as JSON."""
    return json.dumps((real.claude if agent == "Claude Code" else real.codex).bodies()[-1])


@pytest.mark.parametrize("agent", AGENTS)
def test_a_message_steers_a_run(real: Real, page: Page, agent: str) -> None:
    file = begin_waiting(real, page, agent, "steer")
    page.locator(".composer textarea").fill("[[echo:to the left]]")
    page.get_by_role("button", name="Steer", exact=True).click()
    expect(page.locator(".talk-prompt.steered")).to_contain_text("to the left")
    file.touch()
    # claude 2.1.329 sent it with the result of the command, which the script answers; 2.1.332 after that.
    expect_answer(page, "to the left")
    expect(page.locator(".run-end")).to_have_count(1)
    assert "[[echo:to the left]]" in last_request(real, agent)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_queued_message_is_sent_after_the_run(real: Real, page: Page, agent: str) -> None:
    file = begin_waiting(real, page, agent, "queue")
    send(page, "[[echo:second answer]]")
    expect(page.locator(".outgoing")).to_contain_text("Queued")
    file.touch()
    expect_answer(page, "second answer")
    expect(page.locator(".outgoing")).to_have_count(0)
    expect(page.locator(".run-end")).to_have_count(2)
    expect(page.locator(".talk-answer").first).to_have_text("The command ran.")


@pytest.mark.parametrize("agent", AGENTS)
def test_a_message_is_edited_and_an_answer_generated_again(real: Real, page: Page, agent: str) -> None:
    first = begin(page, agent, "[[echo:one]]")
    expect_answer(page, "one")
    send(page, "[[recall]] two")
    expect_answer(page, "Before this one: [[echo:one]]")
    prompt = page.locator(".talk-prompt", has_text="two")
    prompt.hover()
    prompt.get_by_role("button", name="Edit and resend").click()
    page.get_by_role("textbox", name="Message", exact=True).first.fill("[[recall]] three")
    page.get_by_role("button", name="Send in a new session", exact=True).click()
    page.wait_for_url(lambda url: first not in url)
    expect(page.locator(".talk-prompt", has_text="three")).to_be_visible()
    expect_answer(page, "Before this one: [[echo:one]]")
    assert "[[recall]] two" not in last_request(real, agent)
    # The answer of the new session is generated again, in a third one.
    second = page.url
    page.locator(".run-end").last.hover()
    page.locator(".run-end").last.get_by_role("button", name="Regenerate").click()
    page.wait_for_url(lambda url: url != second)
    expect(page.locator(".talk-prompt", has_text="three")).to_be_visible()
    expect_answer(page, "Before this one: [[echo:one]]")
    expect(page.locator(".talk-prompt")).to_have_count(2)


@pytest.mark.parametrize(
    ("agent", "prompt", "words", "advice"),
    [
        ("Claude Code", "[[e500]]", "internal", "answered with an error"),
        ("Claude Code", "[[e401]]", "Invalid API key", "Check the agent's login or key"),
        ("Claude Code", "[[e429]]", "slow down", "Wait a moment"),
        ("Codex", "[[e401]]", "invalid x-api-key", "Check the agent's login or key"),
        ("Codex", "[[e429]]", "429 Too Many Requests", "Wait a moment"),
    ],
)
def test_an_error_of_the_models_server_is_in_words(page: Page, agent: str, prompt: str, words: str, advice: str) -> None:
    begin(page, agent, prompt)
    failure = page.locator(".talk-failure")
    expect(failure).to_contain_text(words, timeout=ANSWER_MS)
    expect(failure).to_contain_text(advice)
    expect(failure.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.locator(".run-end")).to_contain_text("Ended with an error.")
    expect(page.locator(".conversation-header")).to_contain_text("Error")
    if "login" in advice:
        failure.get_by_role("link", name="Open Agents").click()
        expect(page).to_have_url(re.compile("/console/agents$"))


@pytest.mark.parametrize("agent", AGENTS)
def test_a_failed_message_is_retried(real: Real, page: Page, agent: str) -> None:
    begin(page, agent, "[[overloaded]] Count the files.")
    failure = page.locator(".talk-failure")
    expect(failure).to_contain_text("Wait a moment", timeout=ANSWER_MS)
    failure.get_by_role("button", name="Retry").click()
    expect_answer(page, "Now it works.")
    expect(failure.get_by_role("button", name="Retry")).to_have_count(0)
    expect(page.locator(".talk-prompt", has_text="Count the files.")).to_have_count(2)


@pytest.mark.parametrize("agent", AGENTS)
def test_tokens_price_and_context_are_in_the_header(real: Real, windows: Windows, agent: str) -> None:
    page = windows.open(viewport=WIDE)
    session = begin(page, agent, "[[usage]]")
    expect_answer(page, "Counted.")
    usage = real.daemon.session(session)["x-portico"]["usage"]
    counted = page.locator(".session-usage")
    expect(counted).to_have_attribute("title", re.compile(r"1,?[02]\d\d .*40 "))
    if agent == "Claude Code":
        assert (usage["inputTokens"], usage["outputTokens"]) == (1000, 40)
        assert usage["costUsd"] > 0
        expect(counted).to_contain_text("$")
        expect(page.locator(".run-end")).to_contain_text("$")
    meter = page.get_by_role("meter", name="Context window")
    expect(meter).to_be_visible()
    words = meter.get_attribute("aria-valuetext")
    assert words is not None
    used, size = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", words))
    assert 1000 <= used < 2000 and size >= 100_000
    # The same after the page is loaded anew.
    page.reload()
    expect(meter).to_have_attribute("aria-valuetext", words)
    send(page, "[[usage]] again")
    expect(page.locator(".run-end")).to_have_count(2, timeout=ANSWER_MS)
    expect(counted).to_contain_text("2.5k tokens")
