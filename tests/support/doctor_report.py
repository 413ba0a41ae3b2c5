"""Runs `portico doctor`, in this process or as a command, for tests of its report."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import ANSWER_SECONDS
from gateway.cli.doctor import doctor as doctor_of_portico
from gateway.cli.doctor import subject_of
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


async def doctor(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    config: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """The report of `portico doctor` with these arguments, by the checks in this process."""
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}
    with patch.dict(os.environ, {**own, **(env or {})}, clear=True):
        given = doctor_of_portico.make_context("doctor", _arguments(folder, arguments, config)).params
        subject = subject_of(*(given[name] for name in ("config", "data_dir", "host", "port", "tried")))
        found = await diagnose(replace(subject, environ=dict(os.environ), clock=clock))
    report = Report(json.loads(json.dumps({"problems": found.problems, **found.model_dump()})))
    report.code = int(found.problems > 0)
    return report


async def doctor_command(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Report:
    """The report of the command, in a process of its own."""
    given = [argument for argument in _arguments(folder, arguments, True) if argument != "--config"][1:]
    code, out, err = await PorticoCommand(folder, "doctor", "--json", *given, env=env).run()
    assert err == ""
    report = Report(json.loads(out))
    report.code = code
    return report


def _arguments(folder: Path, arguments: Sequence[str], config: bool) -> list[str]:
    configured = folder / "config.toml"
    if config and not configured.exists():
        write_config(folder, gateway_config(folder))
    if not config or (configured.is_file() and "port = " not in configured.read_text()):
        # The usual port may be in use by a daemon that belongs to no test.
        arguments = ("--port", "0", *arguments)
    return [*(["--config", str(configured)] if config else []), *arguments]


async def doctor_unanswered(folder: Path, clock: ManualClock, port: int | None = None) -> Report:
    """The report of a doctor whose question to a port, or for the configuration without one, gets no answer."""
    asking = asyncio.create_task(doctor(folder, *(["--port", str(port)] if port else []), clock=clock))
    # All else has answered then.
    await wait_until(lambda: clock.waiting == 1 and (port is None or _is_connected(port)), "only one question is open")
    await clock.expire(ANSWER_SECONDS)
    return await asking


def _is_connected(port: int) -> bool:
    return any(found.raddr and found.raddr.port == port for found in psutil.Process().net_connections("tcp"))
