"""`portico agents`: the list, and what is written into the configuration file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main

CONFIG = '# Mine.\n[server]\nport = 7701\n\n[agents.reviewer]\ndriver = "claude"\n'


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORTICO_CONFIG", "PORTICO_DATA_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(CONFIG)
    return file


def install(tmp_path: Path, *programs: str) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name in programs:
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["agents", *map(str, arguments)])


def listed(*arguments: object) -> dict[str, dict[str, Any]]:
    lines = run("list", "--json", *arguments).stdout.splitlines()
    return {agent["name"]: agent for agent in map(json.loads, lines)}


def test_the_list(tmp_path: Path, config: Path) -> None:
    install(tmp_path, "claude", "opencode", "goose")
    found = listed("--config", config)
    states = {name: (agent["state"], agent["configured"]) for name, agent in found.items()}
    assert states["reviewer"] == ("offered", True)
    assert states["claude"] == states["opencode"] == ("offered", False)
    assert (states["goose"], states["kimi"], states["codex"]) == (("add", False), ("missing", False), ("missing", False))
    kimi = found["kimi"]
    assert (kimi["command"], kimi["install"], kimi["tested"]) == ("kimi acp", "npm install -g @moonshot-ai/kimi-code", "2.1.0")
    assert (found["goose"]["tested"], found["opencode"]["program"]) == (None, str(tmp_path / "bin" / "opencode"))
    lines = {line.split()[0]: line for line in run("list", "--config", config).stdout.splitlines()}
    assert lines.keys() == found.keys()
    assert "offered after `portico agents add goose`" in lines["goose"]
    assert "`npm install -g @moonshot-ai/kimi-code`" in lines["kimi"]


def test_the_list_creates_no_data_directory(tmp_path: Path, config: Path) -> None:
    before = set(tmp_path.rglob("*"))
    assert run("list", "--config", config).exit_code == 0
    assert set(tmp_path.rglob("*")) == before


def test_an_agent_is_added_and_removed(tmp_path: Path, config: Path) -> None:
    install(tmp_path, "goose")
    added = run("add", "goose", "--config", config)
    assert added.exit_code == 0
    assert f'added [agents.goose] to {config}: driver = "goose"' in added.stdout
    assert "a daemon that runs offers it after a restart" in added.stdout
    assert "whether it asks before it runs a tool is not known" in added.stdout
    assert config.read_text() == CONFIG + '\n[agents.goose]\n# goose\ndriver = "goose"\n'
    assert listed("--config", config)["goose"]["state"] == "offered"
    removed = run("remove", "goose", "--config", config)
    assert removed.stdout == f"removed [agents.goose] from {config}\n"
    assert config.read_text() == CONFIG


def test_the_first_agent_makes_the_file(tmp_path: Path) -> None:
    assert run("add", "github-copilot-cli", "--as", "pilot").exit_code == 0
    file = tmp_path / ".config" / "portico" / "config.toml"
    assert tomllib.loads(file.read_text()) == {"agents": {"pilot": {"driver": "copilot"}}}
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_still_to_do_is_said(tmp_path: Path, config: Path) -> None:
    output = run("add", "qwen", "--config", config).stdout
    assert "its program 'qwen' is not on PATH yet: install it with `npm install -g @qwen-code/qwen-code`" in output
    assert "it needs Node 22" in output and "OPENAI_API_KEY" in output and "Portico sets `default`" in output
    assert "see https://cursor.com" in run("add", "cursor", "--config", config).stdout


def test_a_program_elsewhere(tmp_path: Path, config: Path) -> None:
    program = tmp_path / "own" / "opencode"
    assert f"there is no program '{program}'" in run("add", "opencode", "--program", program, "--config", config).stderr
    assert config.read_text() == CONFIG
    install(tmp_path, "opencode")
    program.parent.mkdir()
    (tmp_path / "bin" / "opencode").rename(program)
    answer = run("add", "opencode", "--program", program, "--config", config, "--json")
    table = {"driver": "opencode", "program": str(program)}
    assert json.loads(answer.stdout) == {"agent": "opencode", "file": str(config), "table": table, "program": str(program)}
    assert tomllib.loads(config.read_text())["agents"]["opencode"] == table


def test_an_agent_that_is_removed_may_be_offered_still(tmp_path: Path, config: Path) -> None:
    install(tmp_path, "kimi")
    run("add", "kimi", "--config", config)
    assert (
        "kimi is offered without an entry too, because its program is on PATH" in run("remove", "kimi", "--config", config).stdout
    )
    run("add", "kimi", "--config", config)
    assert json.loads(run("remove", "kimi", "--config", config, "--json").stdout)["offered"] is True


def test_agents_of_the_environment_are_listed_and_not_edited(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTICO_AGENTS", '{"opencode": {"driver": "opencode"}}')
    assert listed("--config", config)["opencode"]["configured"]
    assert "the configuration has no [agents.opencode]; it has reviewer" in run("remove", "opencode", "--config", config).stderr
    assert run("add", "opencode", "--config", config).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "opncode"), "there is no agent 'opncode'; did you mean 'opencode'?"),
        (("add", "echo"), "there is no agent 'echo'"),
        (("add", "opencode", "--as", "reviewer"), "has [agents.reviewer] already; edit it there"),
        (("add", "opencode", "--as", "not a name"), "an agent's name is letters, digits"),
        (("remove", "kimi"), "the configuration has no [agents.kimi]; it has reviewer"),
    ],
)
def test_what_is_refused_changes_nothing(config: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = run(*arguments, "--config", config)
    assert answer.exit_code == 1 and message in answer.stderr
    assert config.read_text() == CONFIG


def test_a_table_that_cannot_be_edited_is_left_alone(config: Path) -> None:
    text = 'agents = { reviewer = { driver = "claude" } }\n'
    config.write_text(text)
    answer = run("remove", "reviewer", "--config", config)
    assert answer.exit_code == 1 and f"{config} is left as it is: [agents.reviewer] does not" in answer.stderr
    assert config.read_text() == text


def test_the_file_may_be_named_before_the_subcommand(config: Path) -> None:
    answer = CliRunner().invoke(main, ["agents", "--config", str(config), "add", "kimi"])
    assert answer.exit_code == 0 and "[agents.kimi]" in config.read_text()


def test_a_link_to_the_file_stays(tmp_path: Path, config: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    assert run("add", "kimi", "--config", link).exit_code == 0
    assert link.is_symlink() and "[agents.kimi]" in config.read_text()
