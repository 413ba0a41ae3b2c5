"""Runs `portico doctor --json`, or its checks by a clock that the test turns, for tests of its report."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from drivers.runtime.file_threads import ANSWER_SECONDS
from gateway.cli.doctor import _subject
from gateway.diagnosis.diagnosis import diagnose
from tests.conftest import write_config
from tests.support.daemon import gateway_config
from tests.support.manual_clock import ManualClock
from tests.support.portico_command import PorticoCommand
from tests.support.waiting import wait_until


class Report(dict[str, Any]):
    """The JSON of a report, with its exit code."""

    code: int

    def check(self, name: str) -> dict[str, Any]:
        [found] = [check for check in [*self["checks"], *(a["check"] for a in self["agents"])] if check["name"] == name]
        return found

    def problem(self, name: str, *words: str) -> str:
        """The command for the only problem, which is this one."""
        assert [c["name"] for c in self["checks"] if c["status"] == "problem"] == [name], self
        assert (self.code, self["problems"]) == (1, 1)
        found = self.check(name)
        assert all(word in found["text"] for word in words), found
        return str(found["command"])

    @property
    def is_well(self) -> bool:
        return (self.code, self["problems"]) == (0, 0)


async def doctor(folder: Path, *arguments: str, env: dict[str, str] | None = None, config: bool = True) -> Report:
    configured = folder / "config.toml"
    if not config or (configured.is_file() and "port = " not in configured.read_text()):
        # The usual port may be in use by a daemon that belongs to no test.
        arguments = ("--port", "0", *arguments)
    code, out, err = await PorticoCommand(folder, "doctor", "--json", *arguments, env=env, config=config).run()
    assert err == ""
    report = Report(json.loads(out))
    report.code = code
    return report


async def doctor_unanswered(folder: Path, clock: ManualClock, port: int | None = None) -> Report:
    """The report of a doctor in this process whose question to a port, or for the configuration without one, gets no answer."""
    config = folder / "config.toml"
    if not config.exists():
        write_config(folder, gateway_config(folder))
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    asking = asyncio.create_task(diagnose(replace(_subject(config, None, None, port, False), environ=environ, clock=clock)))
    # All else has answered then.
    await wait_until(lambda: clock.waiting == 1 and (port is None or _is_connected(port)), "only one question is open")
    await clock.expire(ANSWER_SECONDS)
    found = await asking
    report = Report({"problems": found.problems, **found.model_dump()})
    report.code = int(found.problems > 0)
    return report


def _is_connected(port: int) -> bool:
    return any(found.raddr and found.raddr.port == port for found in psutil.Process().net_connections("tcp"))
