"""The catalogue of ACP agents: its entries, in the format of the protocol's registry, and the drivers that it makes."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.acp.catalogue import FILE, CatalogueAgent, catalogue
from drivers.acp.driver import AcpDriver
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.driver_info import ToolGrant
from drivers.driver_registry import load
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import DEFAULT_AGENTS
from gateway.config import AGENT_NAME
from tests.drivers.acp.small_agent import MARK, agent_args, environment

ENTRIES = tomllib.loads(FILE.read_text())["agents"]
REGISTRY_KEYS = {"id", "name", "version", "description", "website", "distribution", "portico"}
AGENT = CatalogueAgent("one-agent", "one", "One", "An agent.", "1.0", "https://example.org", "one", ("acp",), "npm install one")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_an_entry_has_the_format_of_the_registry(entry: dict[str, object]) -> None:
    assert entry.keys() == REGISTRY_KEYS
    assert re.fullmatch(r"[a-z][a-z0-9-]*", str(entry["id"]))
    assert str(entry["website"]).startswith("https://")
    [(kind, distribution)] = entry["distribution"].items()  # type: ignore[attr-defined]
    if kind == "binary":
        [(platform, binary)] = distribution.items()
        assert platform == "linux-x86_64" and binary.keys() <= {"cmd", "args", "env"}
    else:
        assert kind in ("npx", "uvx") and distribution.keys() <= {"package", "args", "env"}
        # The tests pin versions, users do not.
        assert "@" not in distribution["package"][1:] and "=" not in distribution["package"]


def test_names_are_unique_and_those_of_agents() -> None:
    agents = list(catalogue())
    assert len(agents) == len(ENTRIES) == len({entry.id for entry in catalogue().values()})
    assert all(re.fullmatch(AGENT_NAME, name) for name in agents)
    assert not set(agents) & {*DEFAULT_AGENTS, "acp", "script"}


def test_each_agent_is_a_driver() -> None:
    drivers = load()
    for name, entry in catalogue().items():
        info = drivers[name].info()
        assert (info.title, info.program.name, info.program.install, info.program.env) == (
            entry.title,
            entry.program,
            entry.install,
            entry.variables,
        )
        assert [login.arguments for login in info.program.logins] == ([entry.login] if entry.login else [])
        assert {option.name: option.default for option in info.options}.items() >= entry.options.items()


def test_the_command_line_and_the_environment(tmp_path: Path) -> None:
    driver = AcpDriver(entry(env={"ASKS": "all"}))
    assert driver.info().program.set_env == {"ASKS": "all"}
    session = driver.session(SessionSpec("/bin/one", tmp_path, {"PATH": "/bin", "ASKS": ""}, ("--more",)))
    assert session.command.argv == ("/bin/one", "acp", "--more")
    assert session.command.env == {"PATH": "/bin", "ASKS": ""}
    task = driver.task(TaskSpec("/bin/one", tmp_path, {"PATH": "/bin", "ASKS": "all"}, ("--more",), task="do"))
    assert task.command.argv == ("/bin/one", "acp", "--more")
    assert task.command.env == {"PATH": "/bin", "ASKS": "all"}


@pytest.mark.parametrize("methods", [None, (), ("write",)])
@pytest.mark.parametrize("lists", [True, False])
def test_client_methods_are_declared_as_the_entry_has_it(tmp_path: Path, methods: tuple[str, ...] | None, lists: bool) -> None:
    """In each session those of the entry: an agent may write without asking where it is not offered the method."""
    driver = AcpDriver(entry(client_methods=methods))
    grants = tuple(map(ToolGrant, ("read", "edit", "execute"))) if lists else ()
    permissions = {"task_permissions": "allow" if lists else "reject"}
    launches = (
        driver.session(SessionSpec("/bin/one", tmp_path, {}, tools=grants)),
        driver.task(TaskSpec("/bin/one", tmp_path, {}, options=permissions, task="do")),
    )
    names = {"read": b'"readTextFile":true', "write": b'"writeTextFile":true', "terminal": b'"terminal":true'}
    expected = set(names if lists else ()) if methods is None else set(methods)
    for launch in launches:
        sent = bytes(launch.codec.outbox)
        assert {name for name, text in names.items() if text in sent} == expected


async def test_a_default_stays_when_the_program_has_reported_its_choices(tmp_path: Path) -> None:
    driver = AcpDriver(entry(args=(), options={"mode": "wild"}))
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path), agent_args(), {"mode": "wild"})
    found = await driver.probe(spec, Spawner(MARK))
    assert found.problem is None
    [mode] = [option for option in found.options if option.name == "mode"]
    assert mode.default == "wild" and {"", "calm", "wild"} <= set(mode.choices)


async def test_a_login_that_is_missing(tmp_path: Path) -> None:
    driver = AcpDriver(entry(args=(), key="`one login`, or ONE_KEY"))
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path, "login"), agent_args())
    found = await driver.probe(spec, Spawner(MARK))
    assert found.logged_in is False and str(found.problem).endswith("; use `one login`, or ONE_KEY")


async def test_a_default_that_the_program_does_not_have_is_a_problem(tmp_path: Path) -> None:
    """Without its mode an agent might run tools unasked."""
    driver = AcpDriver(entry(args=(), options={"mode": "gone"}))
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path), agent_args(), {"mode": "gone"})
    found = await driver.probe(spec, Spawner(MARK))
    assert "it has no mode 'gone'; available: calm" in str(found.problem)


@pytest.mark.parametrize("earlier", [("calm",), ("gone", "wild", "calm")])
async def test_an_earlier_version_has_another_name_for_the_default_mode(tmp_path: Path, earlier: tuple[str, ...]) -> None:
    driver = AcpDriver(entry(args=(), options={"mode": "ask"}, earlier_modes=earlier))
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path), agent_args(), {"mode": "ask"})
    found = await driver.probe(spec, Spawner(MARK))
    [mode] = [option for option in found.options if option.name == "mode"]
    assert (found.problem, mode.default) == (None, "wild" if "wild" in earlier else "calm")
    session = SessionSpec(spec.program, spec.cwd, spec.env, spec.args, spec.options)
    agent = await driver.open(session, Spawner(MARK), Limits())
    await agent.close()


async def test_a_mode_that_the_user_names_has_no_other_name(tmp_path: Path) -> None:
    driver = AcpDriver(entry(args=(), options={"mode": "ask"}, earlier_modes=("calm",)))
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path), agent_args(), {"mode": "yolo"})
    assert "it has no mode 'yolo'" in str((await driver.probe(spec, Spawner(MARK))).problem)


def test_an_install_command_updates_what_is_installed() -> None:
    """`uv tool install` alone leaves an installed one alone."""
    assert catalogue()["vibe"].install == "uv tool install --upgrade mistral-vibe"


def entry(**changes: object) -> CatalogueAgent:
    return replace(AGENT, **changes)  # type: ignore[arg-type]
