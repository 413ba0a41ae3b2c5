"""`python -m tests.matrix`: what it tests, writes and returns, with releases of a CLI that does not exist."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import __main__ as command
from tests.matrix import page, results
from tests.matrix.campaign import Outcome
from tests.matrix.checks import CHECKS
from tests.matrix.installation import InstallError

VERSIONS = [f"1.{minor}.0" for minor in range(41)]
TODAY = datetime.now(UTC)


class FakeClis:
    """Stands for npm and the checks: releases of the last 40 days, of which those pass for which `passes` is true."""

    def __init__(self, passes: Callable[[int], bool]) -> None:
        self.passes = passes
        self.checked: list[str] = []
        self.recorded: list[str] = []

    async def view(self, package: str) -> dict[str, Any]:
        times = {version: (TODAY - timedelta(days=40 - n)).isoformat() for n, version in enumerate(VERSIONS)}
        return {"versions": VERSIONS, "time": times, "dist-tags": {"latest": VERSIONS[-1]}}

    @asynccontextmanager
    async def installed(self, package: str, version: str) -> AsyncIterator[Path]:
        assert package == "@x/codex"
        yield Path(version)

    async def run_checks(self, cli: str, installation: Path) -> Outcome:
        version = str(installation)
        self.checked.append(version)
        outcome = Outcome(dict.fromkeys(CHECKS, "passed"), {"application tools": "serial"})
        if not self.passes(int(version.split(".")[1])):
            outcome.results["seed"] = outcome.repeated["seed"] = "failed: lost"
        return outcome

    async def differences(self, cli: str, installation: Path) -> str:
        self.recorded.append(str(installation))
        return "--- plain (golden)"


@pytest.fixture
def files(tmp_path: Path) -> results.Files:
    files = results.Files(tmp_path / "compatibility.json", tmp_path / "runs.json", tmp_path / "page.md")
    cli: dict[str, Any] = {"package": "@x/codex", "oldest": "1.0.0", "tested": None, "notes": [], "releases": []}
    results.save({"codex": cli}, files.results)
    results.save({}, files.runs)
    return files


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], FakeClis]:
    def use(passes: Callable[[int], bool]) -> FakeClis:
        fake = FakeClis(passes)
        for name in ("view", "installed", "run_checks", "differences"):
            monkeypatch.setattr(command, name, getattr(fake, name))
        return fake

    return use


def run(files: results.Files, *more: str) -> int:
    return command.main(["--cli", "codex", *more], files)


def found(files: results.Files) -> dict[str, Any]:
    cli: dict[str, Any] = json.loads(files.results.read_text())["codex"]
    return cli


def test_releases_that_pass(use: Any, files: results.Files) -> None:
    fake = use(lambda minor: True)
    assert run(files, "--count", "5") == 0
    assert fake.checked == ["1.0.0", "1.10.0", "1.20.0", "1.30.0", "1.40.0"]
    assert found(files)["tested"] == {"from": "1.0.0", "to": "1.40.0"}
    assert json.loads(files.runs.read_text())["codex"]["1.10.0"]["behaviour"] == {"application tools": "serial"}
    assert files.page.read_text() == page.page(results.load(files.results), results.load(files.runs))
    assert fake.recorded == []


@pytest.mark.parametrize("first", [1, 10, 11, 17, 20])
def test_the_first_release_that_passes_is_found(use: Any, files: results.Files, first: int) -> None:
    fake = use(lambda minor: minor >= first)
    assert run(files, "--count", "5") == 1
    assert found(files)["tested"]["from"] == f"1.{first}.0"
    assert f"1.{first - 1}.0" in fake.checked and len(fake.checked) == len({*fake.checked}) <= 5 + command.BISECTED
    # What is recorded as failed does not fail the next run.
    assert run(files, "--count", "5") == 0


def test_a_release_that_passed_and_fails(use: Any, files: results.Files, capsys: pytest.CaptureFixture[str]) -> None:
    use(lambda minor: True)
    assert run(files, "--count", "2") == 0
    use(lambda minor: minor != 40)
    assert run(files, "--version", "1.40.0") == 1
    assert "codex 1.40.0: seed has passed before and now failed: lost" in capsys.readouterr().out
    assert found(files)["tested"] == {"from": "1.0.0", "to": "1.0.0"}


def test_the_newest_alone_is_compared_with_the_golden_events(
    use: Any, files: results.Files, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = use(lambda minor: True)
    assert run(files, "--count", "1") == 0
    assert (fake.checked, fake.recorded) == (["1.40.0"], ["1.40.0"])
    assert "--- plain (golden)" in capsys.readouterr().out


def test_an_error_of_npm_is_recorded_of_no_release(
    use: Any, files: results.Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(lambda minor: True)

    @asynccontextmanager
    async def installed(package: str, version: str) -> AsyncIterator[Path]:
        raise InstallError("npm exited with 1: no network")
        yield Path()

    monkeypatch.setattr(command, "installed", installed)
    assert run(files) == 2
    assert "codex: npm exited with 1: no network" in capsys.readouterr().out
    assert found(files)["releases"] == []


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--since", "soon"], ["--cli", "other"]])
def test_wrong_arguments(use: Any, files: results.Files, arguments: list[str]) -> None:
    fake = use(lambda minor: True)
    with pytest.raises(SystemExit):
        run(files, *arguments)
    assert fake.checked == []


def test_a_version_needs_its_cli(files: results.Files) -> None:
    with pytest.raises(SystemExit):
        command.main(["--version", "1.0.0"], files)


def test_an_unknown_version_is_named(use: Any, files: results.Files, capsys: pytest.CaptureFixture[str]) -> None:
    use(lambda minor: True)
    assert run(files, "--version", "9.9.9") == 2
    assert "no release 9.9.9 that is tested; there are 1.0.0 and newer" in capsys.readouterr().out
