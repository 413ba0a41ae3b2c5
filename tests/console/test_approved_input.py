"""What a person approves is what runs: changes against the disk, nothing allowed unseen, and no answer for another call."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import SESSIONS, ConsoleDaemon
from tests.console.waiting_sessions import PHONE, allowable, call, expect_result, open_session, ready, result_of, until, waiting

WIDE = {"viewport": {"width": 1280, "height": 800}}
LINES = "".join(f"line {n}\n" for n in range(1, 6))


@pytest.fixture
def file(daemon: ConsoleDaemon, request: pytest.FixtureRequest) -> Path:
    """A file of five lines in the working folder."""
    found = daemon.scenes / (re.sub(r"\W", "_", request.node.name)[:80] + ".txt")
    found.write_text(LINES)
    return found


def diff(card: Locator) -> list[str]:
    """The lines of a card's diffs, with their marks."""
    rows = card.locator(".diff-lines tr:not(.diff-hunk)").all()
    return [
        row.locator(".diff-mark").inner_text()[:1].strip().ljust(1) + row.locator(".diff-text").inner_text().rstrip("\n")
        for row in rows
    ]


def opened(daemon: ConsoleDaemon, page: Page, name: str, given: dict[str, Any], **fields: Any) -> tuple[str, Locator]:
    """A session with a call that waits, and the card of it."""
    session = waiting(daemon, call(name, given, result="ran", **fields))
    open_session(page, session)
    return session, ready(page)


def scroll_through(card: Locator) -> None:
    """Scroll over all of a card as a person does, from its beginning to its end."""
    card.evaluate(
        """async (card) => {
          card.scrollIntoView({block: "start"})
          let scroller = card
          while (!/auto|scroll/.test(getComputedStyle(scroller).overflowY) || scroller.scrollHeight <= scroller.clientHeight)
            scroller = scroller.parentElement
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
          await frame()
          while (card.getBoundingClientRect().bottom > scroller.getBoundingClientRect().bottom) {
            const before = scroller.scrollTop
            scroller.scrollTop += 200
            await frame()
            if (scroller.scrollTop === before) break
          }
        }"""
    )


def test_a_written_file_is_shown_against_the_disk(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    _, card = opened(daemon, page, "Write", {"file_path": str(file), "content": LINES.replace("line 3\n", "changed\n")})
    expect(card.locator(".diff-name")).to_contain_text("replaces the file")
    assert diff(card) == [" line 1", " line 2", "-line 3", "+changed", " line 4", " line 5"]
    # The conversation does not know the disk, and does not say that the file is new.
    expect(page.locator(".tool .diff-name")).to_contain_text("whole file")


def test_a_file_that_is_new(daemon: ConsoleDaemon, page: Page) -> None:
    _, card = opened(daemon, page, "Write", {"file_path": str(daemon.scenes / "new.txt"), "content": "one\n"})
    expect(card.locator(".diff-name")).to_contain_text("new file")
    assert diff(card) == ["+one"]


def test_a_file_outside_of_the_folder_is_not_said_to_be_new(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    link = file.with_suffix(".link")
    link.symlink_to("/etc/passwd")
    for path in ("/etc/passwd", str(link)):
        _, card = opened(daemon, page, "Write", {"file_path": path, "content": "one\n"})
        expect(card.locator(".diff-name")).to_contain_text("whole file")
        note = "What is there now is not known, and is replaced: it is outside of the session's folders."
        expect(card.locator(".diff-note")).to_have_text(note)
        expect(card).not_to_contain_text("root:")


@pytest.mark.parametrize(
    ("name", "given", "expected", "note"),
    [
        ("Edit", {"old_string": "line 3", "new_string": "x"}, ["-line 3", "+x"], None),
        ("Edit", {"old_string": "nothing", "new_string": "x"}, ["-nothing", "+x"], "The old text is not in the file."),
        ("Edit", {"old_string": "line", "new_string": "x"}, ["-line", "+x"], "The old text is in the file 5 times."),
        (
            "Edit",
            {"old_string": "line", "new_string": "x", "replace_all": True},
            [*(f"-line {n}" for n in range(1, 6)), *(f"+x {n}" for n in range(1, 6))],
            "Replaces all 5 occurrences.",
        ),
        (
            "MultiEdit",
            {"edits": [{"old_string": "line 1\n", "new_string": ""}, {"old_string": "line 5", "new_string": "y"}]},
            ["-line 1", "-line 5", "+y"],
            None,
        ),
        ("Write", {"content": LINES}, [], "The file has this text already."),
        ("Write", {"content": LINES[:-1]}, [], "The line feed at the end is removed."),
        ("Write", {"content": LINES.replace("1\n", "1\r\n")}, ["-line 1", "+line 1U+000D"], None),
    ],
)
def test_edits_against_the_disk(
    daemon: ConsoleDaemon, page: Page, file: Path, name: str, given: dict[str, Any], expected: list[str], note: str | None
) -> None:
    _, card = opened(daemon, page, name, {"file_path": str(file), **given})
    assert [line for line in diff(card) if line[0] != " "] == expected
    if note is None:
        expect(card.locator(".diff-note")).to_have_count(0)
    else:
        expect(card.locator(".diff-note")).to_have_text(note)


def test_a_cell_of_a_notebook(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    cells = [{"id": "one", "source": ["a = 1\n", "b = 1\n"]}, {"source": "c = 1"}]
    file.write_text(json.dumps({"cells": cells}))
    for given, expected, note in (
        ({"cell_id": "one", "new_source": "a = 2\nb = 1\n"}, ["-a = 1", "+a = 2", " b = 1"], "The new text of the cell one."),
        ({"cell_id": "cell-1", "new_source": "", "edit_mode": "delete"}, ["-c = 1"], "Deletes the cell cell-1."),
        ({"cell_id": "one", "new_source": "x", "edit_mode": "insert"}, ["+x"], "A new cell after the cell one."),
        ({"cell_id": "two", "new_source": "x"}, ["+x"], "The new text of the cell two. The notebook has no such cell."),
    ):
        _, card = opened(daemon, page, "NotebookEdit", {"notebook_path": str(file), **given})
        assert diff(card) == expected
        expect(card.locator(".diff-note")).to_have_text(note)
        expect(card.locator(".diff-kind")).to_have_count(0)


def test_patches_of_codex_against_the_disk(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    changes = [
        {"path": str(file), "kind": "add", "diff": "line 1\nother\n"},
        {
            "path": str(file.with_name("no-such.txt")),
            "kind": "update",
            "diff": "@@ -1,1 +1,1 @@\n-a\n+b\n",
            "move_path": str(file),
        },
    ]
    _, card = opened(daemon, page, "apply_patch", {"changes": changes})
    assert diff(card) == [" line 1", *(f"-line {n}" for n in range(2, 6)), "+other", "-a", "+b"]
    expect(card.locator(".diff-name").first).to_contain_text("replaces the file")
    expect(card.locator(".diff-note")).to_have_text("There is no such file. Replaces the file at the new path.")
    patch = f"*** Begin Patch\n*** Add File: {file.name}\n+new\n*** Delete File: gone\u2028.txt\n*** End Patch"
    _, card = opened(daemon, page, "apply_patch", {"input": patch})
    assert diff(card) == [*(f"-line {n}" for n in range(1, 6)), "+new"]
    expect(card.locator(".diff-path").last).to_have_text("goneU+2028.txt")
    expect(card.locator(".diff-note")).to_have_text("There is no such file.")


def test_what_a_diff_does_not_show_is_shown_beside_it(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    text = "old mode 100644\nnew mode 100755\n--- a\n+++ a\n@@ -1,1 +1,1 @@\n-line 1\n+line 2\n\\ No newline at end of file\n"
    _, card = opened(daemon, page, "save", {"path": str(file), "diff": text})
    expect(card.locator(".approval-fields")).to_contain_text("new mode 100755")
    assert diff(card) == ["-line 1", "+line 2", " \\ No newline at end of file"]


def test_characters_that_cannot_be_seen_are_marked_in_a_diff(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    hidden = "a\u200bb\u202ec\x07d\ufe0fe\u2800f\u00a0g"
    long = "x" * 3000 + "rm -rf /"
    given = {"file_path": f"{file}\u200e", "content": f"{hidden}\n{long}\n"}
    _, card = opened(daemon, page, "mcp__other\u202e__Write", given)
    assert diff(card) == ["+aU+200BbU+202EcU+0007dU+FE0FeU+2800fU+00A0g", f"+{long}"]
    expect(card.locator(".diff-path")).to_contain_text(".txtU+200E")
    expect(card.get_by_role("heading")).to_have_accessible_name("otherU+202E / Write asks for permission")


@pytest.mark.parametrize("options", [PHONE, WIDE], ids=["390", "1280"])
def test_nothing_is_allowed_before_all_of_it_was_in_view(
    windows: Windows, daemon: ConsoleDaemon, options: dict[str, Any]
) -> None:
    """Also where the buttons would lie over it."""
    lines = "\n".join(f"echo line {n}" for n in range(200)) + "\nrm -rf build"
    session = waiting(daemon, call("Bash", {"command": lines}, result="ran"))
    for path in (f"/console/sessions/{session}", "/console/inbox"):
        page = windows.open(path, windows.context(**options))
        card = page.locator(".approval").last
        expect(card).to_have_attribute("data-ready", "true")
        allow = card.locator("[data-kind=allow_once]")
        expect(allow).to_be_disabled()
        # The end alone is not all of it.
        allow.scroll_into_view_if_needed()
        page.wait_for_timeout(600)
        expect(allow).to_be_disabled()
        card.locator(".approval-others").click()
        expect(page.get_by_role("menuitem")).to_have_attribute("aria-disabled", "true")
        page.keyboard.press("Escape")
        scroll_through(card)
        expect(allow).to_be_enabled()
        # Nothing lies over the command: at each place of it, what is there is the command.
        assert (
            card.evaluate(
                """(card) => {
              const command = card.querySelector(".exact-block pre"), box = command.getBoundingClientRect()
              const over = []
              for (let y = Math.max(0, box.top + 2); y < Math.min(innerHeight, box.bottom - 2); y += 10) {
                const found = document.elementFromPoint(box.left + box.width / 2, y)
                if (card.contains(found) && !command.contains(found)) over.push(found.outerHTML)
              }
              return over
            }"""
            )
            == []
        )
    allowable(card).locator("[data-kind=allow_once]").click()
    expect(page.locator(f".inbox-session:has(a[href$='{session}'])")).to_have_count(0)
    assert result_of(daemon, session) == "Result: ran"


def test_the_key_y_and_a_button_lead_through_what_was_not_in_view(daemon: ConsoleDaemon, page: Page) -> None:
    session, card = opened(daemon, page, "Bash", {"command": "\n".join(f"echo {n}" for n in range(120))})
    card.get_by_role("button", name="Show the rest").click()
    # Where the unseen part begins.
    expect(card.get_by_role("heading")).to_be_in_viewport()
    for _ in range(30):
        if card.get_attribute("data-seen") == "true":
            break
        page.keyboard.press("y")
        page.wait_for_timeout(100)
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    allowable(card)
    page.keyboard.press("y")
    if daemon.session(session)["x-portico"]["state"] == "waiting":
        # The answers were not in view.
        page.keyboard.press("y")
    expect_result(daemon, page, session, "Result: ran")


def test_all_are_allowed_at_once_only_after_all_were_in_view(daemon: ConsoleDaemon, page: Page) -> None:
    command = "\n".join(f"echo {n}" for n in range(80))
    calls = [call("Bash", {"command": command}, id=f"call{n}", result=f"ran {n}") for n in range(2)]
    session = daemon.new_session([{"parallel": calls}, {"text": "{results.call0}, {results.call1}"}])
    daemon.send(session, "go")
    open_session(page, session)
    cards = ready(page, 2)
    every = page.get_by_role("button", name="Allow all 2")
    expect(every).to_be_disabled()
    scroll_through(cards.first)
    expect(cards.first).to_have_attribute("data-seen", "true")
    expect(every).to_be_disabled()
    scroll_through(cards.last)
    expect(every).to_be_enabled()
    ready(page, 2)
    every.click()
    expect_result(daemon, page, session, "ran 0, ran 1")


def test_a_file_that_has_changed_since_it_was_shown(daemon: ConsoleDaemon, page: Page, file: Path) -> None:
    session, card = opened(daemon, page, "Write", {"file_path": str(file), "content": "new\n"})
    file.write_text("mine\n")
    card.locator("[data-kind=allow_once]").click()
    notice = page.locator(".approvals [role=alert]")
    expect(notice).to_contain_text("a file has changed on the disk since it was shown")
    assert daemon.session(session)["x-portico"]["state"] == "waiting"
    expect(card.locator(".diff-name")).to_contain_text("replaces the file")
    ready(page)
    assert diff(card) == ["-mine", "+new"]
    # It can be touched without a change.
    os.utime(file, (1, 1))
    card.locator("[data-kind=allow_once]").click()
    expect_result(daemon, page, session, "Result: ran")


def test_files_that_cannot_be_read(daemon: ConsoleDaemon, windows: Windows, file: Path) -> None:
    windows.expect("503")
    session = waiting(daemon, call("Write", {"file_path": str(file), "content": "new\n"}, result="ran"))
    page = windows.open()
    page.route(
        f"**{SESSIONS}/{session}/calls/*/files",
        lambda route: route.fulfill(status=503, json={"error": "the file system has not answered within 5 s; try again later"}),
    )
    open_session(page, session)
    card = ready(page)
    expect(card.locator(".approval-disk")).to_contain_text("The files on the disk could not be read: the file system")
    expect(card.locator(".diff-note")).to_have_text("What is there now is not known, and is replaced.")
    page.unroute(f"**{SESSIONS}/{session}/calls/*/files")
    card.get_by_role("button", name="Try again").click()
    expect(card.locator(".diff-name")).to_contain_text("replaces the file")


def test_a_call_that_appears_does_not_get_the_keys_of_another(daemon: ConsoleDaemon, windows: Windows) -> None:
    """Two sessions side by side: the first one's call comes while the second one's is the one that the keys answer."""
    wait = f"ask-{os.urandom(4).hex()}"
    early = waiting(daemon, call("Bash", {"command": "early"}, id="early", result="ran"))
    late = daemon.new_session([{"wait_for_file": wait}, call("Bash", {"command": "late"}, id="late", result="ran")])
    daemon.send(late, "go", wait=False)
    page = windows.open(f"/console/sessions/{late}?also={early}", **WIDE)
    expect(page.locator(".conversation")).to_have_count(2)
    ready(page)
    page.evaluate("document.activeElement.blur()")
    (daemon.scenes / wait).touch()
    ready(page, 2)
    expect(page.locator(".approval").first).to_have_attribute("data-call", "late")
    expect(page.locator(".approval.is-current")).to_have_attribute("data-call", "early")
    page.keyboard.press("y")
    until(page, "() => document.querySelectorAll('.approval').length === 1")
    assert daemon.session(late)["x-portico"]["state"] == "waiting"
    assert daemon.session(early)["x-portico"]["state"] != "waiting"
