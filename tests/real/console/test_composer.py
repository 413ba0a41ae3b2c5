"""What a user writes and chooses in the console reaches the model through the real claude and codex."""

from __future__ import annotations

import base64
import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.test_composer_settings import DROPPED, PASTED, PNG
from tests.console.waiting_sessions import reject
from tests.real.console.conftest import Real
from tests.real.console_windows import ANSWER_MS, allow, begin_in, choose, expect_answer, send, waiting_call
from tests.real.models import message_texts


def box(page: Page) -> Locator:
    """The field for the first message, or the next one."""
    return page.locator(".message-box textarea")


def listed(page: Page, list_name: str) -> list[str]:
    """The values of a list of the form for a new session."""
    button = page.get_by_role("button", name=re.compile(f"^{list_name}: "))
    button.click()
    options = page.get_by_role("listbox", name=list_name).get_by_role("option")
    expect(options).not_to_have_count(0)
    found = options.all_inner_texts()
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    return found


def test_the_lists_have_what_the_clis_report(real: Real, page: Page) -> None:
    for name, title in (("claude", "Claude Code"), ("codex", "Codex")):
        choose(page, "Agent", title)
        meta = next(agent for agent in real.daemon.api.get("/meta").json()["agents"] if agent["name"] == name)
        options = {option["name"]: option for option in meta["options"]}
        assert {"low", "high"} <= {*options["effort"]["options"]}
        assert len(options["model"]["options"]) > 3
        for option in (options["model"], options["mode"], options["effort"]):
            assert listed(page, option["title"]) == option["options"]


def test_claude_has_the_model_the_effort_and_the_folder_that_were_chosen(real: Real, page: Page) -> None:
    folder = real.claude_home.work / "project" / "deep"
    folder.mkdir(parents=True)
    choose(page, "Agent", "Claude Code")
    choose(page, "Model", "haiku")
    page.get_by_role("combobox", name="Working folder").fill(f"{real.claude_home.work}/pro")
    page.get_by_role("listbox", name="Folders").get_by_role("option", name=str(folder.parent)).click()
    page.get_by_role("listbox", name="Folders").get_by_role("option", name=str(folder)).click()
    begin_in(page, "[[echo:chosen]]")
    expect_answer(page, "chosen")
    request = real.claude.last_request()
    assert "haiku" in request["model"]
    assert str(folder) in json.dumps(request)
    expect(page.locator(".session-folder")).to_have_text("deep")
    # The changes hold from the next message on.
    choose(page, "Model", "opus")
    choose(page, "Effort", "low")
    expect(page.get_by_role("button", name="Model: opus, from the next message on")).to_be_visible()
    send(page, "[[echo:changed]]")
    expect_answer(page, "changed")
    expect(page.get_by_role("button", name="Model: opus", exact=True)).to_be_visible()
    request = real.claude.last_request()
    assert "opus" in request["model"]
    assert request["output_config"]["effort"] == "low"


def test_codex_has_the_model_and_the_effort_that_were_chosen(real: Real, page: Page) -> None:
    choose(page, "Agent", "Codex")
    choose(page, "Model", "gpt-5.6-luna")
    choose(page, "Reasoning effort", "low")
    begin_in(page, "[[echo:chosen]]")
    expect_answer(page, "chosen")
    request = real.codex.bodies()[-1]
    assert (request["model"], request["reasoning"]["effort"]) == ("gpt-5.6-luna", "low")
    choose(page, "Reasoning effort", "high")
    # A name that the list does not have.
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.keyboard.type("gpt-5.4-mini")
    page.get_by_role("option", name="Use “gpt-5.4-mini”").click()
    send(page, "[[echo:changed]]")
    expect_answer(page, "changed")
    request = real.codex.bodies()[-1]
    assert (request["model"], request["reasoning"]["effort"]) == ("gpt-5.4-mini", "high")


def test_the_mode_accept_edits_writes_without_a_question(real: Real, page: Page) -> None:
    path = real.claude_home.work / "accepted.txt"
    choose(page, "Agent", "Claude Code")
    begin_in(page, f"[[filewrite:{path}]]")
    reject(waiting_call(page))
    expect_answer(page, "Wrote it.")
    assert not path.exists()
    choose(page, "Mode", "acceptEdits")
    send(page, f"[[filewrite:{path}]] now")
    expect(page.locator(".run-end")).to_have_count(2, timeout=ANSWER_MS)
    expect(page.locator(".approval")).to_have_count(0)
    assert path.read_text() == "written by the model\n"
    # Back to the mode in which each call asks.
    choose(page, "Mode", "ask")
    send(page, f"[[filewrite:{path}]] again")
    expect(waiting_call(page)).to_contain_text("accepted.txt")
    reject(waiting_call(page))
    expect(page.locator(".run-end")).to_have_count(3, timeout=ANSWER_MS)


def test_the_mode_plan_reaches_the_model(real: Real, page: Page) -> None:
    choose(page, "Agent", "Claude Code")
    choose(page, "Mode", "plan")
    begin_in(page, "[[echo:planned]]")
    expect_answer(page, "planned")
    assert "Plan mode is active" in json.dumps(real.claude.last_request())


def test_the_mode_plan_of_codex_reaches_the_model(real: Real, page: Page) -> None:
    choose(page, "Agent", "Codex")
    choose(page, "Mode", "plan")
    begin_in(page, "[[echo:planned]]")
    expect_answer(page, "planned")
    assert "Plan Mode" in json.dumps(real.codex.bodies()[-1])


def test_a_command_of_claude_is_chosen_and_runs(real: Real, page: Page) -> None:
    folder = real.claude_home.work / "commands"
    (folder / ".claude" / "commands").mkdir(parents=True)
    (folder / ".claude" / "commands" / "greet.md").write_text(
        '---\ndescription: Greets somebody.\nargument-hint: "[whom]"\n---\nGreet $ARGUMENTS. [[echo:greeted]]\n'
    )
    choose(page, "Agent", "Claude Code")
    page.get_by_role("combobox", name="Working folder").fill(str(folder))
    begin_in(page, "[[echo:begun]]")
    expect_answer(page, "begun")
    box(page).press_sequentially("/")
    menu = page.get_by_role("listbox", name="Commands")
    expect(menu.get_by_role("option").filter(has_text="/compact")).to_be_visible()
    box(page).press_sequentially("gre")
    expect(menu.get_by_role("option").first).to_contain_text("Greets somebody.")
    expect(menu.get_by_role("option").first).to_contain_text("[whom]")
    box(page).press("Enter")
    expect(box(page)).to_have_value("/greet ")
    box(page).press_sequentially("the world")
    box(page).press("Enter")
    expect_answer(page, "greeted")
    assert "Greet the world." in str(message_texts(real.claude.last_request(), "user"))
    # A command that the CLI answers itself, without its model.
    before = [request.path for request in real.claude.requests].count("/v1/messages")
    send(page, "/context")
    expect_answer(page, "Context Usage")
    # It asks the model's server how many tokens there are, but not for a message.
    assert real.claude.requests[-1].path.endswith("/count_tokens")
    assert [request.path for request in real.claude.requests].count("/v1/messages") == before


def test_a_file_that_is_named_by_its_completed_path_is_read(real: Real, page: Page) -> None:
    folder = real.claude_home.work / "files"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "secret_of_tests.py").write_text("answer = 'forty-two'\n")
    choose(page, "Agent", "Claude Code")
    page.get_by_role("combobox", name="Working folder").fill(str(folder))
    begin_in(page, "[[echo:begun]]")
    expect_answer(page, "begun")
    box(page).press_sequentially("[[readmentioned]] see @secret")
    option = page.get_by_role("listbox", name="Files").get_by_role("option").first
    expect(option).to_contain_text("source/secret_of_tests.py")
    box(page).press("Tab")
    expect(box(page)).to_have_value("[[readmentioned]] see @source/secret_of_tests.py ")
    box(page).press("Enter")
    allow(page)
    expect_answer(page, "I have read it.")
    assert "forty-two" in json.dumps(real.claude.last_request())


@pytest.mark.parametrize(("agent", "how"), [("Claude Code", PASTED), ("Claude Code", DROPPED), ("Codex", PASTED)])
def test_an_image_reaches_the_model(real: Real, page: Page, agent: str, how: str) -> None:
    choose(page, "Agent", agent)
    data = base64.b64encode(PNG).decode()
    page.evaluate(how, ["dot.png", "image/png", data])
    expect(page.get_by_role("list", name="Images").get_by_role("img", name="dot.png")).to_be_visible()
    begin_in(page, "[[echo:seen]] what is this?")
    expect_answer(page, "seen")
    expect(page.locator(".talk-prompt img")).to_have_count(1)
    model = real.claude if agent == "Claude Code" else real.codex
    kind = "image" if agent == "Claude Code" else "input_image"
    messages = model.bodies()[-1]["messages" if agent == "Claude Code" else "input"]
    blocks = [block for message in messages if isinstance(message.get("content"), list) for block in message["content"]]
    assert [data in json.dumps(block) for block in blocks if block["type"] == kind] == [True]
