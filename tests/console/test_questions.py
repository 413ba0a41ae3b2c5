"""Questions of an agent to the user, as a form."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, expect

from tests.console.console_daemon import ConsoleDaemon
from tests.console.waiting_sessions import expect_result, open_session, ready, reject, waiting

COLOUR = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "As the brand"}, {"label": "Blue"}],
    "multiSelect": False,
}
SIZES = {"question": "Which sizes?", "options": [{"label": "S"}, {"label": "M"}, {"label": "L"}], "multiSelect": True}
NAME = {"question": "What is its name?", "options": []}


def question(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"tool_call": {"name": "AskUserQuestion", "question": True, "input": {"questions": list(questions)}}}


def result(answers: dict[str, Any]) -> str:
    return f"Result: {json.dumps({'answers': answers}, separators=(',', ':'))}"


def test_answers_to_several_questions(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, question(COLOUR, SIZES, NAME))
    open_session(page, session)
    card = ready(page)
    colour = card.get_by_role("group", name="Which colour?")
    expect(colour).to_contain_text("As the brand")
    colour.get_by_label("Red").check()
    colour.get_by_label("Blue").check()
    expect(colour.get_by_label("Red")).not_to_be_checked()
    # A question without an answer is not sent.
    card.get_by_role("button", name="Send answers").click()
    expect(card.get_by_role("alert")).to_have_text("Answer each question, or skip them all.")
    sizes = card.get_by_role("group", name="Which sizes?")
    sizes.get_by_label("S", exact=True).check()
    sizes.get_by_label("L", exact=True).check()
    sizes.get_by_label("Other").fill("XXL")
    card.get_by_role("group", name="What is its name?").get_by_label("Answer").fill("Knopf")
    card.get_by_role("button", name="Send answers").click()
    answers = {"Which colour?": "Blue", "Which sizes?": ["S", "L", "XXL"], "What is its name?": "Knopf"}
    expect_result(daemon, page, session, result(answers))


def test_an_answer_of_the_users_own_replaces_a_choice(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, question(COLOUR))
    open_session(page, session)
    card = ready(page)
    card.get_by_label("Red").check()
    card.get_by_label("Other").fill("Green")
    expect(card.get_by_label("Red")).not_to_be_checked()
    card.get_by_label("Other").press("Enter")
    expect_result(daemon, page, session, result({"Which colour?": "Green"}))


def test_by_keys_alone(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, question(COLOUR))
    open_session(page, session)
    card = ready(page)
    card.get_by_label("Red").focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    expect(card.get_by_label("Blue")).to_be_checked()
    page.keyboard.press("Enter")
    expect_result(daemon, page, session, result({"Which colour?": "Blue"}))


def test_a_question_is_skipped(daemon: ConsoleDaemon, page: Page) -> None:
    session = waiting(daemon, question(COLOUR))
    open_session(page, session)
    reject(ready(page))
    expect_result(daemon, page, session, "Result: Tool call denied")
    other = waiting(daemon, question(COLOUR))
    open_session(page, other)
    ready(page)
    page.keyboard.press("n")
    page.keyboard.type("you decide")
    page.keyboard.press("Enter")
    expect_result(daemon, page, other, "Result: Tool call denied: you decide")
