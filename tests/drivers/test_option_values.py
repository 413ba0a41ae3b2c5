"""Values of options, and the model of a task, never become flags of a CLI, whatever they begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.contract.agent_specs import SessionSpec, TaskSpec
from drivers.driver_registry import load

DRIVERS = load()
PARSED = ("config", "scenario")
"""Options whose value is read as a list or a file before the CLI is started."""


@pytest.mark.parametrize("value", ["--yolo", "-y", "--", "--dangerously-skip-permissions=true"])
@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_option_value_is_no_argument_of_its_own(name: str, value: str, tmp_path: Path) -> None:
    driver = DRIVERS[name]
    options = {option.name: value for option in driver.info().options if not option.choices and option.name not in PARSED}
    session = driver.session(SessionSpec("cli", tmp_path, {"HOME": str(tmp_path)}, (), options, tmp_path / "state"))
    assert value not in session.command.argv
    for given, model in ((options, None), ({}, value)):
        spec = TaskSpec("cli", tmp_path, {"HOME": str(tmp_path)}, (), given, tmp_path / "state", task="do", model=model)
        assert value not in driver.task(spec).command.argv
