"""The states of a session, and what may happen in each. The tables below are the whole of it; docs/architecture.md shows them.

1. A request is carried out under the lock of its session, one after the other, and only where `COMMANDS` permits it in the
   state of that moment. Any other is refused by `Machine.require`, in words, and changes nothing. A cancel, a deletion, a
   shutdown and the loss of the lease do not wait for the lock to be heard: they interrupt what is under way there.
2. The state follows the store: a run moves it by an event of `EVENTS` at the moment at which that event is stored, before
   anybody can read it. An event that `EVENTS` does not have in a state is a fault of the gateway.

It is a lock, and not a task with a mailbox: thousands of sessions are idle and need no task, and a request that does its own
work has its errors, its cancellation and its place in the log without any plumbing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Literal

from gateway.errors import BadRequest, ClientError, Conflict, GatewayError, LeaseLost, NotFound
from gateway.runs.run import RunEvent

PublicState = Literal["idle", "running", "waiting"]
"""The state of a session as clients see it."""


class _Described(Enum):
    """Members with a label and a text, which the documentation shows."""

    def __init__(self, label: str, text: str) -> None:
        self.label, self.text = label, text


class State(_Described):
    """The states of a session. STARTING, ENDING and GONE lie over the state of the run, which its events move meanwhile."""

    IDLE = ("idle", "no run is under way; the next message begins one")
    STARTING = ("starting", "a request is accepted and its agent is made ready; nothing is stored, and a refusal changes nothing")
    RUNNING = ("running", "the turn is stored, and the agent works on it or is about to get its prompt")
    WAITING = ("waiting", "calls of the agent wait for the client, and the agent for them")
    SUSPENDED = ("suspended", "calls wait for the client, and their agent has ended; the answers start another one")
    ENDING = ("ending", "the run was cancelled, and its agent has some time to end it")
    GONE = ("gone", "the session takes nothing here: it is deleted, another node has it, or the daemon shuts down")


class Command(_Described):
    """What is asked of a session. All but CANCEL and LEAVE are carried out under its lock."""

    MESSAGE = ("message", "begin a run with a user message; calls that wait are cancelled")
    ANSWERS = ("answers", "continue the run with the replies to all its pending calls")
    STEER = ("steer", "give the agent at work a message")
    PREPARE = ("prepare", "start the agent ahead of the next prompt")
    CONFIGURE = ("configure", "replace the settings")
    FORK = ("fork", "copy the whole history to another session")
    END_AGENT = ("end agent", "end the agent's process; a run at work ends with an error")
    CANCEL = ("cancel", "end the run, or the start that is under way")
    LEAVE = ("leave", "take nothing any more: deletion, shutdown, loss of the lease")


_SETTLED = (State.IDLE, State.WAITING, State.SUSPENDED)
COMMANDS: Mapping[tuple[State, Command], State] = {
    (State.IDLE, Command.MESSAGE): State.STARTING,
    (State.WAITING, Command.MESSAGE): State.STARTING,
    (State.SUSPENDED, Command.MESSAGE): State.STARTING,
    (State.WAITING, Command.ANSWERS): State.STARTING,
    (State.SUSPENDED, Command.ANSWERS): State.STARTING,
    (State.RUNNING, Command.STEER): State.RUNNING,
    (State.IDLE, Command.PREPARE): State.IDLE,
    **{(state, Command.CONFIGURE): state for state in (*_SETTLED, State.RUNNING)},
    **{(state, Command.FORK): state for state in _SETTLED},
    (State.IDLE, Command.END_AGENT): State.IDLE,
    (State.RUNNING, Command.END_AGENT): State.ENDING,
    (State.WAITING, Command.END_AGENT): State.SUSPENDED,
    (State.SUSPENDED, Command.END_AGENT): State.SUSPENDED,
    (State.STARTING, Command.CANCEL): State.STARTING,
    (State.RUNNING, Command.CANCEL): State.ENDING,
    (State.WAITING, Command.CANCEL): State.ENDING,
    (State.SUSPENDED, Command.CANCEL): State.ENDING,
    **{(state, Command.LEAVE): State.GONE for state in State},
}
"""The state after a command, by the state before it."""

EVENTS: Mapping[tuple[State, RunEvent], State] = {
    (State.IDLE, RunEvent.BEGAN): State.RUNNING,
    (State.IDLE, RunEvent.RESTORED): State.SUSPENDED,
    (State.RUNNING, RunEvent.WAITS): State.WAITING,
    (State.RUNNING, RunEvent.ENDED): State.IDLE,
    (State.WAITING, RunEvent.WAITS): State.WAITING,
    (State.WAITING, RunEvent.ANSWERED): State.RUNNING,
    (State.WAITING, RunEvent.AGENT_ENDED): State.SUSPENDED,
    (State.WAITING, RunEvent.ENDED): State.IDLE,
    (State.SUSPENDED, RunEvent.ANSWERED): State.RUNNING,
    (State.SUSPENDED, RunEvent.ENDED): State.IDLE,
}
"""The state of the run after an event, by that before it."""

OVER_UNTIL: Mapping[State, State] = {State.STARTING: State.RUNNING, State.ENDING: State.IDLE}
"""The state of the run with which what lies over it is over. A start that is refused leaves the state of the run as it was."""

_BUSY = "this session is at work on a turn; wait for its end or cancel it, then send this again"
REFUSALS: Mapping[tuple[State, Command], tuple[type[ClientError], str]] = {
    (State.RUNNING, Command.MESSAGE): (Conflict, _BUSY),
    (State.RUNNING, Command.ANSWERS): (Conflict, _BUSY),
    (State.IDLE, Command.ANSWERS): (BadRequest, "no tool call is pending in this session, so {calls} cannot be answered"),
    (State.RUNNING, Command.FORK): (
        Conflict,
        "this session has a prompt in progress; fork it when the prompt has ended, cancel it, or fork it at an event",
    ),
}
"""Why a command is refused, for the client. One that is not permitted and not here has no effect."""

PUBLIC: Mapping[State, PublicState] = {
    State.IDLE: "idle",
    State.RUNNING: "running",
    State.WAITING: "waiting",
    State.SUSPENDED: "waiting",
}
"""What clients see of the state of the run."""


class Machine:
    """The state of one session.

    Attributes:
        of_run: The state of the run: IDLE, RUNNING, WAITING or SUSPENDED.
        gone: Why the session takes nothing any more, for those who ask; None while it does.
    """

    def __init__(self) -> None:
        self.of_run = State.IDLE
        self.gone: GatewayError | None = None
        self._over: State | None = None

    @property
    def state(self) -> State:
        """The state, with STARTING, ENDING and GONE over that of the run."""
        return State.GONE if self.gone is not None else self._over or self.of_run

    def permits(self, command: Command) -> bool:
        """Whether a command would have an effect."""
        return self.gone is None and (self.of_run, command) in COMMANDS

    def require(self, command: Command, calls: str = "") -> None:
        """Raise the error of `REFUSALS`, which names the `calls`, or why the session is gone, unless the command is permitted."""
        self.require_here()
        if (self.of_run, command) not in COMMANDS:
            error, text = REFUSALS[self.of_run, command]
            raise error(text.format(calls=calls))

    def require_here(self) -> None:
        """Raise why the session is gone, if it is."""
        if self.gone is not None:
            raise self.gone.with_traceback(None)

    @contextmanager
    def over(self, state: State) -> Iterator[None]:
        """Be STARTING or ENDING, until the run is in the state of `OVER_UNTIL` or the block ends."""
        self._over = state
        try:
            yield
        finally:
            self._over = None

    def on(self, event: RunEvent) -> None:
        """Take an event of the run. Raises RuntimeError for one that cannot be: a fault of the gateway."""
        if (self.of_run, event) not in EVENTS:
            raise RuntimeError(f"the run of a session that is {self.of_run.label} cannot have the event {event.value!r}")
        self.of_run = EVENTS[self.of_run, event]
        if self._over is not None and self.of_run is OVER_UNTIL[self._over]:
            self._over = None

    def leave(self, why: GatewayError) -> None:
        """Be gone. A deletion stays the reason, and so does the loss of the lease, except for a deletion."""
        if isinstance(self.gone, NotFound) or (isinstance(self.gone, LeaseLost) and not isinstance(why, NotFound)):
            return
        self.gone = why
