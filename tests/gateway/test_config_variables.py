"""Settings by variables of the environment: their names, their values, and what they precede."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from gateway.cli.main import main
from gateway.cli.options import load_settings
from gateway.config import Settings, load, parse, setting_variables
from gateway.errors import InvalidSettings
from tests.support.portico_command import PorticoCommand

# Of the settings that are no numbers and no booleans, a value that is not the default.
VALUES: dict[str, Any] = {
    "server": {
        "host": "::1", "hosts": ["gw.lan"], "origins": ["http://localhost:*"], "trusted_proxies": ["10.0.0.0/8"],
        "folders": "listed", "data_dir": "/data", "on_disconnect": "cancel", "log_level": "debug", "log_format": "json",
    },
    "auth": {"keys": ["12345678"]},
    "store": {"url": "postgresql://db/portico", "durability": "stored-first"},
    "openai": {"tools": "agent", "show_tools": "off"},
    "node": {
        "address": "http://10.0.0.5:7700", "labels": ["gpu"], "folders": ["/srv"], "key_file": "keys",
        "encryption_key_file": "key",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORTICO_CONFIG", "PORTICO_DATA_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def other_values(section: str) -> dict[str, Any]:
    """Return a value for each setting of a section that is not the default."""
    model = Settings.model_fields[section].annotation
    assert model is not None and issubclass(model, BaseModel)
    given = VALUES.get(section, {})
    defaults = {key: value for key, value in model().model_dump().items() if key not in given}
    return given | {key: not value if isinstance(value, bool) else value + 2000 for key, value in defaults.items()}


def test_every_setting_has_a_variable() -> None:
    table = {section: other_values(section) for section in Settings.model_fields if section != "agents"}
    table["agents"] = {"a.b": {"driver": "script", "args": ["x"], "env": {"A": "b"}}}
    environ = {"PORTICO_AGENTS": json.dumps(table["agents"])}
    defaults = Settings().model_dump()
    for section in table.keys() - {"agents"}:
        for key, value in table[section].items():
            assert value != defaults[section][key]
            name = f"PORTICO_{section}__{key}".upper() if key != "data_dir" else "PORTICO_DATA_DIR"
            environ[name] = value if isinstance(value, str) else json.dumps(value)
    assert load(None, environ) == parse(table)
    assert {*setting_variables(environ)} == {*environ}


def test_options_precede_variables_and_variables_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "[server]\nport = 1\nhost = '::1'\nlog_level = 'error'\n[agents.a]\ndriver = 'echo'\n[agents.b]\ndriver = 'echo'\n"
    )
    monkeypatch.setenv("PORTICO_SERVER__PORT", "2")
    monkeypatch.setenv("PORTICO_SERVER__LOG_LEVEL", "debug")
    monkeypatch.setenv("PORTICO_DATA_DIR", "/of-the-variable")
    monkeypatch.setenv("PORTICO_AGENTS", '{"b": {"driver": "script"}, "c": {"driver": "echo"}}')
    settings = load_settings(file, Path("/of-the-option"), port=3)
    server = settings.server
    assert (server.port, server.host, server.log_level, server.data_dir) == (3, "::1", "debug", Path("/of-the-option"))
    assert {name: agent.driver for name, agent in settings.agents.items()} == {"a": "echo", "b": "script", "c": "echo"}
    assert (load_settings(file, None).server.port, load_settings(file, None).data_dir) == (2, Path("/of-the-variable"))


def test_a_variable_without_a_value_is_none() -> None:
    assert load(None, {"PORTICO_SERVER__HOST": "", "PORTICO_AGENTS": "", "PORTICO_SERVER__PROT": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("PORTICO_SERVER__PROT", "did you mean 'PORTICO_SERVER__PORT'?"),
        ("PORTICO_SERVRE__PORT", "did you mean 'PORTICO_SERVER__PORT'?"),
        ("PORTICO_SERVER_PORT", "did you mean 'PORTICO_SERVER__PORT'?"),
        ("PORTICO_SERVER__DATA_DIR", "did you mean 'PORTICO_DATA_DIR'?"),
        ("PORTICO_APIKEY", "did you mean 'PORTICO_API_KEY'?"),
        ("PORTICO_NODE_KEY", "did you mean 'PORTICO_NODE_KEYS'?"),
        ("PORTICO_AGENTS__demo", "did you mean 'PORTICO_AGENTS'?"),
        ("PORTICO_zzzzzzzzzzzz__qqqqqqqqqqqq", "those of settings are PORTICO_SECTION__KEY, such as PORTICO_SERVER__PORT"),
    ],
)
def test_misspelt_variable_is_refused_with_the_nearest_name(name: str, named: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        load(None, {name: "secret-value"})
    assert str(refusal.value) == f"the environment cannot be used:\n  {name}: unknown variable; {named}"


@pytest.mark.parametrize(
    "name",
    [
        "PORTICO_KEY", "PORTICO_URL", "PORTICO_TEST_STORE", "PORTICO_AGENT_ID", "PORTICO_ALLOW_INSPECTION",
        # A service `portico` of Kubernetes.
        "PORTICO_SERVICE_HOST", "PORTICO_SERVICE_PORT", "PORTICO_SERVICE_PORT_HTTP", "PORTICO_PORT", "PORTICO_PORT_7700_TCP_ADDR",
    ],
)  # fmt: skip
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load(None, {name: "tcp://10.0.0.1:7700"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("PORTICO_SERVER__PORT", "many", "PORTICO_SERVER__PORT: input should be a valid integer"),
        ("PORTICO_SERVER__PORT", "65536", "PORTICO_SERVER__PORT: input should be less than or equal to 65535"),
        ("PORTICO_SERVER__CONSOLE", "no", "PORTICO_SERVER__CONSOLE: input should be a valid boolean"),
        ("PORTICO_SERVER__ORIGINS", "http://localhost:1", "PORTICO_SERVER__ORIGINS: must be an array in JSON"),
        ("PORTICO_SERVER__HOSTS", '["http://x"]', "PORTICO_SERVER__HOSTS.0: must be a host name or an address without a port"),
        ("PORTICO_AUTH__KEYS", '["secret7"]', "PORTICO_AUTH__KEYS.0: string should have at least 8 characters"),
        ("PORTICO_AGENTS", "{demo}", "PORTICO_AGENTS: must be a table in JSON"),
        ("PORTICO_AGENTS", '{"a": {"drvier": "echo"}}', "PORTICO_AGENTS.a.drvier: unknown key; did you mean 'driver'?"),
        ("PORTICO_AGENTS", '{"a": {"driver": "echo", "args": "x"}}', "PORTICO_AGENTS.a.args: must be an array in JSON"),
        ("PORTICO_AGENTS", '{"a b": {"driver": "echo"}}', "PORTICO_AGENTS.a b: an agent's name is letters"),
    ],
)
def test_bad_value_is_refused_with_the_name_of_its_variable(tmp_path: Path, name: str, value: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[limits]\nidle = -1\n")
    with pytest.raises(InvalidSettings) as refusal:
        load(file, {name: value})
    text = str(refusal.value)
    assert text.startswith(f"{file} cannot be used:") and f"\n  {named}" in text and "secret7" not in text
    assert "\n  limits.idle: " in text


def test_section_that_is_no_table_is_refused_beside_a_variable(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("server = 'x'\n")
    with pytest.raises(InvalidSettings, match="server: must be a table"):
        load(tmp_path / "config.toml", {"PORTICO_SERVER__PORT": "1"})


def test_command_prints_the_error_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTICO_SERVER__PROT", "1")
    result = CliRunner().invoke(main, ["key"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: the environment cannot be used:\n  PORTICO_SERVER__PROT: unknown variable")


async def test_daemon_takes_its_settings_from_the_environment(tmp_path: Path) -> None:
    env = {"PORTICO_SERVER__PORT": "0", "PORTICO_SERVER__HOST": "localhost", "PORTICO_DATA_DIR": str(tmp_path / "data")}
    async with PorticoCommand(tmp_path, "serve", env=env, config=False).serving() as server:
        assert server.line.startswith("portico listening on http://127.0.0.1:") and not server.line.rstrip().endswith(":7700")
    refused = PorticoCommand(tmp_path, "serve", env={**env, "PORTICO_SERVER__PROT": "1"}, config=False)
    code, _, err = await refused.run()
    assert (code, "did you mean 'PORTICO_SERVER__PORT'?" in err) == (78, True)
