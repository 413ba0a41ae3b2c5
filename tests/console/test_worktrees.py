"""The worktree of a session in the console: its branch, its changes, commit, merge, removal, and those that were kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.test_accessibility import AXE, violations
from tests.gateway.worktrees.repositories import commit_file, git, make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository") / "project")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[ConsoleDaemon]:
    """A daemon with an agent that works in worktrees."""
    agents = {"tree": {"driver": "script", "cwd": str(repository), "worktree": True, "options": {"scenario": "turns.json"}}}
    found = ConsoleDaemon(tmp_path_factory.mktemp("daemon"), agents=agents).start()
    yield found
    found.stop()


@pytest.fixture
def session(daemon: ConsoleDaemon) -> str:
    """A session that has changed `a.txt` and added `new.txt`."""
    found = daemon.new_session(agent="tree")
    for text in ("change", "new"):
        daemon.send(found, text)
    return found


def opened(windows: Windows, session: str, **options: object) -> tuple[Page, Locator]:
    """Open the session, and the changes in its worktree by its branch in the header."""
    page = windows.open(f"/console/sessions/{session}", **(options or {"viewport": {"width": 1440, "height": 900}}))
    page.get_by_role("button", name=f"Changes in the worktree, branch portico/{session[5:17]}").click()
    dialog = page.get_by_role("dialog", name="Changes in the worktree")
    expect(dialog.get_by_role("heading", name="2 files")).to_be_visible()
    return page, dialog


def test_changes_are_committed_and_merged(windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str) -> None:
    page, dialog = opened(windows, session)
    expect(dialog).to_contain_text("0 commits ahead, 0 behind")
    row = dialog.get_by_role("button", name="a.txt")
    expect(row).to_have_attribute("aria-expanded", "false")
    row.press("Enter")
    diff = dialog.get_by_role("group", name="Changes of a.txt")
    expect(diff.locator("tr.removed")).to_contain_text("one")
    expect(diff.locator("tr.added")).to_contain_text("changed")
    merge = dialog.get_by_role("button", name="Merge into main")
    expect(merge).to_be_disabled()
    dialog.get_by_label("Message of the commit").fill("Change two files")
    dialog.get_by_label("Message of the commit").press("Enter")
    expect(dialog).to_contain_text("1 commit ahead, 0 behind")
    expect(dialog.get_by_label("Message of the commit")).to_have_count(0)
    merge.click()
    expect(dialog).to_contain_text("No file differs from the base.")
    assert (repository / "a.txt").read_text() == "changed\n"
    assert git(repository, "log", "-1", "--format=%s") == "Change two files"
    # Nothing is lost any more.
    dialog.get_by_role("button", name="Remove…").click()
    confirm = page.get_by_role("dialog", name="Remove the worktree?")
    expect(confirm).to_contain_text("Nothing is lost")
    confirm.get_by_role("button", name="Remove", exact=True).click()
    expect(dialog).to_have_count(0)
    assert git(repository, "branch", "--list", "portico/*") == ""
    commit_file(repository, "a.txt", "one\n")
    git(repository, "rm", "-q", "new.txt")
    git(repository, "commit", "-q", "-m", "as before")


def test_conflict_is_said_in_the_dialog(windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str) -> None:
    windows.expect("409")
    commit_file(repository, "a.txt", "other\n")
    _, dialog = opened(windows, session)
    dialog.get_by_label("Message of the commit").fill("x")
    dialog.get_by_role("button", name="Commit 2 files").click()
    dialog.get_by_role("button", name="Merge into main").click()
    expect(dialog.get_by_role("alert")).to_contain_text("conflict in a.txt")
    assert (repository / "a.txt").read_text() == "other\n"
    commit_file(repository, "a.txt", "one\n")


def test_work_is_lost_by_the_confirmed_word_only(windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str) -> None:
    page, dialog = opened(windows, session)
    dialog.get_by_role("button", name="Remove…").click()
    confirm = page.get_by_role("dialog", name="Remove the worktree?")
    expect(confirm).to_contain_text("changes that are not committed (a.txt, new.txt)")
    expect(confirm.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(confirm).to_have_count(0)
    folder = Path(daemon.session(session)["x-portico"]["worktree"]["path"])
    assert folder.exists()
    dialog.get_by_role("button", name="Remove…").click()
    confirm.get_by_role("button", name="Remove, and lose that").click()
    expect(dialog).to_have_count(0)
    assert not folder.exists()


def test_what_has_come_since_is_not_lost_without_a_word(
    windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str
) -> None:
    page, dialog = opened(windows, session)
    dialog.get_by_role("button", name="Remove…").click()
    confirm = page.get_by_role("dialog", name="Remove the worktree?")
    expect(confirm).to_contain_text("(a.txt, new.txt)")
    folder = Path(daemon.session(session)["x-portico"]["worktree"]["path"])
    (folder / "third.txt").write_text("third\n")
    confirm.get_by_role("button", name="Remove, and lose that").click()
    expect(confirm).to_contain_text("It has changed meanwhile. It has changes that are not committed (a.txt, new.txt, third.txt)")
    expect(confirm.get_by_role("button", name="Cancel")).to_be_focused()
    assert (folder / "third.txt").exists()
    confirm.get_by_role("button", name="Remove, and lose that").click()
    expect(dialog).to_have_count(0)
    assert not folder.exists()


def test_worktree_that_cannot_be_read_any_more_is_removed(
    windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str
) -> None:
    windows.expect("409")
    page, dialog = opened(windows, session)
    dialog.get_by_role("button", name="Remove…").click()
    folder = Path(daemon.session(session)["x-portico"]["worktree"]["path"])
    shutil.rmtree(folder)
    confirm = page.get_by_role("dialog", name="Remove the worktree?")
    confirm.get_by_role("button", name="Remove, and lose that").click()
    expect(dialog.get_by_role("alert").filter(has_text="Nothing has changed")).to_contain_text("is gone")
    dialog.get_by_role("button", name="Remove…").click()
    expect(confirm).to_contain_text("What it has cannot be read")
    confirm.get_by_role("button", name="Remove, and lose that").click()
    expect(dialog).to_have_count(0)
    assert git(repository, "branch", "--list", f"portico/{session[5:17]}") == ""


def test_kept_worktrees_are_listed_with_the_agents(
    windows: Windows, daemon: ConsoleDaemon, repository: Path, session: str
) -> None:
    daemon.api.delete(f"/aap/v3/sessions/{session}")
    page = windows.open("/console/agents", viewport={"width": 1440, "height": 900})
    row = page.get_by_role("row", name=f"portico/{session[5:17]}")
    expect(row).to_contain_text("deleted; the worktree was kept")
    row.get_by_role("button", name=f"Changes in portico/{session[5:17]}").click()
    dialog = page.get_by_role("dialog", name="Changes in the worktree")
    expect(dialog).to_contain_text("deleted; the worktree was kept")
    dialog.get_by_role("button", name="Remove…").click()
    page.get_by_role("button", name="Remove, and lose that").click()
    expect(row).to_have_count(0)


def test_changes_of_a_turn_appear_when_it_ends(windows: Windows, daemon: ConsoleDaemon, session: str) -> None:
    _, dialog = opened(windows, session)
    daemon.send(session, "other")
    daemon.send(session, "hello")
    folder = Path(daemon.session(session)["x-portico"]["worktree"]["path"])
    (folder / "third").write_text("x")
    daemon.send(session, "hello")
    expect(dialog.get_by_role("heading", name="3 files")).to_be_visible()


def test_sessions_in_worktrees_are_listed_by_their_project(windows: Windows, session: str) -> None:
    page = windows.open(f"/console/sessions/{session}", viewport={"width": 1440, "height": 900})
    expect(page.locator(".conversation-header .session-folder")).to_contain_text("project")
    expect(page.locator(".conversation-header .session-folder")).not_to_contain_text(session[5:17])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dialog_is_accessible_and_fits_on_a_phone(windows: Windows, session: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make .clis/console/.installed")
    page = windows.open(f"/console/sessions/{session}", viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.get_by_role("button", name="Session", exact=True).click()
    page.get_by_role("menuitem", name="Changes in the worktree").click()
    dialog = page.get_by_role("dialog", name="Changes in the worktree")
    dialog.get_by_role("button", name="a.txt").click()
    expect(dialog.get_by_role("group", name="Changes of a.txt")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert dialog.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
