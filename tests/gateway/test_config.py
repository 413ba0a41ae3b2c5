"""The configuration: the example is true, and what is wrong is refused with the key and what would be right."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.agents import Agents
from gateway.config import AgentSettings, Settings, load, parse
from gateway.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"


def uncommented() -> str:
    """The example with its commented keys and tables switched on."""
    return re.sub(r"^# (?=\[agents|[a-z_]+ = )", "", re.sub(r"^# # .*\n", "", EXAMPLE.read_text(), flags=re.M), flags=re.M)


def test_the_example_is_the_defaults() -> None:
    assert load(EXAMPLE) == Settings()


def test_the_example_with_all_its_keys_can_be_used() -> None:
    settings = parse(tomllib.loads(uncommented()))
    assert set(settings.agents) == {"reviewer", "demo"}
    assert settings.auth.keys == ("a-long-random-text",)
    assert {agent.name for agent in Agents(settings)} >= {"echo", "claude", "reviewer", "demo"}


def test_the_example_names_every_key() -> None:
    table = tomllib.loads(uncommented())
    for section, field in Settings.model_fields.items():
        if section != "agents":
            model = field.annotation
            assert isinstance(model, type) and issubclass(model, BaseModel)
            assert set(table[section]) == set(model.model_fields), section
    assert set(table["agents"]["reviewer"]) == set(AgentSettings.model_fields)


@pytest.mark.parametrize(
    ("table", "path", "advice"),
    [
        ({"agents": {"a": {"drvier": "echo"}}}, "agents.a.drvier", "did you mean 'driver'?"),
        ({"agents": {"a": {}}}, "agents.a.driver", "required"),
        ({"agents": {"a/b": {"driver": "echo"}}}, "agents.a/b", "letters, digits"),
        ({"agents": {"a": {"driver": "echo", "env": {"N": 1}}}}, "agents.a.env.N", "string"),
        ({"agents": {"a": {"driver": "echo", "options": {"model": 5}}}}, "agents.a.options.model", "string"),
        ({"sever": {}}, "sever", "did you mean 'server'?"),
        ({"server": {"prot": 1}}, "server.prot", "did you mean 'port'?"),
        ({"server": {"port": 70000}}, "server.port", "65535"),
        ({"server": {"port": "many"}}, "server.port", "integer"),
        ({"server": {"log_level": "loud"}}, "server.log_level", "debug|info|warning|error"),
        ({"limits": {"idle": -1}}, "limits.idle", "greater than or equal to 0"),
        ({"limits": {"live_agents": 0}}, "limits.live_agents", "greater than or equal to 1"),
        ({"auth": {"keys": ["short"]}}, "auth.keys.0", "8 characters"),
        ({"auth": {"zzz": 1}}, "auth.zzz", "known keys are keys"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key_and_what_would_be_right(table: dict[str, Any], path: str, advice: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(table, "portico.toml")
    assert str(refused.value).startswith("portico.toml cannot be used:\n")
    assert f"  {path}: " in str(refused.value)
    assert advice in str(refused.value)


def test_a_key_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"auth": {"keys": ["s3cret"]}})
    assert "s3cret" not in str(refused.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"server": {"port": -1, "hots": ""}, "limits": {"start": "x"}})
    assert all(key in str(refused.value) for key in ("server.port", "server.hots", "limits.start"))


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ({"driver": "ekko"}, "agents.a.driver: no driver 'ekko'; there are"),
        ({"driver": "claude", "options": {"modle": "x"}}, "agents.a.options: agent 'a' has no option 'modle'"),
        (
            {"driver": "script", "options": {"pace": "slow"}},
            "option 'pace' of agent 'a' cannot be 'slow'; choose one of recorded, fast",
        ),
    ],
)
def test_an_agent_that_cannot_be_is_refused_at_the_start(entry: dict[str, Any], advice: str, tmp_path: Path) -> None:
    settings = parse({"server": {"data_dir": str(tmp_path)}, "agents": {"a": entry}})
    with pytest.raises(ConfigError) as refused:
        Agents(settings)
    assert advice in str(refused.value)


def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "portico.toml"
    file.write_text("[server]\nport = = 1\n")
    with pytest.raises(ConfigError, match=r"portico\.toml is not TOML: .*line 2"):
        load(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*nowhere"):
        load(tmp_path / "nowhere.toml")


def test_the_file_of_the_environment_is_used(tmp_path: Path) -> None:
    file = tmp_path / "portico.toml"
    file.write_text("[server]\nport = 7777\n")
    assert load(None, {"PORTICO_CONFIG": str(file)}).server.port == 7777
