"""Drivers by name: the built-in ones and those of other distributions, and drivers that cannot be loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from drivers.claude.driver import ClaudeDriver
from drivers.driver_registry import GROUP, load
from drivers.echo.driver import EchoDriver
from drivers.script.driver import ScriptDriver
from gateway.agents.configured_agents import DEFAULT_AGENTS


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path with a distribution that has three driver entry points."""
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = ("nowhere = no_such_module:Driver", "broken = broken_driver:Driver", "mine = working_driver:MyDriver")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(points) + "\n")
    (tmp_path / "broken_driver.py").write_text(
        "class Driver:\n    def __init__(self) -> None:\n        raise RuntimeError('no')\n"
    )
    (tmp_path / "working_driver.py").write_text(
        "from drivers.echo import EchoDriver\n\nclass MyDriver(EchoDriver):\n    name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_built_in_drivers_are_there() -> None:
    drivers = load()
    assert {name: type(drivers[name]) for name in ("echo", "claude", "script")} == {
        "echo": EchoDriver,
        "claude": ClaudeDriver,
        "script": ScriptDriver,
    }
    assert all(drivers[name].name == name for name in drivers)
    assert set(DEFAULT_AGENTS) <= drivers.keys()


def test_a_driver_that_does_not_load_is_left_out_with_a_warning(distribution: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        drivers = load()
    assert drivers["mine"].info() == EchoDriver().info()
    assert {"nowhere", "broken"}.isdisjoint(drivers)
    assert {"echo", "claude", "script"} <= drivers.keys()
    assert [record.getMessage() for record in caplog.records] == [
        "the driver 'nowhere' of no_such_module:Driver is left out: ModuleNotFoundError: No module named 'no_such_module'",
        "the driver 'broken' of broken_driver:Driver is left out: RuntimeError: no",
    ]
