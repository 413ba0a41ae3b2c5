"""The patterns of `.gitignore` files, compared with git where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gateway.agents.folder_files import FolderFiles
from gateway.agents.ignore_rules import IgnoreRules, is_ignored

PATHS = [
    "a.log", "b.txt", "build/out.o", "src/build/x.c", "src/main.c", "src/a.log", "src/deep/er/file.py", "doc/a/b/c.txt",
    "doc/b/c.txt", "foo/bar/baz", "bar", "x/foo/bar", "#file", "!bang", "space ", "one.py", "two.py", "ten.py", "a/b/c/d",
    "keep/a.log", "keep/important.log", "tmp/x", "q[1]", "star*", "abc/x/def", "abc/def", "abc/x/y/def",
]  # fmt: skip
CASES = [
    "*.log", "*.log\n!important.log", "build/", "/build/", "build", "src/build", "/src/*.c", "**/deep", "doc/**/c.txt",
    "doc/**", "foo/bar", "/bar", "**/foo/bar", "\\#file", "\\!bang", "# comment\n\n", "t[ew]o.py", "t[!w]n.py", "t?n.py",
    "a/b/", "*\n!src/\n!src/main.c", "tmp/*", "q\\[1\\]", "star\\*", "abc/**/def", "**", "*/x", "keep/\n!keep/important.log",
    "*.py\n!/one.py", "src/**/*.py", "**/", "/**/c", "[", "a**c/x", "no/such", "!*.log", "DOC/", "*.L?G",
]  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("patterns", CASES)
def test_as_git(tmp_path: Path, patterns: str) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".gitignore").write_text(patterns)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    found, more = FolderFiles().find(tmp_path, "", 1000)
    assert not more
    assert sorted(one.path for one in found if one.type == "file") == sorted(listed.split("\0")[:-1])


def test_a_file_in_a_lower_folder_precedes() -> None:
    rules = [IgnoreRules([], "*.log"), IgnoreRules(["src"], "!*.log\n/only")]
    assert is_ignored(rules[:1], ["a.log"], folder=False)
    assert not is_ignored(rules, ["src", "a.log"], folder=False)
    assert is_ignored(rules, ["src", "only"], folder=False)
    assert not is_ignored(rules, ["src", "x", "only"], folder=False)


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "**/" * 80 + "b", "[" * 200, "(" * 200, "*" * 256])
def test_no_pattern_takes_long(pattern: str) -> None:
    rules, began = IgnoreRules([], pattern), time.thread_time()
    for path in (["a" * 255], ["a"] * 200):
        rules.decision(path, folder=False)
    assert time.thread_time() - began < 1
