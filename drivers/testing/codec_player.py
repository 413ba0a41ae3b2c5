"""A codec played by itself: lines in, events out, with what must hold whatever the lines are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from drivers.contract.agent import Prompt, ToolReply
from drivers.contract.capabilities import SupportsDebounce
from drivers.contract.codec import Codec
from drivers.contract.events import Awaiting, OutputEvent, SessionEnd
from drivers.testing.check_outcome import Failed
from drivers.testing.run_invariants import kinds, refuse_odd

Interrupt = Callable[[int], bool]
"""Whether to interrupt the run before the line of this number."""


class Player:
    """Plays one codec. `prompts` counts the runs, `ends` their ends; a `task` has one, which begins by itself.

    `strict`: between runs there are no events but raw lines, as must be for lines in their order.
    """

    def __init__(self, codec: Codec, most_prompts: int = 3, *, task: bool = False, strict: bool = False) -> None:
        self.codec = codec
        self.events: list[OutputEvent] = []
        self.prompts = self.ends = 0
        self._most = 0 if task else most_prompts
        self._task, self._strict = task, strict
        self._note_start()

    def play(self, lines: Iterable[bytes], interrupt: Interrupt = lambda index: False) -> None:
        """Feed these lines, with a prompt whenever the codec is ready. Raises Failed where something does not hold."""
        for index, line in enumerate(lines):
            if self.codec.phase == "ready" and self.prompts < self._most:
                self.prompt()
            if interrupt(index) and self.codec.phase in ("running", "waiting"):
                self.codec.interrupt()
                self._take([], "interrupt()")
            self.feed(line)

    def prompt(self) -> None:
        self.codec.prompt(Prompt("x"))
        self.prompts += 1
        self._take([], "prompt()")

    def feed(self, line: bytes) -> None:
        """One line, and what comes of it once the program has fallen silent."""
        try:
            events = self.codec.receive(line)
        except Exception as error:
            raise Failed(
                f"receive({line[:200]!r}) raised {type(error).__name__}: {error}; it must give a Stdout event"
            ) from error
        self._take(events, f"receive({line[:200]!r})")
        if isinstance(self.codec, SupportsDebounce) and self.codec.debounce_seconds() is not None:
            self._take(self.codec.debounced_events(), "debounced_events()")

    def exit(self, code: int) -> None:
        """The process ends. Raises Failed unless every run has had its one end, last."""
        self._take(self.codec.exited(code, ["a line of standard error"]), f"exited({code})")
        if self.ends != self.prompts:
            raise Failed(f"{self.prompts} runs had {self.ends} session_end events; each must have one: {kinds(self.events)}")
        if again := self.codec.exited(code, []):
            raise Failed(f"exited() gave {kinds(again)} though no run was under way any more")

    def _note_start(self) -> None:
        if self._task and self.codec.phase in ("running", "waiting"):
            self.prompts = 1

    def _take(self, events: list[OutputEvent], where: str) -> None:
        taken = [*events, *self.codec.pending]
        self.codec.pending = []
        refuse_odd(taken, where)
        self._note_start()
        for event in taken:
            if self._strict and self.prompts == self.ends > 0 and event.kind != "stdout":
                raise Failed(f"{where} gave `{event.kind}` after the session_end of its run: {kinds([*self.events, *taken])}")
            if isinstance(event, SessionEnd):
                self.ends += 1
            if self.ends > self.prompts:
                raise Failed(f"{where} gave a session_end though no run was under way: {kinds([*self.events, *taken])}")
        self.events += taken
        for event in taken:
            for call in event.calls if isinstance(event, Awaiting) else ():
                if self.codec.phase == "waiting":
                    self.codec.reply(ToolReply(call.id, "x"))
                    self._take([], "reply()")


def contains(events: Iterable[OutputEvent], mark: str) -> bool:
    """Whether a text stands in any of the events."""
    return any(mark in json.dumps(json.loads(event.encode()), ensure_ascii=False) for event in events)
