"""Edits of each CLI as lines of a diff."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import MODULE, module_page
from tests.console.main_thread import slowness


@pytest.fixture(scope="module")
def page(browser: Browser, daemon: ConsoleDaemon) -> Iterator[Page]:
    with module_page(browser, daemon.url) as found:
        yield found


def changes(page: Page, name: str, given: Any, reported: Any = ()) -> list[dict[str, Any]]:
    code = f"async ([name, input, reported]) => (await import('{MODULE}file-changes.js')).changesOfCall(name, input, reported)"
    return list(page.evaluate(code, [name, given, list(reported)]))


def lines(change: dict[str, Any]) -> list[str]:
    """The lines of all hunks as in a unified diff, with both line numbers."""
    shown = []
    for hunk in change["hunks"]:
        for line in hunk["lines"]:
            numbers = [str(number) if number is not None else "." for number in (line["old"], line["new"])]
            shown.append(f"{'/'.join(numbers)} {line['type']}{line['text']}")
    return shown


def test_edit_of_claude(page: Page) -> None:
    [found] = changes(page, "Edit", {"file_path": "/w/a.py", "old_string": "a\nb\nc", "new_string": "a\nB\nc"})
    assert found["path"] == "/w/a.py" and (found["added"], found["removed"]) == (1, 1)
    assert lines(found) == ["./. " + line for line in (" a", "-b", "+B", " c")]


def test_hunks_that_claude_reports_have_line_numbers(page: Page) -> None:
    reported = [
        {"path": "/w/a.py", "old_text": "x\ny\nz", "new_text": "x\nY\nnew\nz", "line": 10},
        {"path": "/w/a.py", "old_text": "p\nq", "new_text": "p", "line": 41},
    ]
    [found] = changes(page, "Edit", {"file_path": "/w/a.py", "old_string": "y", "new_string": "Y"}, reported)
    assert lines(found) == ["10/10  x", "11/. -y", "./11 +Y", "./12 +new", "12/13  z", "40/41  p", "41/. -q"]


def test_several_edits_of_claude(page: Page) -> None:
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "d"}]
    [found] = changes(page, "MultiEdit", {"file_path": "/w/a.py", "edits": edits})
    assert lines(found) == ["./. -a", "./. +b", "./. -c", "./. +d"] and len(found["hunks"]) == 2


def test_a_file_that_is_written(page: Page) -> None:
    [found] = changes(page, "Write", {"file_path": "/w/new.txt", "content": "one\ntwo\n"})
    # Whether the file exists is not in the input.
    assert found["kind"] == "write" and lines(found) == ["./1 +one", "./2 +two"]


def test_patches_of_codex(page: Page) -> None:
    given = {
        "changes": [
            {"path": "/w/out.txt", "kind": "add", "diff": "written by the model\n"},
            {"path": "/w/a.py", "kind": "update", "diff": "@@ -3,3 +3,3 @@ def f\n x\n-y\n+Y\n z\n", "move_path": "/w/b.py"},
            {"path": "/w/old.txt", "kind": "delete", "diff": "gone\n"},
            {"path": "/w/unknown.txt", "kind": "add"},
        ]
    }
    added, updated, deleted, unknown = changes(page, "apply_patch", given)
    assert (added["kind"], lines(added)) == ("add", ["./1 +written by the model"])
    assert (updated["movedTo"], lines(updated)) == ("/w/b.py", ["3/3  x", "4/. -y", "./4 +Y", "5/5  z"])
    assert (deleted["kind"], lines(deleted)) == ("delete", ["1/. -gone"])
    assert unknown["hunks"] == []


def test_the_patch_of_a_model(page: Page) -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@ def f\n-x\n+y\n*** Add File: b.py\n+new\n*** End Patch"
    updated, added = changes(page, "apply_patch", {"patch": patch})
    assert (updated["path"], lines(updated)) == ("a.py", ["./. -x", "./. +y"])
    assert (added["kind"], lines(added)) == ("add", ["./. +new"])


def test_edits_of_gemini(page: Page) -> None:
    diff = "--- /w/a.txt\n+++ /w/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO"
    [found] = changes(page, "replace", {"file_path": "/w/a.txt", "diff": diff})
    assert lines(found) == ["1/1  one", "2/. -two", "./2 +TWO"]
    [found] = changes(page, "write_file", {"file_path": "/w/a.txt", "content": "one\nTWO", "diff": diff})
    assert lines(found) == ["1/1  one", "2/. -two", "./2 +TWO"]


def test_edits_over_acp(page: Page) -> None:
    given = {
        "title": "Edit a.txt",
        "changes": [{"path": "/w/a.txt", "kind": "add", "diff": "--- /w/a.txt\n+++ /w/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two"}],
    }
    [found] = changes(page, "edit", given)
    assert (found["kind"], lines(found)) == ("add", ["./1 +one", "./2 +two"])


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        3,
        [],
        {},
        {"command": "ls"},
        {"changes": "x"},
        {"changes": [None, 3, {}]},
        {"file_path": 3, "content": "x"},
        {"path": "a"},
    ],
)
def test_no_edit(page: Page, given: Any) -> None:
    assert changes(page, "shell", given) == []


def test_long_unchanged_stretches_are_left_out(page: Page) -> None:
    before = [f"line {number}" for number in range(200)]
    after = [*before]
    after[20], after[150] = "changed", "changed too"
    [found] = changes(page, "Edit", {"file_path": "a", "old_string": "\n".join(before), "new_string": "\n".join(after)})
    assert len(found["hunks"]) == 2 and [len(hunk["lines"]) for hunk in found["hunks"]] == [8, 8]


def test_huge_texts_are_quick(page: Page) -> None:
    before, after = ("\n".join(f"{word} {number}" for number in range(12_000)) for word in ("old", "new"))
    took = page.evaluate(
        f"async ([a, b]) => {{ const {{ changesOfCall }} = await import('{MODULE}file-changes.js');"
        " const before = performance.now();"
        " changesOfCall('Edit', { file_path: 'x', old_string: a, new_string: b }); return performance.now() - before; }",
        [before, after],
    )
    assert took < 500 * slowness(page)


def test_side_by_side_puts_replaced_lines_together(page: Page) -> None:
    given = [
        {"type": kind, "text": text} for kind, text in [(" ", "a"), ("-", "b"), ("-", "c"), ("+", "B"), (" ", "d"), ("+", "e")]
    ]
    pairs = page.evaluate(f"async (lines) => (await import('{MODULE}file-changes.js')).pairsOf(lines)", given)
    assert [[side and side["text"] for side in pair] for pair in pairs] == [
        ["a", "a"],
        ["b", "B"],
        ["c", None],
        ["d", "d"],
        [None, "e"],
    ]
