"""`make test-all`: the order of its steps, what it repeats, and its table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.all_steps import STEPS, Step, counts, main, state_of_files

MAKEFILE = """
one two three:
\t@echo $@ >> ../ran
\t@echo '1 failed, 3 passed, 2 skipped in 4.00s'
\t@test ! -e ../broken-$@
"""
THREE = tuple(Step((name,)) for name in ("one", "two", "three"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with three steps. A step fails if the file `broken-STEP` is beside it."""
    root = tmp_path / "clone"
    root.mkdir()
    (root / "Makefile").write_text(MAKEFILE)
    (root / ".gitignore").write_text(".test-all\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def ran(root: Path) -> list[str]:
    """The steps that were run since the last call."""
    file = root.parent / "ran"
    found = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def test_all_steps_run_after_one_that_fails_and_only_that_one_is_repeated(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = clone.parent / "broken-two"
    broken.touch()
    assert main([], clone, THREE) == 1
    assert ran(clone) == ["one", "two", "three"]
    assert "| two | FAILED: .test-all/two.log | 3 | 1 | 2 |" in capsys.readouterr().out
    assert (clone / ".test-all" / "two.log").read_text().startswith("1 failed")

    broken.unlink()
    assert main([], clone, THREE) == 0
    assert ran(clone) == ["two"]
    rows = capsys.readouterr().out.splitlines()
    assert [row.rpartition("|")[0].rpartition("|")[0] for row in rows[-3:]] == [
        "| one | passed | 3 | 1 | 2 ",
        "| two | passed (failed 1 x before) | 3 | 1 | 2 ",
        "| three | passed | 3 | 1 | 2 ",
    ]
    assert main([], clone, THREE) == 0
    assert ran(clone) == []
    assert main(["--fresh"], clone, THREE) == 0
    assert ran(clone) == ["one", "two", "three"]


def test_a_run_that_was_interrupted_goes_on(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(programs: object, packages: object) -> None:
        if programs:
            raise KeyboardInterrupt

    monkeypatch.setattr("tests.all_steps.install", interrupt)
    assert main([], clone, (*THREE[:2], Step(("three",), ("program",)))) == 130
    assert "| three | not run |" in capsys.readouterr().out
    assert ran(clone) == ["one", "two"]
    assert main([], clone, THREE) == 0
    assert ran(clone) == ["three"]


@pytest.mark.parametrize("name", ["Makefile", "untracked"])
def test_other_files_are_tested_anew(clone: Path, name: str) -> None:
    assert main([], clone, THREE) == 0
    ran(clone)
    (clone / name).write_text(MAKEFILE + "# changed\n")
    assert main([], clone, THREE) == 0
    assert ran(clone) == ["one", "two", "three"]


def test_the_repository_is_left_as_it_is(clone: Path) -> None:
    (clone / "untracked").write_text("x")
    before = sorted(path for path in (clone / ".git").rglob("*") if path.is_file())
    state_of_files(clone)
    assert sorted(path for path in (clone / ".git").rglob("*") if path.is_file()) == before


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("== passed\n===== 12 passed, 3 skipped in 5.01s =====\n", (12, 0, 3)),
        ("2 passed in 1.00s\n3 passed, 1 skipped in 2.00s\n", (5, 0, 1)),
        ("2 failed, 5 passed, 1 error in 228.69s (0:03:48)\nmake: *** Error 1\n", (5, 3, 0)),
        ("| kills | 11 | 1 | 45 |\n| all | 76 | 2 | 54 |\n", (74, 2, 0)),
        ("Success: no issues found in 477 source files\n", (None, None, None)),
    ],
)
def test_counts_of_a_step(output: str, expected: tuple[int | None, ...]) -> None:
    assert counts(output) == expected


def test_steps_are_targets_of_make() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert all(f"\n{step.make[0]}: " in makefile for step in STEPS)
