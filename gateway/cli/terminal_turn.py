"""One turn with an agent in the terminal: the answer goes to standard output, everything else to standard error."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import Limits, SessionSpec
from drivers.contract.errors import DriverError
from drivers.contract.events import AgentToken, Error, OutputEvent, SessionEnd, Stderr, ToolCall
from drivers.runtime.process import Spawner
from drivers.runtime.subreaper import adopted_orphans
from gateway.agents.configured_agents import Agents
from gateway.cli.terminal_text import lines, one_line
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.security.redaction import Redactor

INTERRUPTED = 130
"""The exit code of a turn that Ctrl-C ended, as in shells."""


def run_turn(settings: Settings, name: str, prompt: str, model: str | None) -> int:
    """Run one turn and return the exit code. Raises ConfigError for an agent that cannot be used."""
    agents = Agents(settings, workspace=Path.cwd())
    try:
        entry = agents.get(name)
        options = {"model": model} if model else {}
        entry.check_options(options)
        base = entry.spec(options)
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    redactor = Redactor()
    redactor.register(entry.secrets)
    spec = SessionSpec(base.program, base.cwd, base.env, base.args, base.options, confined=base.confined)
    chosen = settings.limits
    limits = Limits(chosen.start, chosen.idle, chosen.total, chosen.grace)

    async def turn() -> int:
        async with adopted_orphans():
            try:
                agent = await entry.driver.open(spec, entry.sandboxed(Spawner(), spec), limits)
            except DriverError as error:
                raise ConfigError(redactor.clean(entry.start_error(error))) from None
            try:
                return await _Terminal(redactor).show(agent, prompt)
            finally:
                await agent.close()

    try:
        return asyncio.run(turn())
    except KeyboardInterrupt:
        return INTERRUPTED
    except DriverError as error:
        raise ConfigError(redactor.clean(str(error))) from None


class _Terminal:
    """Prints events as they arrive, and a spinner while there is no output."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._console = Console(stderr=True)
        self._status = self._console.status("waiting for the agent")
        self._at_line_start = True

    async def show(self, agent: Agent, prompt: str) -> int:
        """Send the prompt, print the events of the turn, and return the exit code."""
        interrupting: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: interrupting.append(loop.create_task(agent.interrupt())))
        self._status.start()
        try:
            await agent.prompt(Prompt(prompt))
            while True:
                for event in await agent.receive():
                    self._print_event(event)
                    if isinstance(event, SessionEnd):
                        return INTERRUPTED if event.stop_reason == "cancelled" else event.exit_code
        finally:
            loop.remove_signal_handler(signal.SIGINT)
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
