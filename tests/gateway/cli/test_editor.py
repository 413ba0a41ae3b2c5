"""`portico editor`: what it prints, and what it writes into an editor's settings."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.jsonc import parse
from gateway.cli.main import main
from tests.conftest import write_config

PROGRAM = "/opt/bin/portico"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORTICO_CONFIG", "PORTICO_DATA_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "argv", [PROGRAM, "editor"])
    monkeypatch.setattr(sys, "platform", "linux")


def install(tmp_path: Path, *programs: str) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name in programs:
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)


def run_editor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["editor", *arguments])


def entry(*args: str) -> dict[str, object]:
    return {"command": PROGRAM, "args": ["acp", *args], "env": {}}


def test_agents_whose_program_is_installed_are_printed(tmp_path: Path) -> None:
    install(tmp_path, "claude", "gemini")
    servers = json.loads(run_editor("jetbrains").stdout)["agent_servers"]
    assert servers == {"Portico: claude": entry("claude"), "Portico: gemini": entry("gemini")}


def test_agent_options_and_daemon_are_arguments_of_the_command(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"agents": {"reviewer": {"driver": "echo"}}})
    arguments = ["--config", str(config), "--connect", "http://127.0.0.1:7700"]
    servers = json.loads(run_editor("zed", "reviewer", *arguments).stdout)["agent_servers"]
    assert servers == {"Portico: reviewer": {"type": "custom", **entry(*arguments, "reviewer")}}


@pytest.mark.parametrize(("editor", "file"), [("zed", ".config/zed/settings.json"), ("jetbrains", ".jetbrains/acp.json")])
def test_settings_are_written_once_and_keep_what_they_have(editor: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text('// mine\n{\n  "theme": "dark", // at night\n  "agent_servers": {"Other": {"command": "x"}},\n}\n')
    path.chmod(0o640)
    assert run_editor(editor, "echo", "--write").exit_code == 0
    written = path.read_text()
    assert written.startswith("// mine\n") and '"theme": "dark", // at night\n' in written
    assert set(parse(written)["agent_servers"]) == {"Other", "Portico: echo"}
    assert path.stat().st_mode & 0o777 == 0o640
    again = run_editor(editor, "echo", "--write")
    assert (again.exit_code, again.stdout, path.read_text()) == (0, f"{path} has it already\n", written)
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_settings_that_are_missing_are_created(tmp_path: Path) -> None:
    assert run_editor("zed", "echo", "--write").exit_code == 0
    path = tmp_path / ".config/zed/settings.json"
    assert parse(path.read_text()) == {"agent_servers": {"Portico: echo": {"type": "custom", **entry("echo")}}}


def test_settings_that_are_a_link_stay_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles/acp.json"
    target.write_text("{}")
    (tmp_path / ".jetbrains").mkdir()
    (tmp_path / ".jetbrains/acp.json").symlink_to(target)
    assert run_editor("jetbrains", "echo", "--write").exit_code == 0
    assert (tmp_path / ".jetbrains/acp.json").is_symlink()
    assert "Portico: echo" in target.read_text()


@pytest.mark.parametrize("text", ['{"agent_servers": ', "[1]", '{"agent_servers": 3}'])
def test_settings_that_cannot_be_read_are_left_as_they_are(text: str, tmp_path: Path) -> None:
    path = tmp_path / ".jetbrains/acp.json"
    path.parent.mkdir()
    path.write_text(text)
    refused = run_editor("jetbrains", "echo", "--write")
    assert refused.exit_code == 1 and f"{path} is left as it is" in refused.stderr
    assert path.read_text() == text


def test_toad_gets_a_start_script_that_passes_the_folder(tmp_path: Path) -> None:
    assert run_editor("toad", "echo", "--write").exit_code == 0
    script = tmp_path / ".local/bin/toad-echo"
    install(tmp_path, "toad")
    (tmp_path / "bin/toad").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    printed = subprocess.run([script, "a folder"], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    assert printed.splitlines() == ["acp", f"{PROGRAM} acp echo", "--title", "Portico: echo", "a folder"]
    assert shlex.split(run_editor("toad", "echo").stdout) == ["toad", *printed.splitlines()[:-1]]


@pytest.mark.parametrize("editor", ["codecompanion", "agent-shell"])
def test_settings_that_are_a_program_are_printed_instead(editor: str) -> None:
    printed = run_editor(editor, "echo")
    refused = run_editor(editor, "echo", "--write")
    assert (printed.exit_code, refused.exit_code) == (0, 1)
    assert f'"{PROGRAM}"' in printed.stdout
    assert printed.stdout in refused.stderr


def test_an_unknown_agent_and_a_machine_without_agents_are_errors() -> None:
    unknown = run_editor("zed", "nobody")
    assert unknown.exit_code == 1 and "there is no agent 'nobody'; choose from: claude, codex, echo, gemini" in unknown.stderr
    none = run_editor("zed")
    assert none.exit_code == 1 and "its program 'claude' is not on PATH; install it with" in none.stderr


@pytest.mark.parametrize("editor", ["zed", "jetbrains", "toad", "codecompanion", "agent-shell"])
def test_the_page_of_editors_has_what_is_printed(editor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/path/to/portico", "editor"])
    page = (Path(__file__).parents[3] / "docs/editors.md").read_text()
    assert f"\n{run_editor(editor, 'claude').stdout}```\n" in page
