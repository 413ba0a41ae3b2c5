"""The version of an installed program by its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.installed_version import installed_version


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("inner", "packages", "version"),
    [
        ("@openai/codex/bin/codex.js", {"@openai/codex": {"version": "0.169.0"}}, "0.169.0"),
        ("cli/dist/bin/cli.js", {"cli/dist": {"type": "module"}, "cli": {"version": "1.2.3-rc.1"}}, "1.2.3-rc.1"),
        ("cli/cli.js", {"cli": {"version": 3}}, None),
        ("cli/cli.js", {"cli": []}, None),
        ("cli/cli.js", {}, None),
    ],
)
def test_npm_package(tmp_path: Path, inner: str, packages: dict[str, Any], version: str | None) -> None:
    modules = tmp_path / "node_modules"
    (tmp_path / "link").symlink_to(program(modules / inner))
    for folder, package in packages.items():
        (modules / folder / "package.json").write_text(json.dumps(package))
    assert installed_version(str(tmp_path / "link")) == version


def test_version_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "claude").symlink_to(program(tmp_path / "versions" / "2.1.329"))
    (tmp_path / "codex").symlink_to(program(tmp_path / "Cellar" / "codex" / "0.169.0" / "bin" / "codex"))
    assert installed_version(str(tmp_path / "claude")) == "2.1.329"
    assert installed_version(str(tmp_path / "codex")) == "0.169.0"


def test_other_programs_have_none(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"version": "1.0.0"}')
    assert installed_version(str(program(tmp_path / "bin" / "tool"))) is None
    assert installed_version(str(tmp_path / "missing")) is None
