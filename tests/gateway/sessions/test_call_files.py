"""The files that a pending call would change, as they are on the disk: which are read, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.sessions.call_files import MAX_BYTES, MAX_FILES, FileOnDisk, paths_of, read_files

PATCH = "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@\n-x\n+y\n*** Delete File: c.py\n*** End Patch"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"file_path": "/w/a", "content": "x"}, ["/w/a"]),
        ({"notebook_path": "/w/a.ipynb", "new_source": ""}, ["/w/a.ipynb"]),
        ({"changes": [{"path": "/a", "move_path": "/b"}, {"file_path": "/c"}, None, 3, {"path": 4}]}, ["/a", "/b", "/c"]),
        ({"path": "a", "changes": [{"path": "a"}]}, ["a"]),
        ({"patch": PATCH}, ["a.py", "b.py", "c.py"]),
        ({"input": PATCH}, ["a.py", "b.py", "c.py"]),
        (PATCH, ["a.py", "b.py", "c.py"]),
        ({"command": "cat a", "file_path": 3, "path": ""}, []),
        (None, []),
        ([], []),
    ],
)  # fmt: skip
def test_the_paths_of_a_call(given: Any, expected: list[str]) -> None:
    assert paths_of(given) == expected


def only(folder: Path, path: object, *others: Path) -> FileOnDisk:
    [found] = read_files([str(path)], folder, others)
    return found


def test_a_file_with_its_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo")
    found = only(tmp_path, tmp_path / "a")
    assert (found.exists, found.text, found.size, found.problem) == (True, "one\r\ntwo", 8, None)
    assert found.modified == os.stat(tmp_path / "a").st_mtime
    assert only(tmp_path, "a").text == "one\r\ntwo"


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    assert only(tmp_path, tmp_path / "sub" / "new") == FileOnDisk(str(tmp_path / "sub" / "new"), exists=False)


@pytest.mark.parametrize("path", ["{outside}/secret", "../outside/secret", "link/secret", "file-link", "dangling"])
def test_nothing_outside_of_the_folders_is_looked_at(tmp_path: Path, path: str) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "link").symlink_to(outside)
    (folder / "file-link").symlink_to(outside / "secret")
    (folder / "dangling").symlink_to(outside / "none")
    found = only(folder, path.format(outside=outside))
    assert (found.exists, found.text, found.problem) == (None, None, "it is outside of the session's folders")
    if "dangling" not in path:
        # It is one of the session's folders.
        assert only(folder, path.format(outside=outside), outside).text == "secret"


def test_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (tmp_path / "exact").write_bytes(b"x" * MAX_BYTES)
    os.mkfifo(tmp_path / "fifo")
    binary, large = only(tmp_path, "binary"), only(tmp_path, "large")
    assert (binary.exists, binary.text, binary.problem) == (True, None, "it is not text in UTF-8")
    assert (large.exists, large.text, large.size) == (True, None, MAX_BYTES + 1)
    assert only(tmp_path, "exact").text == "x" * MAX_BYTES
    for path in ("fifo", "."):
        assert (only(tmp_path, path).exists, only(tmp_path, path).problem) == (None, "it is not a regular file")
    assert "cannot be read" in (only(tmp_path, "binary/below").problem or "")
    # "embedded null byte"; from Python 3.13 on "embedded null character in path".
    assert "embedded null" in (only(tmp_path, "a\0b").problem or "")
    assert "home folder" in (only(tmp_path, "~/.bashrc").problem or "")


def test_only_so_many_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    found = read_files(["a"] * (MAX_FILES + 1), tmp_path)
    assert [(one.exists, one.problem) for one in found] == [
        *[(True, None)] * MAX_FILES,
        (None, f"the call has more than {MAX_FILES} files"),
    ]
