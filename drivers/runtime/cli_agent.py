"""An agent over one process and its codec: reads lines, writes the codec's output, enforces time limits, ends the process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from drivers.contract.agent import Agent, DeniedCall, ProcessUse, Prompt, Reply
from drivers.contract.agent_specs import Limits
from drivers.contract.capabilities import (
    SupportsClientRequests,
    SupportsClosing,
    SupportsDebounce,
    SupportsMcpTools,
    SupportsModes,
    SupportsSteering,
)
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.codec import Codec, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable, InputFull
from drivers.contract.events import (
    Commands,
    ContextUse,
    DeniedResult,
    Error,
    ModeChanged,
    NativeSession,
    OutputEvent,
    RateLimit,
    SessionEnd,
    Stdout,
    Title,
    ToolCall,
)
from drivers.contract.line_splitter import excerpt
from drivers.contract.tool_server import ToolRequest, ToolServer
from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timeout
from drivers.runtime.local_client_services import ClientRequests
from drivers.runtime.pipes import INPUT_HIGH_WATER
from drivers.runtime.process import Process, Spawner
from drivers.runtime.time_limits import Deadline, RunLimits

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""The exit code of a run that was interrupted, as of a shell's command that got SIGINT."""
TIMED_OUT = 124
"""The exit code of a run that a time limit ended, as of coreutils' timeout."""

UNREPORTED_BYTES = 64 * 1024
"""Bytes of raw lines between two runs that are kept; older lines are dropped."""


_ENDS: frozenset[type[OutputEvent]] = frozenset((SessionEnd,))
MAX_BETWEEN_RUNS = 64 * 1024 * 1024
"""Bytes that a process may write between two runs. More is a fault: it is ended, and the next run has a fresh one."""
MAX_DENIED = 100
"""Denied calls that are kept until somebody watches them."""


class EventsBetweenRuns:
    """The events between two runs that the next run reports: the state of the session, and raw lines.

    Calls that the driver has denied are given to `watch_denials`. All other events belong to no prompt and are dropped: a late
    token is no part of the next answer.
    """

    def __init__(self) -> None:
        self._state: dict[type[OutputEvent], OutputEvent] = {}
        self._lines: deque[Stdout] = deque()
        self._bytes = 0
        self._watching: Callable[[Commands], None] | None = None
        self._started: ToolCall | None = None
        self._denied: deque[DeniedCall] = deque(maxlen=MAX_DENIED)
        self._deny: Callable[[DeniedCall], None] = self._denied.append

    def watch_commands(self, reported: Callable[[Commands], None]) -> None:
        """Call `reported` with the commands among the events, and with those that come."""
        self._watching = reported
        commands = self._state.get(Commands)
        if isinstance(commands, Commands):
            reported(commands)

    def watch_denials(self, denied: Callable[[DeniedCall], None]) -> None:
        """Call `denied` with each call that was denied since the start of the process, and with each later one."""
        for call in self._denied:
            denied(call)
        self._denied.clear()
        self._deny = denied

    def add(self, events: Iterable[OutputEvent]) -> None:
        """Keep raw lines, and the last event of each kind about the session."""
        for event in events:
            if isinstance(event, NativeSession | Commands | Title | ContextUse | RateLimit | ModeChanged):
                self._state[type(event)] = event
                if self._watching is not None and isinstance(event, Commands):
                    self._watching(event)
            elif isinstance(event, Stdout):
                self._lines.append(event)
                self._bytes += len(event.line)
                while self._bytes > UNREPORTED_BYTES:
                    self._bytes -= len(self._lines.popleft().line)
            elif isinstance(event, ToolCall) and event.status == "started":
                self._started = event
            elif isinstance(event, DeniedResult) and (call := self._started) is not None and call.id == event.tool_call_id:
                self._deny(DeniedCall(call.id, call.name, call.input, str(event.output)))

    def take(self) -> list[OutputEvent]:
        """Return the events and forget them."""
        events: list[OutputEvent] = [*self._state.values(), *self._lines]
        self._state.clear()
        self._lines.clear()
        self._bytes = 0
        return events


class CliAgent(Agent):
    """An agent over a process that writes lines. `start` makes one."""

    def __init__(
        self,
        process: Process,
        codec: Codec,
        limits: Limits,
        client_requests: ClientRequests,
        tool_server: ToolServer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._process, self._codec, self._grace = process, codec, limits.grace
        self._client_requests, self._tool_server = client_requests, tool_server
        self._steering = codec if isinstance(codec, SupportsSteering) else None
        self._debouncing = codec if isinstance(codec, SupportsDebounce) else None
        self._requesting = codec if isinstance(codec, SupportsClientRequests) else None
        self._calling = codec if isinstance(codec, SupportsMcpTools) else None
        self._closable = codec if isinstance(codec, SupportsClosing) else None
        if tool_server is not None:
            tool_server.listen(self._tool_requested, self._tool_cancelled)
        self._limits = RunLimits(limits, task=codec.phase == "running", clock=clock)
        self._ready: list[OutputEvent] = []
        self._between_runs = EventsBetweenRuns()
        self._reading: asyncio.Task[None] | None = None
        self._run_over = False
        self._gone = False
        self._exit: asyncio.Task[None] | None = None
        self._passed_limit: str | None = None
        self._unread: str | None = None
        """The last line of the output, if no message was found on it."""
        self._closing: asyncio.Task[None] | None = None
        self._termination: asyncio.Task[None] | None = None
        self._timer: Timeout | None = None
        self._woken = False

    @classmethod
    async def start(
        cls,
        launch: Launch,
        spawner: Spawner,
        limits: Limits,
        services: ClientServices | None = None,
        tool_server: ToolServer | None = None,
    ) -> CliAgent:
        """Spawn the process and wait until it takes a prompt. Raises AgentUnavailable or ResumeFailed."""
        process = await spawner.spawn(launch.command)
        requests = ClientRequests(
            launch.command.cwd, launch.command.env, spawner, launch.additional_directories, services, process.wait_until_writable
        )
        agent = cls(process, launch.codec, limits, requests, tool_server, spawner.clock)
        try:
            agent._flush()
            while agent._codec.phase == "starting" and agent._codec.start_error is None and not agent._gone:
                await agent._step()
        except BaseException:
            await asyncio.shield(agent._terminate(0.0))
            raise
        if agent._gone or agent._codec.start_error is not None:
            await agent._terminate(0.0)
            raise agent._start_error()
        if agent._codec.phase == "ready":
            agent._run_over = True
            agent._between_runs.add(agent._ready)
            agent._ready = []
            agent._read_between_runs()
        return agent

    @property
    def native_id(self) -> str | None:  # type: ignore[override]
        return self._codec.native_id

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        return self._codec.resumable

    @property
    def alive(self) -> bool:
        return self._process.alive and not self._gone

    @property
    def pid(self) -> int:
        return self._process.pid

    async def process_use(self) -> ProcessUse | None:
        return await self._process.use() if self.alive else None

    async def prompt(self, prompt: Prompt) -> None:
        await self._stop_reading_between_runs()
        if not self.alive or not self._process.is_there():
            raise AgentGone("the agent's process has ended")
        self._limits.begin()
        self._run_over = False
        self._ready = self._between_runs.take()
        self._codec.prompt(prompt)
        self._flush()
        self._take_pending()

    async def receive(self) -> Sequence[OutputEvent]:
        while not self._ready:
            if self._gone:
                raise AgentGone("the agent's process has ended")
            if self._reading is not None:
                # Between two runs there are no events but the end of the process.
                await asyncio.wait([self._reading])
                self._reading = None
                if self._exit is not None:
                    await asyncio.shield(self._exit)
            else:
                await self._step()
        events, self._ready = self._ready, []
        if self._run_over:
            self._read_between_runs()
        return events

    async def reply(self, reply: Reply) -> None:
        self._limits.activity()
        self._codec.reply(reply)
        self._update()

    async def set_mode(self, mode: str) -> bool:
        if not isinstance(self._codec, SupportsModes) or not self.alive:
            return False
        changed = self._codec.set_mode(mode)
        self._update()
        return changed

    def watch_commands(self, reported: Callable[[Commands], None]) -> bool:
        self._between_runs.watch_commands(reported)
        return True

    def watch_denials(self, denied: Callable[[DeniedCall], None]) -> None:
        self._between_runs.watch_denials(denied)

    async def steer(self, prompt: Prompt) -> bool:
        if (
            self._steering is None
            or not self.alive
            or self._run_over
            or self._codec.phase != "running"
            or self._limits.interrupted
        ):
            return False
        if not self._process.writable:
            unread = f"more than {INPUT_HIGH_WATER // 1024 // 1024} MiB"
            raise InputFull(f"the agent has not read {unread} of earlier messages yet; send this again later")
        accepted = self._steering.steer(prompt)
        self._flush()
        self._set_timer()
        return accepted

    async def interrupt(self, grace: float | None = None) -> None:
        grace = self._grace if grace is None else grace
        again = self._limits.interrupted
        self._limits.interrupt(grace)
        if self._exit is not None or self._closing is not None or not (again or self._codec.interrupt()):
            # No output will end the run.
            self._closing = asyncio.create_task(self.close(grace))
        elif not again:
            self._flush()
            self._client_requests.end_run()
            self._take_pending()
        self._set_timer()

    async def close(self, grace: float | None = None) -> None:
        grace = self._grace if grace is None else grace
        if self._closable is not None and self.alive and grace:
            self._closable.closing()
            self._flush()
        await self._terminate(grace)

    async def _terminate(self, grace: float) -> None:
        # A task of its own: the caller may be cancelled, the end of the terminals may not.
        if self._termination is None or self._termination.done():
            self._termination = asyncio.create_task(self._end_all(grace))
        else:
            await self._process.close(grace)
        await asyncio.shield(self._termination)

    async def _end_all(self, grace: float) -> None:
        """End the process first and then what served it: the CLI would report a connection that is cut to the model."""
        if self._reading is not None:
            self._reading.cancel()
        await self._process.close(grace)
        await self._client_requests.close()
        if self._tool_server is not None:
            await self._tool_server.close()

    # -- between two runs ---------------------------------------------------------------------------------------------

    def _read_between_runs(self) -> None:
        """Read on in the background: what the process writes now belongs to no prompt, and its requests get their responses."""
        if self._reading is None and not self._gone and self._exit is None:
            self._reading = asyncio.create_task(self._read_until_prompt())

    async def _read_until_prompt(self) -> None:
        received = 0
        while self._exit is None:
            lines = await self._process.read_lines()
            received += sum(map(len, lines))
            self._read(lines)
            if self._exit is None and received > MAX_BETWEEN_RUNS:
                self._exit = asyncio.create_task(self._abort())
        await asyncio.shield(self._exit)

    async def _stop_reading_between_runs(self) -> None:
        """Read what the process has written so far, and leave the rest to the next run."""
        reading, self._reading = self._reading, None
        if reading is None:
            return
        # Not awaited, which takes three iterations of the event loop: a cancelled task takes no more lines.
        reading.cancel()
        if self._exit is None:
            try:
                lines = await self._process.available_lines()
            except asyncio.CancelledError:
                self._read_between_runs()
                raise
            if lines:
                self._read(lines)
        if self._exit is not None:
            await asyncio.shield(self._exit)

    # -- output of the process ----------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Wait for output, the end of the process or a deadline, and handle it."""
        if self._exit is None:
            try:
                async with self._clock.timeout(None) as self._timer:
                    self._set_timer()
                    lines = await self._process.read_lines()
            except TimeoutError:
                await self._deadline_reached()
            else:
                self._read(lines)
        if self._exit is not None:
            # A task of its own: the caller may be cancelled, handling the exit may not.
            await asyncio.shield(self._exit)

    def _read(self, lines: list[bytes]) -> None:
        self._limits.output()
        events = self._codec.receive_lines(lines)
        if log.isEnabledFor(logging.DEBUG):
            for event in events:
                if isinstance(event, Stdout):
                    log.debug("a line that the driver of %s does not know: %s", self._codec.title, excerpt(event.line.encode()))
        self._unread = events[-1].line if events and isinstance(events[-1], Stdout) else None
        self._take(events)
        self._take_pending()
        self._limits.track(self._codec.phase)
        self._flush()
        if self._codec.protocol_error is not None:
            self._exit = asyncio.create_task(self._abort())
        elif not lines:
            self._exit = asyncio.create_task(self._handle_exit())

    async def _deadline_reached(self) -> None:
        if self._woken:
            self._woken = False
            return
        # If the gateway was suspended (SIGSTOP, a laptop's sleep), the agent's output is still in the pipe.
        lines = await self._process.available_lines()
        if lines:
            self._read(lines)
        if self._exit is not None or self._process.output_ended or (lines and self._run_over):
            return
        deadline = self._next_deadline()
        if deadline is None or deadline.at > self._clock.monotonic():
            return
        if deadline.reason is not None:
            self._exit = asyncio.create_task(self._stop(deadline.reason))
        elif self._debouncing is not None:
            self._take(self._debouncing.debounced_events())
            self._limits.track(self._codec.phase)
            self._flush()

    async def _stop(self, reason: str) -> None:
        """End the process because a limit has passed."""
        last = self._process.take_unfinished() or (self._unread or "").encode()
        if b"{" in last:
            reason += f"; its last line has an object that could not be read: {excerpt(last)}"
        self._passed_limit = reason
        await self._terminate(0.0)
        self._take_failure(f"the agent was stopped: {reason}", TIMED_OUT)

    async def _abort(self) -> None:
        """End the process because its output cannot be followed any further."""
        if self._process.output_ended:
            # Half a line is what a process that was killed leaves: its exit code and its standard error say more.
            return await self._handle_exit()
        await self._terminate(0.0)
        self._take_last(self._codec.exited(1, ()))

    async def _handle_exit(self) -> None:
        if failure := self._process.failure:
            await self._terminate(0.0)
            return self._take_failure(failure, 1)
        code = await self._process.exit_code(self._limits.within_interrupt(self._grace or 1.0))
        self._take_last(self._codec.exited(code, self._process.stderr_tail() if code else ()))
        # Not left to the owner of the agent: what a one-shot run leaves behind ends with it.
        await self._terminate(0.0)

    def _take_failure(self, message: str, exit_code: int) -> None:
        """Take the events that are left, such as the ends of calls, and end the run for a reason that the codec does not know."""
        left = [event for event in self._codec.exited(exit_code, ()) if not isinstance(event, Error | SessionEnd)]
        self._take_last([*left, Error(message=message), SessionEnd(exit_code=exit_code, stop_reason="error")])

    def _take_last(self, events: list[OutputEvent]) -> None:
        """Take the events that are left when the process has ended."""
        if self._limits.interrupted:
            events = [_cancelled(event) for event in events if not isinstance(event, Error)]
        self._take(events)
        self._gone = True

    def _take(self, events: list[OutputEvent]) -> None:
        if not self._run_over and _ENDS.isdisjoint(map(type, events)):
            self._ready += events
            return
        for event in events:
            if self._run_over:
                # After its session_end a run has no more events.
                self._between_runs.add([event])
                continue
            if type(event) is SessionEnd:
                event = event.model_copy(update={"duration_ms": self._limits.elapsed_ms})
                self._run_over = True
                self._client_requests.end_run()
            self._ready.append(event)

    # -- what the client and the tool server answer -------------------------------------------------------------------

    def _client_responded(self, request: ClientRequest, response: ClientResponse) -> None:
        if self._requesting is not None:
            self._limits.activity()
            self._requesting.client_responded(request, response)
            self._update()

    def _tool_requested(self, request: ToolRequest) -> None:
        if self._calling is not None:
            self._limits.activity()
            self._calling.tool_requested(request)
            self._update()

    def _tool_cancelled(self, request_id: str) -> None:
        if self._calling is not None:
            self._calling.tool_cancelled(request_id)
            self._update()

    def _update(self) -> None:
        """Handle what a call has changed in the codec."""
        self._limits.track(self._codec.phase)
        self._flush()
        self._set_timer()
        self._take_pending()

    def _flush(self) -> None:
        """Pass on what the codec has collected for the process, the tool server and the client."""
        if self._codec.outbox:
            self._process.write(self._codec.outbox)
            self._codec.outbox.clear()
        if self._calling is not None:
            while self._calling.tool_responses:
                response = self._calling.tool_responses.pop(0)
                if self._tool_server is not None:
                    self._tool_server.answer(response)
        if self._requesting is not None:
            while self._requesting.client_requests:
                self._client_requests.begin(self._requesting.client_requests.pop(0), self._client_responded)

    def _take_pending(self) -> None:
        """Take the events that no line caused, and wake a `receive` that waits for lines."""
        if self._codec.pending:
            self._take(self._codec.pending)
            self._codec.pending = []
            if self._timer is not None:
                with suppress(RuntimeError):
                    self._timer.reschedule(self._clock.monotonic())
                    self._woken = True

    # -- time limits --------------------------------------------------------------------------------------------------

    def _next_deadline(self) -> Deadline | None:
        debounce = self._debouncing.debounce_seconds() if self._debouncing is not None else None
        max_held = self._debouncing.max_held_seconds if self._debouncing is not None else None
        self._limits.hold(debounce is not None)
        # An agent that does not read its input does not wait for a response.
        busy = self._client_requests.busy and self._process.writable
        return self._limits.next_deadline(self._codec.phase, busy=busy, debounce=debounce, max_held=max_held)

    def _set_timer(self) -> None:
        """Set the next deadline, also for a read that is under way with another."""
        if self._timer is not None and not self._timer.expired():
            deadline = self._next_deadline()
            with suppress(RuntimeError):
                self._timer.reschedule(None if deadline is None else deadline.at)

    def _start_error(self) -> Exception:
        if self._codec.start_error is not None:
            return self._codec.start_error
        if reason := self._passed_limit or self._codec.protocol_error:
            return AgentUnavailable(reason)
        messages = [event.message for event in self._ready if isinstance(event, Error)] or self._process.stderr_tail()
        return AgentUnavailable(f"the agent ended before it took a prompt: {' '.join(messages)[-2000:] or 'it wrote no message'}")


def _cancelled(event: OutputEvent) -> OutputEvent:
    if isinstance(event, SessionEnd):
        return event.model_copy(update={"stop_reason": "cancelled", "exit_code": INTERRUPTED})
    return event
