"""The time limits of an agent: which one is due next, and when. It reads a clock and waits for nothing."""

from __future__ import annotations

from typing import NamedTuple

from drivers.contract.agent_specs import Limits
from drivers.contract.codec import Phase
from drivers.runtime.clock import SYSTEM_CLOCK, Clock


class Deadline(NamedTuple):
    """A moment, in seconds of the monotonic clock, and the limit that passes then; `reason` is None for events held back."""

    at: float
    reason: str | None


class RunLimits:
    """Times of one agent's runs. The total limit pauses while the client is waited for.

    Parameters:
        limits: The limits, in seconds; 0 is none.
        task: Whether the run begins with the process. The limit for the start holds then until the first output.
    """

    def __init__(self, limits: Limits, *, task: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._limits, self._now = limits, clock.monotonic
        self._started = self._active = self._now()
        self._suspended = 0.0
        self._suspended_since: float | None = None
        self._interrupt_deadline: float | None = None
        self._awaits_first_output = task
        self._held_since: float | None = None

    @property
    def interrupted(self) -> bool:
        return self._interrupt_deadline is not None

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the start of the run."""
        return int((self._now() - self._started) * 1000)

    def begin(self) -> None:
        """A run begins."""
        self._started = self._active = self._now()
        self._suspended = 0.0
        self._suspended_since = self._interrupt_deadline = self._held_since = None

    def activity(self) -> None:
        """The agent has written, or received what it waited for: the idle limit begins anew."""
        self._active = self._now()

    def output(self) -> None:
        """The agent has written."""
        self._awaits_first_output = False
        self.activity()

    def interrupt(self, grace: float) -> None:
        """The run was interrupted, and has to end within `grace` seconds; an earlier deadline stays."""
        deadline = self._now() + grace
        self._interrupt_deadline = min(deadline, self._interrupt_deadline or deadline)

    def within_interrupt(self, seconds: float) -> float:
        """These seconds, or those that an interrupted run has left, if they are fewer."""
        if self._interrupt_deadline is None:
            return seconds
        return min(seconds, max(0.0, self._interrupt_deadline - self._now()))

    def track(self, phase: Phase) -> None:
        """Keep the time in which the client is waited for apart from the agent's own."""
        if phase == "waiting":
            self._suspended_since = self._suspended_since or self._now()
        elif self._suspended_since is not None:
            self._suspended += self._now() - self._suspended_since
            self._suspended_since = None

    def hold(self, held: bool) -> None:
        """Keep since when events are held back; `held` is whether they are now."""
        self._held_since = (self._held_since or self._now()) if held else None

    def next_deadline(
        self, phase: Phase, *, busy: bool, debounce: float | None, max_held: float | None = None
    ) -> Deadline | None:
        """The next deadline; None if nothing limits the agent now.

        Parameters:
            busy: Whether the CLI waits for a request to its client. It may be silent for that long.
            debounce: Seconds of silence after which events that were held back are due.
            max_held: Seconds after which they are due without silence.
        """
        limits = self._limits
        if self._interrupt_deadline is not None:
            return Deadline(self._interrupt_deadline, "it did not stop when it was interrupted")
        if phase == "waiting":
            return None
        deadlines: list[Deadline] = []
        if limits.start > 0 and (phase == "starting" or self._awaits_first_output):
            reason = f"it was not ready {limits.start:g} s after its start (limits.start)"
            deadlines.append(Deadline(self._started + limits.start, reason))
        if phase != "starting":
            if limits.idle > 0 and not busy:
                deadlines.append(Deadline(self._active + limits.idle, f"it was silent for {limits.idle:g} s (limits.idle)"))
            if limits.total > 0:
                reason = f"the run took more than {limits.total:g} s (limits.total)"
                deadlines.append(Deadline(self._started + self._suspended + limits.total, reason))
            if debounce is not None:
                deadlines.append(Deadline(self._active + debounce, None))
                if max_held is not None and self._held_since is not None:
                    deadlines.append(Deadline(self._held_since + max_held, None))
        return min(deadlines, key=lambda deadline: deadline.at, default=None)
