"""`run_in` of an agent: its processes run in bwrap or in containers, in sessions, tasks and probes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.diagnosis.machine import check_containers
from gateway.errors import ConfigError
from tests.conftest import write_config
from tests.gateway.agents.test_sandbox import SHELL_AGENT
from tests.support.container_runtimes import install_fake_docker, needs_bwrap, put_into
from tests.support.daemon import gateway_config, run_gateway
from tests.support.portico_command import PorticoCommand
from tests.support.requests import create_session, execute, get_session, send_turn, session_body
from tests.support.waiting import wait_until

DOCKER = {"run_in": "docker", "container": {"image": "image:1"}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a program, a home, a working folder and the data directory."""
    path = Path(tempfile.mkdtemp(prefix="portico-run-in-")).resolve()
    for name in ("home", "work", "program", "other"):
        (path / name).mkdir()
    (path / "program" / "agent.py").write_text(SHELL_AGENT)
    (path / "other" / "file").write_text("of another project")
    yield path
    shutil.rmtree(path)


def config_of(folder: Path, **entry: Any) -> dict[str, Any]:
    """The configuration of an agent that runs each prompt as a shell command."""
    command = {"program": sys.executable, "args": ["-I", "-S", str(folder / "program" / "agent.py")]}
    agent = {"driver": "acp", **command, "cwd": str(folder / "work"), "env": {"HOME": str(folder / "home")}, **entry}
    return gateway_config(folder, agents={"shell": agent})


@needs_bwrap
async def test_agent_in_bwrap_reads_no_secret_and_writes_in_its_folders(folder: Path) -> None:
    container = {"home": str(folder / "home"), "mounts": [str(folder / "program")]}
    config = config_of(folder, run_in="bwrap", container=container)
    data = config["server"]["data_dir"]
    async with run_gateway(config) as portico:
        (Path(data) / "api-key").write_text("sesame")
        script = f"cat {data}/api-key {folder}/other/file; echo new > made; echo x > {folder}/program/made"
        first = await create_session(portico.client, "shell", script)
        session, text = first["sessionId"], first["messages"][-1]["content"]
        assert "sesame" not in text and "another project" not in text
        assert text.count("No such file") == 2 and "Read-only file system" in text
        later = await send_turn(portico.client, session, "echo again > $HOME/made; uname")
        assert later["messages"][-1]["content"] == "Linux\n"
        assert (await get_session(portico.client, session))["sessionId"] == session
        events = await execute(portico.client, "pwd; ls -A /tmp", driver="shell")
    assert (folder / "work" / "made").read_text() == "new\n"
    assert (folder / "home" / "made").read_text() == "again\n"
    assert not (folder / "program" / "made").exists()
    assert str(folder / "work") in str(events)


@needs_bwrap
async def test_a_mount_that_an_agent_replaces_by_a_link_is_refused(folder: Path) -> None:
    (folder / "work" / "shared").mkdir()
    container = {"home": str(folder / "home"), "mounts": [str(folder / "program"), f"{folder}/work/shared:/tmp/shared:rw"]}
    async with run_gateway(config_of(folder, run_in="bwrap", container=container)) as portico:
        await create_session(portico.client, "shell", f"rmdir shared && ln -s {folder}/other shared")
        answer = await portico.client.put("/session", json=session_body("shell", "cat /tmp/shared/*; echo x > /tmp/shared/made"))
    assert (answer.status_code, "shared cannot be mounted" in answer.text) == (503, True), answer.text
    assert not (folder / "other" / "made").exists()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"run_in": "podman"}, "container.image is missing"),
        ({"run_in": "qemu"}, "'node', 'podman', 'docker' or 'bwrap'"),
        ({"container": {"image": "x"}}, "`container` has no effect without run_in"),
        ({"run_in": "bwrap", "container": {"image": "x"}}, "container.image needs run_in"),
        ({"run_in": "bwrap", "container": {"memory": "1g"}}, "container.memory needs run_in"),
        ({"run_in": "bwrap", "container": {"network": "agents"}}, 'container.network is "host" or "none"'),
        ({"run_in": "bwrap", "sandbox": "workspace-write"}, "leave `sandbox` out"),
        ({**DOCKER, "container": {"image": "--privileged"}}, "'--privileged' is not a name"),
        ({**DOCKER, "container": {"image": "x", "memory": "much"}}, "'much' is not a size"),
        ({**DOCKER, "container": {"image": "x", "cpus": 0}}, "greater than 0"),
        ({**DOCKER, "container": {"image": "x", "mounts": ["work"]}}, "'work' is not a mount"),
        ({**DOCKER, "container": {"image": "x", "mounts": ["/a:/b:/c"]}}, "'/a:/b:/c' is not a mount"),
        ({**DOCKER, "container": {"image": "x", "volumes": []}}, "volumes"),
    ],
)
def test_configuration_that_is_not_possible(folder: Path, entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(config_of(folder, **entry))
    assert problem in str(raised.value) and "agents.shell" in str(raised.value)


@pytest.mark.parametrize("mount", ["{data}", "{data}:/data:rw", "{base}"])
def test_secrets_of_the_gateway_are_not_mounted(folder: Path, mount: str) -> None:
    config = config_of(folder)
    config["agents"]["shell"] |= {"run_in": "docker", "container": {"image": "x"}}
    text = mount.format(data=config["server"]["data_dir"], base=folder)
    config["agents"]["shell"]["container"]["mounts"] = [text]
    with pytest.raises(ConfigError, match=r"agents\.shell\.run_in: agents could"):
        Agents(parse(config))


def test_runtime_that_is_not_installed(folder: Path) -> None:
    agent = Agents(parse(config_of(folder, **DOCKER)), {"PATH": str(folder)}).get("shell")
    assert agent.problem() is not None
    assert "docker is not on PATH; install it" in str(agent.problem()) and 'agents.shell.run_in = "node"' in str(agent.problem())
    assert agent.missing_runtime == "docker"


async def test_image_that_is_missing_has_the_command_that_gets_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in install_fake_docker(folder).items():
        monkeypatch.setenv(name, value)
    config = config_of(folder, run_in="docker", container={"image": "missing"})
    async with run_gateway(config) as portico:
        discovery, agent = portico.gateway.discovery, portico.gateway.agents.get("shell")
        await discovery.probe(agent, refresh=True)
        await discovery.wait_for_probe(agent)
        found = discovery.current(agent)
        assert found.problem is not None and "the image missing is not here" in found.problem
        assert found.command == "docker pull missing"


async def test_runtime_that_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of the daemon does not wait for it. Agents in its containers do, once, and others never."""
    install_fake_docker(folder)
    calls = folder / "calls"
    program = folder / "fake-bin" / "docker"
    program.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec sleep 600\n')
    monkeypatch.setenv("PATH", f"{folder}/fake-bin:{os.environ['PATH']}")
    config = config_of(folder, **DOCKER)
    config["agents"]["echo"] = {"driver": "echo"}
    async with run_gateway(config) as portico:
        removing = portico.gateway._removal
        assert removing is not None and not removing.done()
        assert (await portico.client.get("/healthz")).status_code == 200
        assert (await create_session(portico.client, "echo", "hello"))["stopReason"] == "end_turn"
        assert not removing.done()
    assert removing.cancelled()
    calls.unlink()
    monkeypatch.setattr("drivers.runtime.containers.CALL_SECONDS", 1.0)
    async with run_gateway(config) as portico:
        body = {"agent": {"name": "shell"}, "messages": [{"role": "user", "content": "true"}]}
        for _ in range(2):
            answer = await portico.client.put("/session", json=body)
            assert answer.status_code == 503
            assert "docker has not answered within 1 s; see what `docker info` does" in answer.json()["error"]
    # That of the removal at the start; nothing was asked again.
    assert calls.read_text().split() == ["ps"]


async def test_removal_of_an_earlier_daemons_containers_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent starts in a container after it: it would have the label of those that are removed."""
    for name, value in install_fake_docker(folder).items():
        monkeypatch.setenv(name, value)
    program = folder / "fake-bin" / "docker"
    go, real = folder / "go", program.rename(folder / "fake-bin" / "real-docker")
    program.write_text(f'#!/bin/sh\n[ "$1" = ps ] && until [ -e {go} ]; do sleep 0.05; done\nexec {real} "$@"\n')
    program.chmod(0o755)
    async with run_gateway(config_of(folder, **DOCKER)) as portico:
        session = asyncio.create_task(create_session(portico.client, "shell", "echo ran"))
        removing = portico.gateway._removal
        assert removing is not None
        await asyncio.wait([session], timeout=0.5)
        assert not session.done() and not (folder / "docker" / "calls").exists()
        go.touch()
        assert (await session)["messages"][-1]["content"] == "ran\n"
    commands = [json.loads(line)[0] for line in (folder / "docker" / "calls").read_text().splitlines()]
    assert commands[0] == "ps" and "run" in commands and commands.count("ps") == 1


async def test_program_of_an_image_is_not_looked_for_on_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is the one that it has in the image."""
    for name, value in install_fake_docker(folder).items():
        monkeypatch.setenv(name, value)
    inside = folder / "program" / "only-inside"
    inside.write_text("#!/bin/sh\necho 7.8.9\n")
    inside.chmod(0o755)
    config = config_of(folder, **DOCKER)
    agent = config["agents"]["shell"]
    agent |= {"program": "only-inside", "args": [], "driver": "acp"}
    agent["env"]["PATH"] = f"{folder}/program:/usr/bin:/bin"
    configured = Agents(parse(config), os.environ).get("shell")
    assert (configured.problem(), configured.program()) == (None, "only-inside")
    assert configured.installed_program() == ("only-inside", 0)


async def test_doctor_checks_the_runtimes(folder: Path) -> None:
    settings = parse(config_of(folder, **DOCKER))
    (missing,) = await check_containers(settings, {"PATH": str(folder)})
    assert (missing.status, missing.text) == ("problem", "docker is not on PATH; used by shell")
    (works,) = await check_containers(settings, {**os.environ, **install_fake_docker(folder)})
    assert works.status == "ok" and works.text.endswith("used by shell")
    assert await check_containers(parse(config_of(folder)), os.environ) == []


@pytest.mark.parametrize("runtime", ["stand-in for docker", pytest.param("podman", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGTERM, "turn"), pytest.param(signal.SIGHUP, "turn", marks=pytest.mark.long), (signal.SIGINT, "end")],
)
async def test_signal_to_portico_run_ends_the_container(
    folder: Path, runtime: str, number: signal.Signals, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes while an agent is ended that goes on after the end of its input."""
    seconds = str(100_000 + os.getpid())
    at_end = f"open('end', 'w').close()\nsubprocess.run(['sleep', '{seconds}'])\n"
    (folder / "program" / "agent.py").write_text(SHELL_AGENT + at_end)
    config = config_of(folder)
    if runtime == "podman":
        programs = (folder / "program", Path(sys.base_prefix), Path(sys.prefix))
        variables = put_into("podman", config["agents"]["shell"], folder / "home", monkeypatch, *programs)
    else:
        variables = install_fake_docker(folder)
        config["agents"]["shell"] |= DOCKER
    write_config(folder, config)
    task = f"touch turn; sleep {seconds}" if when == "turn" else "uname"
    process = await PorticoCommand(folder, "run", "shell", task, env=variables, own=True).start()
    await wait_until(lambda: (folder / "work" / when).exists() and sleeping(seconds))
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (128 + number, b"")
    assert not sleeping(seconds)
    if runtime == "podman":
        argv = ["podman", "ps", "--all", f"--filter=volume={folder}/work", "--format={{.Names}}"]
        found = await asyncio.to_thread(subprocess.run, argv, env={**os.environ, **variables}, capture_output=True, check=True)
        assert found.stdout == b""


def sleeping(seconds: str) -> list[psutil.Process]:
    """The processes that run `sleep SECONDS`."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]


def test_login_is_in_the_container(folder: Path) -> None:
    config = config_of(folder, **DOCKER)
    container = {"image": "image:1", "home": str(folder / "home"), "mounts": ["/opt/cli"]}
    config["agents"]["claude"] = {"driver": "claude", "run_in": "docker", "container": container}
    command = Agents(parse(config)).get("claude").login_command()
    assert command == (
        f"docker run --rm --interactive --tty --network=host --volume=/opt/cli:/opt/cli:ro --volume={folder}/home:{folder}/home "
        f"--env=HOME={folder}/home --entrypoint=claude image:1 auth login --claudeai"
    )
