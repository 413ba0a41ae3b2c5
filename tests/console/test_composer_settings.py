"""Commands, files and images of a message, the settings of a turn, and new sessions."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.test_composer import SAYS, box, expect_text, users
from tests.console.waiting_sessions import PHONE, messages, open_session

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
PASTE = """([name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0))
  const transfer = new DataTransfer()
  transfer.items.add(new File([bytes], name, {type}))
  const target = document.querySelector(".message-box textarea")
  const event = %s
  target.dispatchEvent(event)
}"""
PASTED = PASTE % 'new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true, cancelable: true})'
DROPPED = PASTE % 'new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true})'


def test_commands_of_the_agent(daemon: ConsoleDaemon, page: Page) -> None:
    commands = [
        {"name": "review", "description": "Reviews the changes", "hint": "what to review"},
        {"name": "recap", "description": "Says what was done"},
        {"name": "compact", "description": "Makes the context shorter"},
    ]
    session = daemon.new_session([{"commands": commands}, *SAYS], SAYS)
    daemon.send(session, "hello")
    open_session(page, session)
    menu = page.get_by_role("listbox", name="Commands")
    box(page).press_sequentially("/")
    expect(menu.get_by_role("option")).to_have_count(3)
    box(page).press_sequentially("re")
    expect(menu.get_by_role("option")).to_have_count(2)
    expect(menu.get_by_role("option").first).to_contain_text("/review")
    expect(menu.get_by_role("option").first).to_contain_text("what to review")
    box(page).press("ArrowDown")
    box(page).press("Enter")
    expect(box(page)).to_have_value("/recap ")
    expect(menu).to_have_count(0)
    box(page).press_sequentially("now")
    box(page).press("Enter")
    expect_text(page, "You said: /recap now")
    # A path is no command, and Esc closes the menu without a stop.
    box(page).fill("")
    box(page).press_sequentially("/zz")
    expect(menu).to_contain_text("No such command")
    box(page).press("Escape")
    expect(menu).to_have_count(0)
    expect(box(page)).to_have_value("/zz")


def test_what_is_typed_right_after_a_completion_is_behind_it(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"commands": [{"name": "review", "description": "Reviews"}]}, *SAYS])
    daemon.send(session, "hello")
    open_session(page, session)
    box(page).press_sequentially("/")
    expect(page.get_by_role("listbox", name="Commands").get_by_role("option")).to_have_count(1)
    # Within one frame of the page.
    value = page.evaluate(
        """() => new Promise((done) => {
            const field = document.querySelector(".message-box textarea")
            field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}))
            setTimeout(() => {
                document.execCommand("insertText", false, "a")
                requestAnimationFrame(() => setTimeout(() => {
                    document.execCommand("insertText", false, "b")
                    done(field.value)
                }))
            })
        })"""
    )
    assert value == "/review ab"


def test_files_of_the_working_folder(daemon: ConsoleDaemon, page: Page) -> None:
    folder = daemon.scenes / "project"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "main.py").touch()
    (folder / "my notes.md").touch()
    (folder / "s.json").write_text('{"turns": [{"steps": [{"text": "You said: {prompt}"}]}]}')
    session = daemon.new_session(agent_fields={"options": {"cwd": str(folder), "scenario": "s.json"}})
    open_session(page, session)
    menu = page.get_by_role("listbox", name="Files")
    box(page).press_sequentially("see @main")
    expect(menu.get_by_role("option").first).to_contain_text("source/main.py")
    box(page).press("Tab")
    expect(box(page)).to_have_value("see @source/main.py ")
    box(page).press_sequentially("and @notes")
    expect(menu.get_by_role("option").first).to_contain_text("my notes.md")
    menu.get_by_role("option").first.click()
    expect(box(page)).to_have_value('see @source/main.py and @"my notes.md" ')
    box(page).press("Enter")
    expect_text(page, "You said: see")
    assert users(daemon, session) == ['see @source/main.py and @"my notes.md" ']


@pytest.mark.parametrize("how", [PASTED, DROPPED])
def test_an_image_is_pasted_or_dropped(daemon: ConsoleDaemon, page: Page, how: str) -> None:
    session = daemon.new_session([{"text": "{images} image, and: {prompt}"}])
    open_session(page, session)
    expect(box(page)).to_be_visible()
    page.evaluate(how, ["dot.png", "image/png", base64.b64encode(PNG).decode()])
    expect(page.get_by_role("list", name="Images").get_by_role("img", name="dot.png")).to_be_visible()
    box(page).fill("look")
    box(page).press("Enter")
    expect_text(page, "1 image, and: look")
    expect(page.get_by_role("list", name="Images")).to_have_count(0)
    content = messages(daemon, session)[0]["content"]
    assert content[0] == {"type": "text", "text": "look"}
    assert content[1]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()


def test_images_that_cannot_be_sent_are_refused_in_words(daemon: ConsoleDaemon, page: Page, tmp_path: Path) -> None:
    session = daemon.new_session(SAYS)
    open_session(page, session)
    large = tmp_path / "large.png"
    large.write_bytes(PNG + b"\0" * 6 * 1024 * 1024)
    field = page.locator("input[type=file]")
    field.set_input_files(large)
    problem = page.locator(".composer-problem")
    expect(problem).to_contain_text("large.png has 6.0 MB; an image may have 5 MB.")
    vector = tmp_path / "vector.svg"
    vector.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    field.set_input_files(vector)
    expect(problem).to_contain_text("vector.svg is no PNG, JPEG, GIF or WebP image.")
    expect(page.get_by_role("list", name="Images")).to_have_count(0)
    dot = tmp_path / "dot.png"
    dot.write_bytes(PNG)
    field.set_input_files(dot)
    expect(problem).to_have_count(0)
    page.get_by_role("button", name="Remove dot.png").click()
    expect(page.get_by_role("list", name="Images")).to_have_count(0)


def test_options_hold_from_the_next_message_on(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session([{"text": "pace {options.pace}"}])
    open_session(page, session)
    page.get_by_role("button", name="All options and tools").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Pace")).to_have_value("recorded")
    dialog.get_by_label("Pace").select_option("fast")
    dialog.get_by_label("Token").fill("a secret")
    assert daemon.session(session)["agent"]["options"].get("pace") != "fast"
    page.keyboard.press("Escape")
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "pace fast")
    options = daemon.session(session)["agent"]["options"]
    assert (options["pace"], options["token"]) == ("fast", "***")
    page.get_by_role("button", name="All options and tools").click()
    expect(dialog.get_by_label("Token")).to_have_value("")
    expect(dialog.get_by_label("Token")).to_have_attribute("placeholder", re.compile("A value is stored"))
    # The secret is nowhere in the browser.
    assert "a secret" not in page.evaluate("JSON.stringify(Object.entries(localStorage)) + document.documentElement.outerHTML")


def test_a_wrong_option_is_refused_in_the_servers_words(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("400 \\(Bad Request\\)")
    session = daemon.new_session(SAYS)
    page = windows.open(f"/console/sessions/{session}")
    page.get_by_role("button", name="All options and tools").click()
    folder = page.get_by_role("dialog").get_by_role("combobox", name="folder")
    folder.fill("/no/such/folder")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    box(page).fill("keep me")
    box(page).press("Enter")
    expect(page.locator(".composer-problem")).to_contain_text("/no/such/folder")
    expect(box(page)).to_have_value("keep me")
    assert daemon.session(session)["x-portico"]["lastSeq"] == 0


def test_tools_of_the_agent(daemon: ConsoleDaemon, page: Page) -> None:
    session = daemon.new_session(SAYS)
    open_session(page, session)
    page.get_by_role("button", name="no tools").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="All ask").click()
    dialog.get_by_role("radiogroup", name="lookup").get_by_role("radio", name="Trust").check()
    dialog.get_by_role("radiogroup", name="shell").get_by_role("radio", name="Off").check()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="2 tools, 1 trusted")).to_be_visible()
    box(page).fill("go")
    box(page).press("Enter")
    expect_text(page, "You said: go")
    tools = sorted(daemon.session(session)["agent"]["tools"], key=lambda tool: str(tool["name"]))
    assert tools == [{"name": "lookup", "trust": True}, {"name": "write_note", "trust": False}]


def new_session(daemon: ConsoleDaemon) -> str:
    """The id of the newest session."""
    return str(daemon.api.get(SESSIONS, params={"limit": 1}).json()["sessions"][0]["sessionId"])


def test_a_new_session_with_its_first_message(daemon: ConsoleDaemon, page: Page) -> None:
    name = daemon.scenario([{"text": "{system} You said: {prompt}"}])
    (daemon.scenes / "below" / "deep").mkdir(parents=True)
    (daemon.scenes / "below" / "deep" / name).write_text((daemon.scenes / name).read_text())
    page.get_by_role("button", name="Agent:").click()
    page.get_by_role("option", name=re.compile("Script")).click()
    folder = page.get_by_role("combobox", name="Working folder")
    folder.fill(str(daemon.scenes) + "/be")
    page.get_by_role("listbox", name="Folders").get_by_role("option", name=str(daemon.scenes / "below")).click()
    expect(folder).to_have_value(f"{daemon.scenes / 'below'}/")
    expect(page.get_by_role("listbox", name="Folders").get_by_role("option")).to_have_text(
        [str(daemon.scenes / "below" / "deep")]
    )
    folder.press("ArrowDown")
    folder.press("Enter")
    expect(folder).to_have_value(f"{daemon.scenes / 'below' / 'deep'}/")
    page.get_by_role("button", name="All options and tools").click()
    page.get_by_role("dialog").get_by_label("Scenario").fill(name)
    page.get_by_role("dialog").get_by_label("Token").fill("a secret")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="System prompt").click()
    page.get_by_label("System prompt, before").fill("Be brief.")
    page.get_by_role("textbox", name="First message").fill("hello")
    page.get_by_role("textbox", name="First message").press("Enter")
    expect(page).to_have_url(re.compile("/console/sessions/sess_"))
    expect_text(page, "Be brief. You said: hello")
    session = daemon.session(new_session(daemon))
    assert session["x-portico"]["cwd"] == str(daemon.scenes / "below" / "deep")
    assert {tool["name"]: tool["trust"] for tool in session["agent"]["tools"]} == {
        "lookup": False,
        "write_note": False,
        "shell": False,
    }
    assert session["agent"]["options"]["token"] == "***"
    # The next one begins with the same settings, but for the secret.
    page.get_by_role("link", name="New session", exact=True).click()
    expect(folder).to_have_value(f"{daemon.scenes / 'below' / 'deep'}/")
    expect(page.get_by_role("textbox", name="First message")).to_have_value("")
    assert "a secret" not in page.evaluate("JSON.stringify(Object.entries(localStorage))")


def test_a_new_session_that_is_refused_keeps_everything(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("400 \\(Bad Request\\)")
    page = windows.open()
    page.get_by_role("combobox", name="Working folder").fill("/no/such/folder")
    page.get_by_role("textbox", name="First message").fill("hello")
    page.get_by_role("button", name="Start the session").click()
    expect(page.locator(".composer-problem")).to_contain_text("/no/such/folder")
    expect(page.get_by_role("textbox", name="First message")).to_have_value("hello")


def test_a_first_message_that_the_agent_cannot_take_is_sent_again(daemon: ConsoleDaemon, windows: Windows) -> None:
    windows.expect("503 \\(Service Unavailable\\)")
    page = windows.open()
    page.get_by_role("button", name="All options and tools").click()
    page.get_by_role("dialog").get_by_label("Scenario").fill("later.json")
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="First message").fill("hello")
    page.get_by_role("textbox", name="First message").press("Enter")
    expect(page).to_have_url(re.compile("/console/sessions/sess_"))
    expect(page.locator(".outgoing")).to_contain_text("later.json")
    daemon.scenario(SAYS, name="later.json")
    page.locator(".outgoing").get_by_role("button", name="Retry").click()
    expect_text(page, "You said: hello")
    expect(page.locator(".outgoing")).to_have_count(0)


def test_a_new_session_without_a_message(daemon: ConsoleDaemon, page: Page) -> None:
    page.get_by_role("button", name="Agent:").click()
    page.get_by_role("option", name=re.compile("Echo")).click()
    page.get_by_role("button", name="Start without a message").click()
    expect(page).to_have_url(re.compile("/console/sessions/sess_"))
    expect(box(page)).to_be_visible()
    session = daemon.session(new_session(daemon))
    assert (session["agent"]["name"], session["x-portico"]["lastSeq"]) == ("echo", 0)


def test_a_message_from_a_phone(daemon: ConsoleDaemon, windows: Windows) -> None:
    session = daemon.new_session(SAYS)
    page = windows.open(f"/console/sessions/{session}", windows.context(**PHONE))
    box(page).tap()
    page.keyboard.type("one")
    # There is no Shift+Enter on a phone: Enter begins a line.
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    expect(box(page)).to_have_value("one\ntwo")
    for button in page.locator(".composer button").all():
        size = button.bounding_box()
        assert size is not None and size["height"] >= 40, button.inner_text()
    page.get_by_role("button", name="Send", exact=True).tap()
    expect_text(page, "You said: one")
    assert users(daemon, session) == ["one\ntwo"]
