"""The configuration file: errors have the path of the key and the expected value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.agents.configured_agents import Agents
from gateway.cli.main import main
from gateway.cli.options import load_settings
from gateway.config import Settings, load, parse
from gateway.errors import ConfigError

BAD: list[tuple[str, list[str]]] = [
    ("[server]\nprot = 1", ["server.prot", "unknown key", "did you mean 'port'?"]),
    ("[servre]\nport = 1", ["servre", "unknown key", "did you mean 'server'?"]),
    ("[server]\nxyzzy = 1", ["server.xyzzy", "known keys are console, data_dir, ", "host, hosts, keep_alive"]),
    ("[agents.x]\ndriver = 'echo'\ndrvier = 'echo'", ["agents.x.drvier", "did you mean 'driver'?"]),
    ("[agents.x]\ndrvier = 'echo'", ["agents.x.drvier", "did you mean 'driver'?", "agents.x.driver", "required"]),
    ("[agents.x]\ndriver = 'echo'\n[agents.x.limits]\nidle = 1", ["agents.x.limits", "unknown key"]),
    ("[agents.'a b']\ndriver = 'echo'", ["agents.a b", "letters, digits"]),
    ("[agents.'-a']\ndriver = 'echo'", ["agents.-a", "starts with a letter or digit"]),
    (f"[agents.{'a' * 65}]\ndriver = 'echo'", ["agents.aaa", "64 at most"]),
    ("[agents]\nx = 'echo'", ["agents.x", "table"]),
    ("agents = 3", ["agents", "table"]),
    ("server = 'x'", ["server", "table"]),
    ("[server]\nhosts = ['http://x']", ["server.hosts.0", "host name or an address without a port"]),
    ("[server]\nhosts = ['x:80']", ["server.hosts.0", "host name or an address without a port"]),
    (
        "[server]\ntrusted_proxies = ['*']",
        ["server.trusted_proxies.0", "must be an IP address, such as '127.0.0.1', or a network"],
    ),
    ("[server]\ntrusted_proxies = ['10.0.0.1/8']", ["server.trusted_proxies.0", "must be an IP address"]),
    ("[server]\norigins = ['*']", ["server.origins.0", "http://localhost:*"]),
    ("[server]\norigins = ['null']", ["server.origins.0", "an origin as browsers write it"]),
    ("[server]\norigins = ['http://*']", ["server.origins.0", "an origin as browsers write it"]),
    ("[server]\norigins = ['HTTP://*']", ["server.origins.0", "an origin as browsers write it"]),
    ("[server]\norigins = ['hTTps://*']", ["server.origins.0", "an origin as browsers write it"]),
    ("[server]\norigins = ['FILE://*']", ["server.origins.0", "an origin as browsers write it"]),
    ("[server]\norigins = ['http://localhost:3000/']", ["server.origins.0", "no path"]),
    ("[server]\nport = 'many'", ["server.port", "integer"]),
    ("[server]\nport = true", ["server.port", "integer"]),
    ("[server]\nport = 1.5", ["server.port", "integer"]),
    ("[server]\nport = 65536", ["server.port", "65535"]),
    ("[server]\nport = -1", ["server.port", "0"]),
    ("[server]\nhost = 127", ["server.host", "string"]),
    ("[server]\nkeep_alive = 0", ["server.keep_alive", "greater than 0"]),
    ("[server]\nmax_body = 10", ["server.max_body", "1024"]),
    ("[server]\nlog_level = 'loud'", ["server.log_level", "debug", "info", "warning", "error"]),
    ("[limits]\nidle = -1", ["limits.idle", "greater than or equal to 0"]),
    ("[limits]\nidle = nan", ["limits.idle"]),
    ("[limits]\ngrace = 'long'", ["limits.grace", "number"]),
    ("[limits]\nlive_agents = 0", ["limits.live_agents", "greater than or equal to 1"]),
    ("[limits]\nrunning_turns = -1", ["limits.running_turns", "greater than or equal to 0"]),
    ("[auth]\nshare_sessions = 'yes'", ["auth.share_sessions", "boolean"]),
    ("[auth]\nkeys = 'one'", ["auth.keys", "array"]),
    ("[auth]\nkeys = ['secret7']", ["auth.keys.0", "at least 8 characters"]),
    ("[agents.x]\ndriver = 'echo'\nargs = 'one two'", ["agents.x.args", "array"]),
    ("[agents.x]\ndriver = 'echo'\nenv = { A = 1 }", ["agents.x.env.A", "string"]),
    ("[agents.x]\ndriver = 'echo'\noptions = { model = ['a'] }", ["agents.x.options.model", "string"]),
    ("[store]\nkeep_executions_days = 0", ["store.keep_executions_days", "greater than 0"]),
]
BAD_AGENTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"driver": "claud"}, ["agents.x.driver", "'claud'", "claude", "echo", "script"]),
    ({"driver": "echo", "options": {"model": "x"}}, ["agents.x.options", "'model'"]),
    ({"driver": "script", "options": {"pace": "slow"}}, ["agents.x.options", "'pace'", "recorded, fast"]),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.mark.parametrize(("text", "named"), BAD)
def test_invalid_value_is_named_with_its_path(file: Path, text: str, named: list[str]) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load(file)
    message = str(refusal.value)
    assert str(file) in message
    assert all(word in message for word in named), message
    assert "secret7" not in message
    assert "settings" not in message.replace(str(file), ""), "the message does not mention internal names"


@pytest.mark.parametrize(("entry", "named"), BAD_AGENTS)
def test_invalid_agent_is_named_with_its_path(tmp_path: Path, entry: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Agents(parse({"agents": {"x": entry}}), {}, tmp_path)
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_all_errors_are_reported_at_once(file: Path) -> None:
    file.write_text("[server]\nport = 'x'\nhots = 'y'\n[limits]\nidle = -1\n")
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert [word for word in ("server.port", "server.hots", "limits.idle") if word not in str(refusal.value)] == []


@pytest.mark.parametrize(("content", "line"), [(b"[server]\nport = \n", "line 2"), (b"[server\n", "line 1"), (b"\xff\xfe=1", "")])
def test_toml_error_is_reported_with_file_and_line(file: Path, content: bytes, line: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert str(file) in str(refusal.value)
    assert line in str(refusal.value)


def test_a_byte_order_mark_and_brackets_of_an_address_are_left_out(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[server]\nhost = '[::1]'\n")
    assert load(file).server.host == "::1"
    assert load_settings(file, None, "[::]").server.host == "::"


def test_missing_file_and_folder_are_rejected(file: Path, tmp_path: Path) -> None:
    for path in (file, tmp_path):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            load(path)
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            load(None, {"PORTICO_CONFIG": str(path)})


def test_precedence_of_option_environment_and_default_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert load(None, {}) == Settings()
    files = {number: tmp_path / f"{number}.toml" for number in (1, 2)}
    usual = tmp_path / "config" / "portico" / "config.toml"
    usual.parent.mkdir(parents=True)
    for number, path in {**files, 3: usual}.items():
        path.write_text(f"[server]\nport = {number}\n")
    assert load(files[1], {"PORTICO_CONFIG": str(files[2])}).server.port == 1
    assert load(None, {"PORTICO_CONFIG": str(files[2])}).server.port == 2
    assert load(None, {}).server.port == 3


@pytest.mark.parametrize("arguments", [("key",), ("run", "echo", "x")])
def test_command_prints_the_error_and_exits_with_1(file: Path, arguments: tuple[str, ...]) -> None:
    file.write_text("[agents.x]\ndrvier = 'echo'\n")
    command, *rest = arguments
    result = CliRunner().invoke(main, [command, "--config", str(file), *rest])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert "agents.x.drvier" in result.stderr
