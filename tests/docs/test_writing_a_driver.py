"""The drivers of docs/writing-a-driver.md: they are built as wheels, installed, run by a daemon and checked for conformance."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any, get_args

import httpx
import psutil
import pytest
from click.testing import CliRunner

import drivers
from drivers.contract.agent_specs import AgentSpec
from drivers.contract.events import AwaitedCall, OutputEvent
from drivers.echo.driver import EchoDriver
from drivers.runtime import sandbox
from drivers.runtime.process import Spawner
from drivers.testing.__main__ import main as check
from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, gateway_config
from tests.support.programs import write_program
from tests.support.requests import create_session, execute, send_turn
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "writing-a-driver.md").read_text()
OPENCODE_SESSIONS = Path(".local/share/opencode/fake-sessions")
PROGRAMS = {name: Path(__file__).with_name(f"fake_{name}.py") for name in ("opencode", "clerk")}
CHECKS = 26


def block(language: str, number: int = 0) -> str:
    """Return a code block of the page."""
    found: str = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]
    return found


CAT, OPENCODE, CLERK, TEST, PROBE = (block("python", number) for number in range(5))
CHECKED = [shlex.split(line)[3:] for line in block("sh", 3).splitlines()]
"""The arguments of the commands that check clerk and opencode."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """A folder with the packages of the page and one package that cannot be imported. The processes of a test run share it."""
    folder = tmp_path_factory.getbasetemp().parent / f"packages-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "target").exists():
            _install(folder / "cat", folder / "target")
            for name, code in (("opencode", OPENCODE), ("clerk", CLERK), ("broken", "raise RuntimeError('half a driver')\n")):
                _write_installed(folder / "target", name, code)
    return folder / "target"


def _install(project: Path, target: Path) -> None:
    """Build a wheel of the first project of the page with the installed setuptools, and install it without network."""
    project.mkdir()
    (project / "pyproject.toml").write_text(block("toml"))
    (project / "portico_cat.py").write_text(CAT)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    subprocess.run([*pip, "install", *options, "--target", target, project], check=True)


def _write_installed(target: Path, name: str, code: str) -> None:
    """Write what an installation of a package with this driver leaves: its module and its entry point."""
    (target / f"portico_{name}.py").write_text(code)
    metadata = target / f"portico_{name}-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: portico-{name}\nVersion: 1.0.0\n")
    (metadata / "entry_points.txt").write_text(f"[portico.drivers]\n{name} = portico_{name}:{name.title()}Driver\n")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs `opencode` and `clerk`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, source in PROGRAMS.items():
        write_program(folder / name, source.read_text())
    return folder


@pytest.fixture
def environment(tmp_path: Path, target: Path, programs: Path) -> dict[str, str]:
    """Environment variables of a process that finds the packages and the programs."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": f"{target}{os.pathsep}{ROOT}", "LANG": "C.UTF-8"}


@pytest.fixture
async def daemon(tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Daemon]:
    """A daemon that finds the packages, with the agents of the page."""
    work = tmp_path / "work"
    work.mkdir()
    at_work = {"cwd": str(work), "env": {"HOME": str(tmp_path)}}
    agents: dict[str, Any] = {"tom": {"driver": "cat"}, **{name: {"driver": name, **at_work} for name in PROGRAMS}}
    if not sandbox.unavailable():
        (tmp_path / "boxed").mkdir()
        agents["boxed"] = {"driver": "opencode", "env": {"HOME": str(tmp_path / "boxed")}, "sandbox": "workspace-write"}
    config = write_config(tmp_path, gateway_config(tmp_path, agents=agents))
    found = await Daemon(config, tmp_path, environment, forked=False).start()
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.stop()


def test_example_drivers_are_short() -> None:
    assert [len(code.splitlines()) < most for code, most in ((CAT, 25), (OPENCODE, 90), (CLERK, 120))] == [True] * 3
    assert 'driver = "cat"' in block("toml", 1)


def test_example_code_imports_only_the_driver_api() -> None:
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        imported = {node.module for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)}
        own = {module for module in imported if str(module).startswith(("drivers", "gateway"))}
        assert own <= {"drivers", "drivers.testing"}, code


def test_each_name_of_the_driver_api_exists_and_is_documented() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    assert [name for name in drivers.__all__ if getattr(drivers, name) is None] == []
    assert [name for name in drivers.__all__ if not re.search(rf"`{name}[`(.]", prose)] == []
    with pytest.raises(AttributeError, match="module 'drivers' has no attribute 'Nothing'"):
        _ = drivers.Nothing


def test_each_event_is_documented() -> None:
    events, reference = get_args(get_args(OutputEvent)[0]), PAGE.partition("### Events")[2]
    assert events and [event.__name__ for event in events if f"`{event.__name__}`" not in reference] == []


RECORDS = (
    "DriverInfo", "Program", "Login", "Option", "ToolSpec", "ToolGrant", "Capabilities", "Permissions", "PermissionMode", "Mcp",
    "Display", "Probe", "AgentSpec", "SessionSpec", "SessionSeed", "SessionPermissions", "TaskSpec", "Limits", "Command",
    "Launch", "PermissionReply",
)  # fmt: skip


def test_each_field_of_the_contract_is_documented() -> None:
    reference = PAGE.partition("## Reference")[2]
    fields = {field.name for name in RECORDS for field in dataclasses.fields(getattr(drivers, name))}
    fields |= set(AwaitedCall.model_fields)
    assert sorted(name for name in fields if not re.search(rf"`[\w.]*\b{name}\b", reference)) == []


def test_driver_api_does_not_import_protocol_packages() -> None:
    code = "import sys, drivers; print(*[name for name in ('acp', 'mcp', 'drivers.acp.codec') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT).stdout.split() == []


async def test_daemon_runs_the_drivers_and_skips_a_broken_one(daemon: Daemon) -> None:
    async with daemon.client() as client:
        agents = {agent["name"]: agent for agent in (await client.get("/meta")).json()["agents"]}
        assert (agents["tom"]["title"], agents["tom"]["tools"]) == ("tom", [])
        made = await create_session(client, "tom", "hello")
        assert made["messages"] == [{"role": "assistant", "content": "hello\n"}]
        again = await send_turn(client, made["sessionId"], "two\nlines, \u00fc and \U0001f600")
        assert again["messages"] == [{"role": "assistant", "content": "two\nlines, \u00fc and \U0001f600\n"}]
        events = await execute(client, "-task", "tom")
        assert [event["kind"] for event in events] == ["agent_token", "session_end"]
        events = await execute(client, "go", "opencode", model="c/d")
        assert [event["kind"] for event in events] == ["agent_token", "usage", "session_end"]
        assert events[0]["text"] == "c/d: go"
        drivers = {driver["driver"] for driver in (await client.get("/v1/drivers")).json()["drivers"]}
        assert {"cat", "opencode"} <= drivers and "broken" not in drivers
        if not sandbox.unavailable():
            boxed = await create_session(client, "boxed", "one")
            assert boxed["messages"] == [{"role": "assistant", "content": "default: one"}]
            assert len(list((daemon.home / "boxed" / OPENCODE_SESSIONS).iterdir())) == 1
    await _run_commands_of_the_page(daemon)
    await daemon.stop()
    left_out = "the driver 'broken' of portico_broken:BrokenDriver is left out: RuntimeError: half a driver"
    assert left_out in daemon.stderr.decode()


async def _run_commands_of_the_page(daemon: Daemon) -> None:
    """They hold a session with a trusted tool."""
    script = block("sh", 2).replace("http://127.0.0.1:7700", daemon.url).replace("$(portico key)", KEY)
    define, first, second = script.replace("curl ", "curl --fail-with-body ").splitlines()

    async def send(command: str) -> dict[str, Any]:
        shell = await asyncio.create_subprocess_exec("bash", "-c", f"{define}\n{command}", stdout=asyncio.subprocess.PIPE)
        printed, _ = await asyncio.wait_for(shell.communicate(), 60)
        assert shell.returncode == 0, printed
        found: dict[str, Any] = json.loads(printed)
        return found

    made = await send(first)
    assert (made["stopReason"], (daemon.home / "work" / "bash").exists()) == ("end_turn", True)
    again = await send(second.replace("ID", made["sessionId"]))
    assert again["messages"][-1]["content"] == "default: call bash | and again"


async def test_sessions_of_both_kinds_of_process_go_on_after_cancel_crash_and_kill(daemon: Daemon) -> None:
    async with daemon.client() as client:
        await _lose_the_native_session(daemon, client)
        log = daemon.log_tail(1_000_000)
        assert "its native session is not resumed, a fresh one gets the history: opencode has no session" in log
        turns = await _cancel_a_turn(daemon, client)
        clerk, call = await _ask_for_permission(daemon, client)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        assert (await send_turn(client, turns, "four"))["messages"][-1]["content"].endswith("| three | four")
        # The process has ended while it waited: the answer goes to the next one, which has the history.
        assert (await send_turn(client, clerk, permission(call, granted=True)))["stopReason"] == "end_turn"


async def _lose_the_native_session(daemon: Daemon, client: httpx.AsyncClient) -> None:
    session = (await create_session(client, "opencode", "crash"))["sessionId"]
    assert (await send_turn(client, session, "two"))["messages"][-1]["content"] == "default: crash | two"
    [stored] = (daemon.home / OPENCODE_SESSIONS).iterdir()
    stored.unlink()
    assert (await send_turn(client, session, "three"))["stopReason"] == "error"
    told = (await send_turn(client, session, "four"))["messages"][-1]["content"]
    assert '{"role":"user","text":"two"}\n{"role":"assistant","text":"default: crash | two"}' in told
    assert told.endswith('{"role":"user","text":"three"}\n\nfour')


async def _cancel_a_turn(daemon: Daemon, client: httpx.AsyncClient) -> str:
    """Return a session with a process for each turn, of which one was cancelled."""
    made = await create_session(client, "opencode", "one", options={"model": "a/b"})
    session = str(made["sessionId"])
    assert made["messages"] == [{"role": "assistant", "content": "a/b: one"}]
    assert (await send_turn(client, session, "two"))["messages"][-1]["content"] == "a/b: one | two"
    turn = asyncio.create_task(send_turn(client, session, "sleep"))
    await wait_until(lambda: any("sleep" in stored.read_text() for stored in (daemon.home / OPENCODE_SESSIONS).iterdir()))
    await client.post(f"/session/{session}/cancel")
    await turn
    await wait_until(lambda: not _is_running(daemon.pid, "opencode"))
    assert (await send_turn(client, session, "three"))["messages"][-1]["content"] == "a/b: one | two | sleep | three"
    return session


async def _ask_for_permission(daemon: Daemon, client: httpx.AsyncClient) -> tuple[str, dict[str, Any]]:
    """Return a session with a process that stays, and its call that waits."""
    tools = [{"name": "note"}, {"name": "look", "trust": True}]
    session = (await create_session(client, "clerk", "one", grants=tools))["sessionId"]
    [call] = (await send_turn(client, session, "use note look"))["messages"][0]["content"][:1]
    assert (call["name"], (daemon.home / "work" / "note").exists()) == ("note", False)
    denied = await send_turn(client, session, permission(call, granted=False, reason="not now"))
    assert denied["messages"][0]["content"] == "Tool call denied: not now"
    assert denied["messages"][-1]["content"] == "one | use note look"
    [again] = (await send_turn(client, session, "use note"))["messages"][0]["content"]
    await send_turn(client, session, permission(again, granted=True))
    assert (daemon.home / "work" / "note").exists()
    [third] = (await send_turn(client, session, "use note"))["messages"][0]["content"]
    return str(session), dict(third)


async def test_example_of_a_probe_reports_the_login(tmp_path: Path) -> None:
    names: dict[str, Any] = {"EchoDriver": EchoDriver}
    code = f"from dataclasses import replace\nfrom drivers import *\nclass Probing(EchoDriver):\n{indent(PROBE, '    ')}"
    exec(code, names)
    for env, logged_in in (({"OPENCODE_API_KEY": "k"}, True), ({}, False)):
        found = await names["Probing"]().probe(AgentSpec("", tmp_path, env), Spawner())
        assert (found.version, found.logged_in) == (EchoDriver().info().version, logged_in)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], target: Path) -> None:
    """This process finds the packages and the programs."""
    monkeypatch.syspath_prepend(target)
    for name in ("PATH", "HOME"):
        monkeypatch.setenv(name, environment[name])


def statuses(printed: str, status: str) -> set[str]:
    """Return the checks with this status of a report, which has all checks."""
    lines = [line.split(maxsplit=1) for line in printed.splitlines()]
    assert len(lines) == CHECKS and f"{CHECKS} checks" in PAGE, printed
    return {rest.partition(":")[0] for found, rest in lines if found == status}


def test_drivers_pass_the_conformance_check_command_of_the_page(environment: dict[str, str], imported: None) -> None:
    # The block has no other command.
    python, *command = block("sh", 1).split()
    assert python == "python"
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT)
    # The standard error may have a warning about a process of this machine that does not answer.
    assert done.returncode == 0, done.stdout + done.stderr
    tools = {"tool not enabled", "trusted tool", "tool permission", "application tool"}
    assert statuses(done.stdout, "skipped") == {"native session", "seeds", *tools}
    for arguments, skipped in zip(CHECKED, ({"application tool"}, {"seeds", "application tool"}), strict=True):
        checked = CliRunner().invoke(check, arguments)
        assert checked.exit_code == 0, checked.output
        assert statuses(checked.stdout, "skipped") == skipped


def test_example_test_passes(imported: None) -> None:
    names: dict[str, Any] = {}
    exec(TEST, names)
    names["test_conformance"]()


def permission(call: dict[str, Any], *, granted: bool, **fields: Any) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted, **fields}


def _is_running(daemon: int, program: str) -> bool:
    for child in psutil.Process(daemon).children():
        # Raised for a child that has ended, whether or not it is reaped.
        with suppress(psutil.NoSuchProcess):
            if program in " ".join(child.cmdline()):
                return True
    return False
