"""`run_in` of an agent: its processes run in bwrap or in containers, in sessions, tasks and probes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.diagnosis.machine import check_containers
from gateway.errors import ConfigError
from tests.container_runtimes import install_fake_docker, needs_bwrap
from tests.daemon import gateway_config, run_gateway
from tests.gateway.agents.test_sandbox import SHELL_AGENT
from tests.gateway.requests import create_session, execute, get_session, send_turn

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


def test_login_is_in_the_container(folder: Path) -> None:
    config = config_of(folder, **DOCKER)
    container = {"image": "image:1", "home": str(folder / "home"), "mounts": ["/opt/cli"]}
    config["agents"]["claude"] = {"driver": "claude", "run_in": "docker", "container": container}
    command = Agents(parse(config)).get("claude").login_command()
    assert command == (
        f"docker run --rm --interactive --tty --network=host --volume=/opt/cli:/opt/cli:ro --volume={folder}/home:{folder}/home "
        f"--env=HOME={folder}/home --entrypoint=claude image:1 auth login --claudeai"
    )
