"""The driver under check, and what its agents are started with."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import Limits, SessionSpec, TaskSpec
from drivers.contract.driver_info import DriverInfo
from drivers.runtime.cli_driver import Driver
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.testing.recording_spawner import Watched

PROMPT = "Answer with one word: hello."


@dataclass(frozen=True)
class ToolCases:
    """Prompts that make the program call tools, for the checks of grants.

    `own`: by the name of one of the driver's tools, a prompt on which the program calls it. `application`: a prompt on which it
    calls the application-side tool `portico_check`. `asks`: the CLI can ask for permission while it runs; without it, a tool
    that is not trusted must not run at all.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    application: str | None = None
    asks: bool = True


@dataclass(frozen=True)
class Setup:
    """`folder` is an empty one of its own. `seconds` is the time limit of one answer of the agent."""

    driver: Driver
    folder: Path
    program: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    options: Mapping[str, str] = field(default_factory=dict)
    prompt: str = PROMPT
    tools: ToolCases = ToolCases()
    seconds: float = 60.0
    grace: float = 3.0
    clock: Clock = SYSTEM_CLOCK
    recorded: dict[str, list[bytes]] = field(default_factory=dict)
    """What the program printed, by `task` and `session`; filled when it is needed."""

    @cached_property
    def info(self) -> DriverInfo:
        return self.driver.info()

    @property
    def limits(self) -> Limits:
        return Limits(start=self.seconds, idle=self.seconds, total=2 * self.seconds, grace=self.grace)

    def found_program(self) -> str | None:
        """The path of the program; empty for a driver that brings its own, None where it is not found."""
        program = self.program or self.info.program.name
        if program is None:
            return ""
        found = shutil.which(os.path.expanduser(program), path=self.env.get("PATH"))
        return os.path.abspath(found) if found else None

    def session(self, **more: Any) -> SessionSpec:
        """A session to open, with these fields besides."""
        return SessionSpec(**{**self._common(), **more})

    def task(self, **more: Any) -> TaskSpec:
        """The prompt as a task, with these fields besides."""
        return TaskSpec(**{**self._common(), "task": self.prompt, **more})

    def _common(self) -> dict[str, Any]:
        cwd, state = self.folder / "work", self.folder / "state" / uuid.uuid4().hex
        cwd.mkdir(exist_ok=True)
        state.parent.mkdir(exist_ok=True)
        defaults = {option.name: option.default for option in self.info.options}
        program = self.found_program() or ""
        # Without a marker of an outer gateway: what is started here is ended here.
        env = {name: value for name, value in self.env.items() if not name.startswith("PORTICO_")} | dict(
            self.info.program.set_env
        )
        options = {**defaults, **self.options}
        return {"program": program, "cwd": cwd, "env": env, "args": self.args, "options": options, "state": state}

    @asynccontextmanager
    async def opened(self, **more: Any) -> AsyncIterator[tuple[Agent, Watched]]:
        """A session's agent and the processes behind it; closed at the end, whatever it is."""
        watched = Watched()
        try:
            agent = await self.driver.open(self.session(**more), watched, self.limits)
            try:
                yield agent, watched
            finally:
                await agent.close(0.0)
        finally:
            await watched.end()
