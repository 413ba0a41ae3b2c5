"""The driver of the faulty agent (tests/faults/agent.py). The campaigns put this folder on PYTHONPATH of the daemon."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drivers import (
    Capabilities,
    CliDriver,
    Command,
    DriverInfo,
    EventLineCodec,
    Launch,
    SessionSpec,
    TaskSpec,
    ToolSpec,
    open_request,
    request,
)

PROGRAM = Path(__file__).parent.parent / "agent.py"
TOOL = ToolSpec("act", "Does nothing.", {"type": "object", "properties": {}}, kind="execute")


class FaultyDriver(CliDriver):
    """The argument `--clean` starts the agent by `exec env -i`: its process has none of the gateway's variables."""

    name = "faulty"
    tools_by_mcp = True

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Faulty",
            description="Fails on request.",
            version="1.0.0",
            tools=(TOOL,),
            capabilities=Capabilities(seeds=True, system=True, app_tools=True, steers=True),
        )

    def session(self, spec: SessionSpec) -> Launch:
        return Launch(Command(_argv(spec.args), spec.cwd, spec.env), EventLineCodec(open_request(spec)))

    def task(self, spec: TaskSpec) -> Launch:
        stdin = request("open", tools=[]) + request("prompt", content=spec.task)
        return Launch(Command(_argv(("--task", *spec.args)), spec.cwd, spec.env, stdin=stdin), EventLineCodec(once=True))


def _argv(args: Sequence[str]) -> tuple[str, ...]:
    program = (sys.executable, "-I", "-S", str(PROGRAM), *(arg for arg in args if arg != "--clean"))
    if "--clean" not in args:
        return program
    return ("/bin/sh", "-c", 'exec env -i PATH="$PATH" "$@"', "sh", *program)
