"""`sandbox` of an agent: its processes cannot read the gateway's secrets, in sessions, tasks, probes and `portico run`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.codec import Command
from drivers.runtime import sandbox
from drivers.runtime.cli_driver import run_to_end
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import Agents
from gateway.app import Gateway
from gateway.config import load, parse
from gateway.errors import BadRequest, ConfigError
from gateway.protocols.acp.transport.local_socket import LocalSocket
from gateway.security.api_keys import default_api_keys
from gateway.security.redaction import Redactor
from tests.conftest import write_config
from tests.support.acp_client import RpcFailed, connect
from tests.support.daemon import gateway_config, run_gateway, serve_gateway
from tests.support.portico_command import PorticoCommand
from tests.support.requests import create_session, execute, get_session, send_turn, session_body
from tests.support.waiting import wait_until

needs_landlock = pytest.mark.skipif(sandbox.unavailable() is not None, reason=f"no sandbox here: {sandbox.unavailable()}")

SHELL_AGENT = """
import json, os, subprocess, sys
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), {}
    if method == "initialize":
        try:
            open(os.path.join(os.environ["HOME"], "started"), "w").close()
        except OSError:
            pass
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif method == "session/new":
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        command = "".join(block.get("text", "") for block in message["params"]["prompt"])
        text = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        send(method="session/update", params={"sessionId": "s", "update": update})
        result = {"stopReason": "end_turn"}
    if "id" in message and method:
        send(id=message["id"], result=result)
"""
"""An ACP agent that runs each prompt as a shell command and answers with its output. It writes a file in HOME when it starts."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the data directory in it. Not pytest's, whose folders have many entries."""
    for name in ("PORTICO_API_KEY", "PORTICO_CONFIG", "PORTICO_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    path = Path(tempfile.mkdtemp(prefix="portico-sandbox-"))
    for name in ("home/.sh", "work"):
        (path / name).mkdir(parents=True)
    (path / "agent.py").write_text(SHELL_AGENT)
    yield path
    shutil.rmtree(path)


def sandboxed(folder: Path, **more: Any) -> dict[str, Any]:
    """The configuration of an agent in a sandbox that runs shell commands."""
    env = {"HOME": str(folder / "home")}
    command = {"program": sys.executable, "args": ["-I", "-S", str(folder / "agent.py")]}
    return {"driver": "acp", **command, "env": env, "sandbox": "workspace-write", **more}


def config_of(folder: Path, **entry: Any) -> dict[str, Any]:
    return gateway_config(folder, agents={"shell": sandboxed(folder, **entry)})


@needs_landlock
async def test_agent_in_a_sandbox_reads_no_secret_and_writes_in_its_folders(folder: Path) -> None:
    write_config(folder, config_of(folder))
    settings = load(folder / "config.toml")
    data = settings.data_dir
    keys = default_api_keys(settings.model_copy(update={"auth": settings.auth.model_copy(update={"keys": ()})}))
    async with serve_gateway(Gateway(settings, settings.auth.keys, Redactor())) as running:
        script = f"""
            cat {data}/api-key {data}/portico.db {data}/portico.db-wal {data}/instance-id {folder}/config.toml
            cat /proc/{os.getpid()}/environ
            echo x > {folder}/work/f; echo x > {data}/new; echo x > {folder}/home/f
            echo ok > f && echo ok > $TMPDIR/f && cat f $TMPDIR/f {folder}/agent.py | head -2; pwd
        """
        first = await create_session(running.client, "shell", script)
        session, output = first["sessionId"], first["messages"][-1]["content"]
        assert output.count("ermission denied") == 9, output
        assert output.splitlines()[-3:] == ["ok", "ok", str(data / "workspaces" / "shell")]
        assert keys[0] not in output
        assert (await send_turn(running.client, session, "cat f"))["messages"][-1]["content"] == "ok\n"
        task = await execute(running.client, f"cat {data}/api-key; echo end", driver="shell")
        text = "".join(frame.get("text", "") for frame in task)
        assert "ermission denied" in text and text.endswith("end\n")
        assert (await get_session(running.client, session))["agent"]["name"] == "shell"


SHARED = ("/tmp", "/var/tmp", "/dev/shm")
WRITES = "; ".join(f"f=$(mktemp {folder}/portico-XXXXXX 2>/dev/null) && rm $f && echo {folder}" for folder in SHARED)
"""Tries to make a file in the folders that all programs share."""


@needs_landlock
# Not /tmp, where the data directory of a test may be.
@pytest.mark.parametrize("opened", [(), SHARED[1:]])
async def test_each_agent_in_a_sandbox_has_its_own_temporary_folder(folder: Path, opened: tuple[str, ...]) -> None:
    temporary = folder / "data" / "temporary"
    async with run_gateway(config_of(folder, sandbox_writable=list(opened))) as running:
        script = f"{WRITES}; echo $TMPDIR $TMP $TEMP; echo secret > $TMPDIR/file"
        one, other = [await create_session(running.client, "shell", script) for _ in range(2)]
        own, others = [session["messages"][-1]["content"].split()[-3:] for session in (one, other)]
        assert own == [own[0]] * 3 and Path(own[0]).parent == temporary and own != others
        assert one["messages"][-1]["content"].split()[:-3] == list(opened)
        script = f"cat $TMPDIR/file {others[0]}/file; echo x > {others[0]}/new"
        text = (await send_turn(running.client, one["sessionId"], script))["messages"][-1]["content"]
        assert text.startswith("secret\n") and text.count("ermission denied") == 2
        assert (await running.client.delete(f"/aap/v3/sessions/{other['sessionId']}")).is_success
        # The other session's is gone, and that of a probe with it.
        await wait_until(lambda: os.listdir(temporary) == [Path(own[0]).name])
    assert os.listdir(temporary) == []


@needs_landlock
async def test_a_temporary_folder_of_the_configuration_is_used_and_writable(folder: Path) -> None:
    env = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "work")}
    async with run_gateway(config_of(folder, env=env)) as running:
        session = await create_session(running.client, "shell", "echo 1 > $TMPDIR/f; cat $TMPDIR/f; echo $TMPDIR $TMP")
        one, tmpdir, tmp = session["messages"][-1]["content"].split()
    assert (one, tmpdir, Path(tmp).parent) == ("1", str(folder / "work"), folder / "data" / "temporary")


@needs_landlock
async def test_a_programs_own_variable_for_it_names_the_agents_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of the daemon's environment."""
    monkeypatch.setenv("CLAUDE_CODE_TMPDIR", "/tmp")
    env = {"HOME": str(folder / "home")}
    entry = {"driver": "claude", "program": sys.executable, "sandbox": "workspace-write", "env": env}
    agent = Agents(parse({**config_of(folder), "agents": {"claude": entry}})).get("claude")
    spec = agent.spec({})
    script = 'for name in "$TMPDIR" "$TMP" "$TEMP" "$CLAUDE_CODE_TMPDIR"; do echo x > $name/file; echo "$name"; done'
    code, printed = await run_to_end(Command(("sh", "-c", script), spec.cwd, spec.env), agent.sandboxed(Spawner(), spec))
    assert (code, len(set(printed.split()))) == (0, 1) and printed.split()[0] != "/tmp"


@needs_landlock
async def test_agent_without_a_sandbox_is_not_restricted(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "api-key").write_text("secret")
    async with run_gateway(config_of(folder, sandbox="off")) as running:
        assert (await create_session(running.client, "shell", f"cat {folder}/data/api-key"))["messages"][-1][
            "content"
        ] == "secret"
    assert (folder / "home" / "started").exists()


@needs_landlock
async def test_probe_has_the_sandbox(folder: Path) -> None:
    async with run_gateway(config_of(folder)) as running:
        [state] = [found for found in await running.gateway.discovery.all_agents() if found.agent.name == "shell"]
        assert state.problem is None
    assert not (folder / "home" / "started").exists()


@needs_landlock
async def test_own_folders_of_the_program_and_listed_ones_are_writable(folder: Path) -> None:
    (folder / "home" / f".{Path(sys.executable).name}").mkdir()
    async with run_gateway(config_of(folder, sandbox_writable=[str(folder / "work")])) as running:
        script = f"cd {folder}; echo 1 > work/f; echo 2 > home/.{Path(sys.executable).name}/f; cat work/f home/.*/f"
        assert (await create_session(running.client, "shell", script))["messages"][-1]["content"] == "1\n2\n"


@needs_landlock
async def test_a_configured_place_that_an_agent_replaces_by_a_link_is_refused(folder: Path) -> None:
    """The agent can write in the folder of the place, where it works itself."""
    (folder / "work" / "cache").mkdir()
    async with run_gateway(config_of(folder, cwd=str(folder / "work"), sandbox_writable=[f"{folder}/work/cache"])) as running:
        await create_session(running.client, "shell", f"rmdir cache && ln -s {folder}/home cache")
        answer = await running.client.put("/session", json=session_body("shell", f"echo x > {folder}/home/new"))
    assert (answer.status_code, "cache has become a symbolic link" in answer.text) == (503, True), answer.text
    assert not (folder / "home" / "new").exists()


@needs_landlock
async def test_configured_places_are_found_in_a_home_behind_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link").symlink_to(folder / "work")
    monkeypatch.setenv("HOME", f"{folder}/link")
    async with run_gateway(config_of(folder, sandbox_writable=["~/new"])) as running:
        (folder / "work" / "new").mkdir()
        script = f"echo 1 > {folder}/link/new/f; cat {folder}/work/new/f"
        assert (await create_session(running.client, "shell", script))["messages"][-1]["content"] == "1\n"


@needs_landlock
async def test_command_without_a_daemon_has_the_sandbox(folder: Path) -> None:
    write_config(folder, config_of(folder))
    (folder / "data").mkdir()
    (folder / "data" / "api-key").write_text("secret")
    # `portico run` works in the current folder, which contains the data directory here.
    code, _, err = await PorticoCommand(folder, "run", "shell", "cat data/api-key").run()
    assert (code, "which contains" in err and "data" in err) == (1, True), err
    write_config(folder, config_of(folder, cwd=str(folder / "work")))
    code, out, _ = await PorticoCommand(folder, "run", "shell", "cat ../data/api-key ../config.toml; echo end").run()
    assert (code, out.count("ermission denied"), out.splitlines()[-1]) == (0, 2, "end")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"cwd": "{folder}"}, "agents could write in {folder}, which contains {folder}/data"),
        ({"cwd": "{folder}/data/state"}, "agents could write in {folder}/data/state, which is in {folder}/data"),
        ({"env": {"TMPDIR": "{folder}"}}, "agents could write in {folder}, which contains {folder}/data"),
        ({"sandbox_writable": ["{folder}/work", "{folder}"]}, "agents could write in {folder}, which contains"),
    ],
)
def test_folders_that_contain_secrets_are_refused_at_the_start(folder: Path, entry: dict[str, Any], reason: str) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(one) for name, one in value.items()}
        return [filled(one) for one in value] if isinstance(value, list) else value.replace("{folder}", str(folder))

    with pytest.raises(ConfigError) as refused:
        Agents(parse(config_of(folder, **filled(entry))))
    assert filled(reason) in str(refused.value)
    assert str(refused.value).startswith("agents.shell.sandbox")


@needs_landlock
@pytest.mark.parametrize(("program", "refused"), [("agent", False), ("/opt/agents/portico", True)])
def test_agent_whose_home_has_the_data_directory(folder: Path, program: str, refused: bool) -> None:
    """As it is by default. Only the folders that are named like its program are writable there."""
    entry = {"driver": "acp", "program": program, "sandbox": "workspace-write", "env": {"HOME": str(folder)}}
    settings = parse({"server": {"data_dir": f"{folder}/.local/share/portico"}, "agents": {"one": entry}})
    with pytest.raises(ConfigError, match="agents could write") if refused else nullcontext():
        Agents(settings)


def test_sandbox_that_cannot_be_had_is_refused_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    with pytest.raises(ConfigError, match=r"agents\.shell\.sandbox: it needs Landlock version 3 .* this kernel has none"):
        Agents(parse(config_of(folder)))


@needs_landlock
def test_spec_of_a_driver_has_the_sandbox(folder: Path) -> None:
    confined = Agents(parse(config_of(folder))).get("shell").spec({}).confined
    assert (confined, Agents(parse(config_of(folder, sandbox="off"))).get("shell").spec({}).confined) == (True, False)


@needs_landlock
async def test_session_in_a_folder_that_contains_secrets_is_refused(folder: Path) -> None:
    agents = Agents(parse(config_of(folder)), workspace=folder / "work", any_directory=True)
    agent = agents.get("shell")
    with pytest.raises(BadRequest, match="cannot be used in a sandbox: agents could write in"):
        agent.check_options({"cwd": str(folder)})
    agent.check_options({"cwd": str(folder / "work")})
    async with run_gateway(config_of(folder)) as running:
        client, connection = connect(running.gateway, "shell")
        await client.initialize()
        with pytest.raises(RpcFailed):
            await client.request("session/new", {"cwd": str(folder), "mcpServers": []})
        await connection.close()


def test_secret_paths_are_the_data_directory_the_configuration_and_the_database(folder: Path) -> None:
    write_config(folder, {"server": {"data_dir": str(folder / "data")}, "store": {"url": f"sqlite:///{folder}/other.db"}})
    paths = load(folder / "config.toml").secret_paths
    assert {folder / "data", folder / "config.toml", folder / "other.db", folder / "other.db-wal"} <= set(paths)


async def test_temporary_files_of_the_gateway_are_where_no_agent_writes(tmp_path: Path) -> None:
    """node loads a file of a probe's folder, also for agents without a sandbox."""
    left = tmp_path / "data" / "temporary" / "portico-probe-left"
    for folder in (left, left.with_name("t-left")):
        folder.mkdir(parents=True)
    async with run_gateway(gateway_config(tmp_path)) as running:
        spawner = running.gateway.discovery.spawner
        assert spawner is not None and spawner.temporary == left.parent
        assert left.parent.stat().st_mode & 0o777 == 0o700
        # Probes of this gateway have theirs there too.
        assert not {left.name, "t-left"} & set(os.listdir(left.parent)), "those of a daemon that was killed"
        assert tmp_path / "data" in running.gateway.agents.get("script")._folders._secret_paths


CONNECTS = """
import json, socket, sys
from gateway.security.socket_proof import prove
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
try:
    connection.sendall(json.dumps({"proof": prove(connection, sys.argv[2]), "agent": "missing"}).encode() + b"\\n")
    print(connection.recv(1000).decode() or "closed")
except OSError:
    print("closed")
"""


@needs_landlock
@pytest.mark.parametrize(("sandbox", "before"), [("workspace-write", ""), ("workspace-write", "setsid "), ("off", "")])
async def test_a_process_in_the_sandbox_is_no_local_client_even_with_the_token(folder: Path, sandbox: str, before: str) -> None:
    (folder / "work" / "connects.py").write_text(CONNECTS)
    async with run_gateway(config_of(folder, sandbox=sandbox)) as running:
        local = LocalSocket(running.gateway, folder / "data")
        await local.open()
        token = json.loads((folder / "data" / "acp-socket.json").read_text())["token"]
        line = before + shlex.join([sys.executable, f"{folder}/work/connects.py", f"{folder}/data/acp.sock", token])
        text = (await create_session(running.client, "shell", line))["messages"][-1]["content"]
        assert ("no agent 'missing'" in text) if sandbox == "off" else text == "closed\n"
        await local.close()
