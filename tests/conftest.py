"""Fixtures that every test may use."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from drivers.runtime.clock import SYSTEM_CLOCK
from tests.support import cluster, fork_server, run_folder, stores
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock

pytest_plugins = ["tests.support.time_limit"]

_M_MMAP_THRESHOLD = -3
"""Of malloc.h. Once it is set it is not raised any more by freed blocks."""

# A busy machine makes examples slowly, and each takes long there. The other profiles inherit this.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
settings.register_profile("short", max_examples=25)
settings.register_profile("long", max_examples=200)
settings.register_profile("fuzz", max_examples=25)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin a run, whose folder has the temporary folders of all tests, unless this process is part of one.

    Let the commands that tests start handle SIGINT and SIGHUP: what a shell or `nohup` has set to be ignored is inherited.
    """
    if run_folder.VARIABLE not in os.environ:
        begun = run_folder.begin()
        config.option.basetemp = config.option.basetemp or begun / run_folder.TEMPORARY
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # A handler is not inherited by programs: the tests themselves go on at SIGHUP.
        signal.signal(signal.SIGHUP, lambda *_: None)
    _return_memory()


def _return_memory() -> None:
    """Let glibc return freed blocks of 128 KiB and more: a worker kept 250 MB that its largest tests had used."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests marked `slow` first: at the end of a run they would keep one process at work alone.

    Where all gateways are nodes, parameters with which a gateway is none are not collected.
    """
    others = [item for item in items if not cluster.has_nodes(getattr(getattr(item, "callspec", None), "params", {}))]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Freeze the imported objects and collect garbage less often: collection took a fifth of the CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish(exitstatus: int) -> None:
    """End the fork server. A worker of pytest-xdist does not run what is registered with `atexit`."""
    fork_server.stop()
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        run_folder.keep_temporary_folders()


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> Iterator[stores.Kind]:
    """The kind of database of the stores of a test: its parameter, or that of the environment."""
    with stores.use(getattr(request, "param", stores.kind())):
        yield stores.kind()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of SQLite's files where PORTICO_TEST_STORE chooses another database."""
    if stores.kind() != "sqlite" and item.get_closest_marker("sqlite_only"):
        pytest.skip("is about an SQLite file")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Remove the databases of PostgreSQL that a test has used."""
    stores.clear()


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the limits of time under test. It stands still until the test turns it."""
    return ManualClock()


@pytest.fixture
def write_scenario(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a scenario with the given turns and returns its name for the option `scenario`."""

    def write(*turns: Any, name: str = "scene.json") -> str:
        path = tmp_path / "scenes" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"turns": [turn if isinstance(turn, dict) else {"steps": turn} for turn in turns]}))
        return name

    return write


@pytest.fixture
async def portico(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RunningGateway]:
    """A gateway in this process with the agents `echo` and `script`. For a test that has `clock`, it has that clock."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SYSTEM_CLOCK
    async with run_gateway(gateway_config(tmp_path), clock) as running:
        yield running


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon in its own process, not started yet, with the agents `echo` and `script`."""
    if cluster.placement():
        cluster.leave_out("has a daemon as a process")
    found = Daemon(write_config(tmp_path, gateway_config(tmp_path)), tmp_path)
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.stop()


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Write the configuration as a TOML file and return its path."""
    path = folder / "config.toml"
    path.write_text("\n".join(_toml(config)))
    assert tomllib.loads(path.read_text()) == config
    return path


def _toml(table: dict[str, Any], prefix: str = "") -> list[str]:
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{prefix}{key}]", *_toml(value, f"{prefix}{key}.")]
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml_value(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
