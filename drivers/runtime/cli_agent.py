"""A CLI at work: one process and its codec, with the time limits of a run. Everything that waits stands here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from drivers.contract.agent import Agent, Prompt, Reply
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.codec import Codec, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable
from drivers.contract.events import Commands, Error, OutputEvent, SessionEnd, Stdout, Title
from drivers.contract.specs import Limits
from drivers.contract.tool_server import ToolRequest, ToolServer
from drivers.runtime.client_requests import ClientRequests
from drivers.runtime.process import Process, Spawner

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""The exit code of a run that was interrupted, as of a shell's command that got SIGINT."""
TIMED_OUT = 124
"""The exit code of a run that a time limit ended, as of coreutils' timeout."""
SETTLED = "it fell silent"
"""Not a limit: the CLI has been silent for as long as its codec wanted to wait."""

LATE = Stdout | Commands | Title
"""What is not lost when it comes between two runs."""


class CliAgent(Agent):
    """An Agent over a process that speaks lines."""

    def __init__(
        self, process: Process, codec: Codec, limits: Limits, host: ClientRequests, tool_server: ToolServer | None = None
    ) -> None:
        self._process, self._codec, self._limits, self._host = process, codec, limits, host
        self._tool_server = tool_server
        if tool_server is not None:
            tool_server.listen(self._called, self._withdrawn)
        self._woken = False
        self._ready: list[OutputEvent] = []
        self._late: list[OutputEvent] = []
        self._over = False
        self._gone = False
        self._ending: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.Timeout | None = None
        self._started = self._heard = time.monotonic()
        self._rested = 0.0
        self._resting_since: float | None = None
        self._interrupted: float | None = None
        # A task begins at once, so only its first line tells that it has started.
        self._unheard = codec.phase == "running"

    @classmethod
    async def start(cls, launch: Launch, spawner: Spawner, limits: Limits, services: ClientServices | None = None) -> CliAgent:
        """Spawn, and wait until the CLI takes a prompt. Raises AgentUnavailable or ResumeFailed."""
        process = await spawner.spawn(launch.command)
        host = ClientRequests(launch.command.cwd, launch.command.env, spawner, launch.additional_directories, services)
        agent = cls(process, launch.codec, limits, host, launch.tool_server)
        try:
            agent._flush()
            while agent._codec.phase == "starting" and agent._codec.start_error is None and not agent._gone:
                await agent._step()
        except BaseException:
            await asyncio.shield(agent._put_down(0.0))
            raise
        if agent._gone or agent._codec.start_error is not None:
            await agent._put_down(0.0)
            raise agent._why_not_started()
        return agent

    @property
    def native_id(self) -> str | None:  # type: ignore[override]
        return self._codec.native_id

    @property
    def alive(self) -> bool:
        return self._process.alive and not self._gone

    @property
    def pid(self) -> int:
        return self._process.pid

    async def prompt(self, prompt: Prompt) -> None:
        if not self.alive or not self._process.is_there():
            raise AgentGone("the agent's process has ended")
        self._begin()
        self._codec.prompt(prompt)
        self._flush()
        self._wake()

    async def receive(self) -> Sequence[OutputEvent]:
        while not self._ready:
            if self._gone:
                raise AgentGone("the agent's process has ended")
            await self._step()
        events, self._ready = self._ready, []
        return events

    async def reply(self, reply: Reply) -> None:
        self._heard = time.monotonic()
        self._codec.reply(reply)
        self._attend()

    async def steer(self, prompt: Prompt) -> bool:
        if not self.alive or self._over or self._codec.phase != "running" or self._interrupted is not None:
            return False
        told = self._codec.steer(prompt)
        self._flush()
        return told

    async def interrupt(self, grace: float | None = None) -> None:
        if self._interrupted is not None:
            return
        grace = self._limits.grace if grace is None else grace
        self._interrupted = time.monotonic() + grace
        if self._codec.interrupt():
            self._flush()
            self._host.run_over()
            self._wake()
        else:
            self._closing = asyncio.create_task(self.close(grace))
        self._rearm()

    async def close(self, grace: float | None = None) -> None:
        grace = self._limits.grace if grace is None else grace
        if self.alive and grace:
            self._codec.closing()
            self._flush()
        await self._put_down(grace)

    async def _put_down(self, grace: float) -> None:
        """End the process, and then what served it: a call that is hung up on would be told to the model."""
        await self._process.close(grace)
        await self._host.close()
        if self._tool_server is not None:
            await self._tool_server.close()

    def _begin(self) -> None:
        self._started = self._heard = time.monotonic()
        self._rested = 0.0
        self._resting_since = self._interrupted = None
        self._over = False
        self._ready += self._late
        self._late = []

    async def _step(self) -> None:
        """Take what the process has written, or notice that it has ended or that a limit has passed."""
        if self._ending is None:
            try:
                async with asyncio.timeout(None) as self._timer:
                    self._rearm()
                    lines = await self._process.read_lines()
            except TimeoutError:
                if self._woken:
                    self._woken = False
                    return
                why = self._deadline()[1]
                if why == SETTLED:
                    return self._settle()
                self._ending = asyncio.create_task(self._give_up(why))
            else:
                self._read(lines)
        if self._ending is not None:
            # A task of its own: whoever waits here may be cancelled, the ending may not.
            await asyncio.shield(self._ending)

    def _read(self, lines: list[bytes]) -> None:
        self._heard = time.monotonic()
        self._unheard = False
        for line in lines:
            self._take(self._codec.receive(line))
        self._wake()
        self._note_rest()
        self._flush()
        if not lines:
            self._ending = asyncio.create_task(self._end())

    def _settle(self) -> None:
        self._take(self._codec.debounced_events())
        self._note_rest()
        self._flush()

    def _wake(self) -> None:
        """Take the events that no line brought; whoever waits for lines now looks at them."""
        if self._codec.pending:
            self._take(self._codec.pending)
            self._codec.pending = []
            if self._timer is not None:
                with suppress(RuntimeError):
                    self._timer.reschedule(asyncio.get_running_loop().time())
                    self._woken = True

    def _answered(self, request: ClientRequest, answer: ClientResponse) -> None:
        self._heard = time.monotonic()
        self._codec.client_responded(request, answer)
        self._attend()

    def _called(self, request: ToolRequest) -> None:
        self._heard = time.monotonic()
        self._codec.tool_requested(request)
        self._attend()

    def _withdrawn(self, request_id: str) -> None:
        self._codec.tool_cancelled(request_id)
        self._attend()

    def _attend(self) -> None:
        self._note_rest()
        self._flush()
        self._rearm()
        self._wake()

    def _note_rest(self) -> None:
        """Keep the time that the client takes for its answers apart from the agent's own."""
        if self._codec.phase == "waiting":
            self._resting_since = self._resting_since or time.monotonic()
        elif self._resting_since is not None:
            self._rested += time.monotonic() - self._resting_since
            self._resting_since = None

    def _rearm(self) -> None:
        """Set the limit that holds now; also while a read is under way, whose own was another."""
        if self._timer is not None and not self._timer.expired():
            deadline, _ = self._deadline()
            loop = asyncio.get_running_loop()
            with suppress(RuntimeError):
                self._timer.reschedule(None if deadline is None else loop.time() + max(0.0, deadline - time.monotonic()))

    def _deadline(self) -> tuple[float | None, str]:
        limits = self._limits
        if self._interrupted is not None:
            return self._interrupted, "it did not stop when it was interrupted"
        if self._codec.phase == "waiting":
            return None, ""
        starting = _after(self._started, limits.start), f"it was not ready {limits.start:g} s after its start (limits.start)"
        if self._codec.phase == "starting":
            return starting
        bounds = [
            *([starting] if self._unheard else []),
            # One that waits for a file or a command that it has asked for has its reason.
            (None if self._host.busy else _after(self._heard, limits.idle), f"it was silent for {limits.idle:g} s (limits.idle)"),
            (_after(self._started + self._rested, limits.total), f"the run took more than {limits.total:g} s (limits.total)"),
        ]
        debounce_seconds = self._codec.debounce_seconds()
        if debounce_seconds is not None:
            bounds.append((self._heard + debounce_seconds, SETTLED))
        set_ones = [bound for bound in bounds if bound[0] is not None]
        return min(set_ones, default=(None, ""))

    async def _give_up(self, why: str) -> None:
        await self._put_down(0.0)
        if self._interrupted is not None:
            self._take([SessionEnd(exit_code=INTERRUPTED, stop_reason="cancelled")])
        else:
            self._take([Error(message=f"the agent was stopped: {why}"), SessionEnd(exit_code=TIMED_OUT, stop_reason="error")])
        self._gone = True

    async def _end(self) -> None:
        if failure := self._process.failure:
            await self._put_down(0.0)
            self._take([Error(message=failure), SessionEnd(exit_code=1, stop_reason="error")])
            self._gone = True
            return
        code = await self._process.exit_code(self._limits.grace or 1.0)
        events = self._codec.exited(code, self._process.stderr_tail() if code else ())
        if self._interrupted is not None:
            events = [_cancelled(event) for event in events if not isinstance(event, Error)]
        self._take(events)
        self._gone = True
        # Not left to whoever holds the agent: what a one-shot run leaves behind ends with it.
        await self._put_down(0.0)

    def _take(self, events: list[OutputEvent]) -> None:
        for event in events:
            if self._over:
                # After its session_end a run has no more events; what is of the session, or raw, is told in the next run.
                self._late += [event] if isinstance(event, LATE) else []
                continue
            if type(event) is SessionEnd:
                took = int((time.monotonic() - self._started) * 1000)
                event = event.model_copy(update={"duration_ms": took})
                self._over = True
                self._host.run_over()
            self._ready.append(event)

    def _flush(self) -> None:
        if self._codec.outbox:
            self._process.write(self._codec.outbox)
            self._codec.outbox.clear()
        while self._codec.tool_responses:
            answer = self._codec.tool_responses.pop(0)
            if self._tool_server is not None:
                self._tool_server.answer(answer)
        while self._codec.client_requests:
            self._host.begin(self._codec.client_requests.pop(0), self._answered)

    def _why_not_started(self) -> Exception:
        if isinstance(self._codec.start_error, Exception):
            return self._codec.start_error
        said = [event.message for event in self._ready if isinstance(event, Error)] or self._process.stderr_tail()
        return AgentUnavailable(f"the agent ended before it took a prompt: {' '.join(said)[-2000:] or 'it said nothing'}")


def _after(moment: float, seconds: float) -> float | None:
    return moment + seconds if seconds > 0 else None


def _cancelled(event: OutputEvent) -> OutputEvent:
    if isinstance(event, SessionEnd):
        return event.model_copy(update={"stop_reason": "cancelled", "exit_code": INTERRUPTED})
    return event
