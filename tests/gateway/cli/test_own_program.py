"""The path of the command that editors and service managers start later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.cli.own_program import own_program
from gateway.errors import ConfigError
from gateway.installation import install_command


@pytest.mark.parametrize("name", ["portico", "portico-gateway"])
def test_it_is_the_command_that_was_started(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"/opt/bin/{name}", "editor"])
    assert own_program() == f"/opt/bin/{name}"


def test_without_a_command_the_error_has_the_one_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/srv/gateway/__main__.py", "editor"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the command `portico` is not on PATH") as refused:
        own_program()
    assert str(refused.value).endswith(f"Run: {install_command()}")
