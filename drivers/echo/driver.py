"""The echo driver: repeats each prompt as one `agent_token`, through the same path as a real CLI."""

from __future__ import annotations

import sys
from pathlib import Path

from drivers.codecs.output_event_lines import EventLineCodec, open_request
from drivers.contract.agent_specs import SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import Capabilities, DriverInfo
from drivers.runtime.cli_driver import CliDriver

PROGRAM = Path(__file__).with_name("program.py")


class EchoDriver(CliDriver):
    """Repeats each prompt."""

    name = "echo"

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Echo",
            description="Repeats each prompt; for tests and first steps.",
            version="1.0.0",
            capabilities=Capabilities(seeds=True, system=True),
        )

    def session(self, spec: SessionSpec) -> Launch:
        command = Command((*_python(), *spec.args), spec.cwd, spec.env)
        return Launch(command, EventLineCodec(open_request(spec)))

    def task(self, spec: TaskSpec) -> Launch:
        command = Command((*_python(), "--task", *spec.args), spec.cwd, spec.env, stdin=spec.task.encode())
        return Launch(command, EventLineCodec(once=True))


def _python() -> tuple[str, ...]:
    # -I and -S: no site-packages and nothing of the user's; starts in 10 ms instead of 30.
    return sys.executable, "-I", "-S", str(PROGRAM)
