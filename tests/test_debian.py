"""Packages of Debian are installed in CI only, and a failure is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import debian


@pytest.mark.parametrize(("in_ci", "there"), [(True, False), (True, True), (False, False)])
def test_packages_are_installed_in_ci_if_a_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_ci: bool, there: bool
) -> None:
    write(tmp_path / "apt-get", 'echo "$@" >> calls')
    if there:
        write(tmp_path / "program", "")
    monkeypatch.setattr(debian, "IN_CI", in_ci)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    debian.install(["program", "sh"], ["one", "two"])
    calls = tmp_path / "calls"
    expected = ["update -qq", "install -y -qq --no-install-recommends one two"]
    assert (calls.read_text().splitlines() if calls.exists() else []) == (expected if in_ci and not there else [])


@pytest.mark.parametrize("there", [True, False])
def test_what_apt_get_says_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    if there:
        write(tmp_path / "apt-get", "echo 'E: no network' >&2; exit 100")
    monkeypatch.setattr(debian, "IN_CI", True)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if there else str(tmp_path))
    debian.install(["program"], ["one"])
    shown = capsys.readouterr().out
    assert shown.startswith("one could not be installed. apt-get update -qq:\n")
    assert ("E: no network" in shown) if there else ("No such file" in shown)


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
