"""One turn with an agent in the terminal: the answer goes to standard output, everything else to standard error."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import Limits, SessionSpec
from drivers.contract.errors import DriverError
from drivers.contract.events import AgentToken, Error, OutputEvent, SessionEnd, Stderr, ToolCall
from drivers.runtime.cancellation import despite_cancellation
from drivers.runtime.launchers import end_removals
from drivers.runtime.process import Spawner
from drivers.runtime.subreaper import adopted_orphans
from gateway.agents.configured_agents import Agents
from gateway.cli.signals import EndSignals
from gateway.config import Settings
from gateway.errors import AgentProblem, ConfigError, GatewayError
from gateway.private_files import TEMPORARY
from gateway.security.redaction import Redactor
from gateway.terminal_text import lines, one_line

INTERRUPTED = 130
"""The exit code of a turn that Ctrl-C ended, as in shells."""


def run_turn(settings: Settings, name: str, prompt: str, model: str | None) -> int:
    """Run one turn and return the exit code. SIGINT interrupts it.

    Raises ConfigError for an agent that cannot be used, and SystemExit for SIGTERM, SIGHUP, or a SIGINT before or after the turn.
    """
    agents = Agents(settings, workspace=Path.cwd())
    try:
        entry = agents.get(name)
        options = {"model": model} if model else {}
        if (problem := entry.problem()) is not None:
            raise AgentProblem(problem)
        entry.check_options(options)
        base = entry.spec(options)
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    redactor = Redactor()
    redactor.register(entry.secrets)
    chosen = settings.limits
    limits = Limits(chosen.start, chosen.idle, chosen.total, chosen.grace)

    signals = EndSignals()

    # Not in that of the system, where other programs write.
    own = settings.data_dir / TEMPORARY
    temporary = own if os.access(own, os.W_OK) else None

    async def turn() -> int:
        async with adopted_orphans():
            with TemporaryDirectory(prefix="portico-run-", dir=temporary, ignore_cleanup_errors=True) as folder:
                return await in_folder(await asyncio.to_thread(Path(folder).resolve))

    async def in_folder(folder: Path) -> int:
        spec = SessionSpec(base.program, base.cwd, base.env, base.args, base.options, folder / "state", base.confined)
        try:
            agent = await entry.driver.open(spec, entry.sandboxed(Spawner(temporary=folder), spec), limits)
        except DriverError as error:
            raise ConfigError(redactor.clean(entry.start_error(error))) from None
        try:
            return await _Terminal(redactor, signals).show(agent, prompt)
        finally:
            await despite_cancellation(_end(agent))

    try:
        return signals.run(turn())
    except KeyboardInterrupt:
        return INTERRUPTED
    except DriverError as error:
        raise ConfigError(redactor.clean(str(error))) from None


async def _end(agent: Agent) -> None:
    try:
        await agent.close()
    finally:
        await end_removals()


class _Terminal:
    """Prints events as they arrive, and a spinner while there is no output."""

    def __init__(self, redactor: Redactor, signals: EndSignals) -> None:
        self._redactor, self._signals = redactor, signals
        self._console = Console(stderr=True)
        self._status = self._console.status("waiting for the agent")
        self._at_line_start = True

    async def show(self, agent: Agent, prompt: str) -> int:
        """Send the prompt, print the events of the turn, and return the exit code."""
        interrupting: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        self._signals.on_interrupt = lambda: interrupting.append(loop.create_task(agent.interrupt()))
        self._status.start()
        try:
            await agent.prompt(Prompt(prompt))
            while True:
                for event in await agent.receive():
                    self._print_event(event)
                    if isinstance(event, SessionEnd):
                        return INTERRUPTED if event.stop_reason == "cancelled" else event.exit_code
        finally:
            self._signals.on_interrupt = None
            self._status.stop()
            self._end_line()

    def _print_event(self, event: OutputEvent) -> None:
        event = self._redactor.clean_event(event)
        if isinstance(event, AgentToken):
            self._status.stop()
            with suppress(BrokenPipeError):
                # A file or a pipe gets the answer as it is.
                sys.stdout.write(lines(event.text) if sys.stdout.isatty() else event.text)
                sys.stdout.flush()
            self._at_line_start = event.text.endswith("\n")
        elif isinstance(event, ToolCall) and event.status == "started":
            self._print_stderr(one_line(f"{event.name} {event.detail or ''}"), "dim")
            self._status.start()
        elif isinstance(event, Error):
            self._print_stderr(event.message, "red")
        elif isinstance(event, Stderr):
            self._print_stderr(event.line)

    def _print_stderr(self, text: str, style: str | None = None) -> None:
        self._status.stop()
        self._end_line()
        # Without markup: brackets in an agent's output are not styles.
        self._console.print(lines(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def _end_line(self) -> None:
        if not self._at_line_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._at_line_start = True
