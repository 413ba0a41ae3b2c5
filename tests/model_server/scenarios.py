"""Decides what a scripted model answers, independent of any wire dialect.

Owns the vocabulary of a reply (`Step`), the rule that picks one from a dialogue, and
the scenarios every dialect can serve. A tag `[[name]]` or `[[name:arg]]` in the last
user text picks the scenario; the number of assistant messages after that text picks
the step. The only state between requests is the number of identical requests,
which `Step.recovery` uses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

TAG = re.compile(r"\[\[([\w.-]+)(?::([^\]]*))?\]\]")

Role = Literal["user", "assistant", "tool"]
Stop = Literal["end_turn", "tool_use", "max_tokens", "refusal"]
Damage = Literal["malformed", "cut"]


@dataclass(frozen=True)
class Text:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block."""

    text: str


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool; `input` may hold `{arg}` in its strings."""

    name: str
    input: Mapping[str, object]


Block = Text | Thinking | ToolUse


@dataclass(frozen=True)
class Failure:
    """An HTTP error reply."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Token counts a reply reports."""

    input: int = 100
    cache_read: int = 7
    cache_write: int = 0
    output: int = 42


@dataclass(frozen=True)
class Step:
    """One reply: its blocks, how they are streamed, and how the reply breaks."""

    blocks: tuple[Block, ...] = ()
    stop: Stop | None = None
    chunk: int = 12
    delay: float = 0.0
    failure: Failure | None = None
    damage: Damage | None = None
    usage: Usage = Usage()
    recovery: Step | None = None

    @property
    def stop_reason(self) -> Stop:
        """The stated stop reason, or the one the blocks imply."""
        if self.stop is not None:
            return self.stop
        calls = any(isinstance(block, ToolUse) for block in self.blocks)
        return "tool_use" if calls else "end_turn"


@dataclass(frozen=True)
class Turn:
    """One message of a dialogue; a tool result counts as role `tool`."""

    role: Role
    texts: tuple[str, ...] = ()

    @property
    def last_text(self) -> str:
        """The last text of the message."""
        return self.texts[-1] if self.texts else ""


Dialogue = tuple[Turn, ...]
Script = Step | Callable[[Dialogue], Step]


@dataclass(frozen=True)
class Scenario:
    """Scripted steps; `sticky` scenarios also answer untagged texts that follow, forever."""

    steps: tuple[Script, ...]
    sticky: bool = False

    def script(self, index: int) -> Script:
        """The script for the reply with this index."""
        if index < len(self.steps):
            return self.steps[index]
        return self.steps[-1] if self.sticky else text_step("(script over)")


@dataclass(frozen=True)
class Choice:
    """The reply an engine picked and why."""

    scenario: str
    index: int
    step: Step


class Engine:
    """Picks the reply for each request."""

    def __init__(self, scenarios: Mapping[str, Scenario]) -> None:
        self._scenarios = scenarios
        self._seen: Counter[Dialogue] = Counter()

    def choose(self, dialogue: Dialogue) -> Choice:
        """Pick the reply to a dialogue, with its argument filled in."""
        self._seen[dialogue] += 1
        name, arg, index = self._locate(dialogue)
        if not name:
            return Choice("", 0, recall(dialogue))
        scenario = self._scenarios.get(name)
        if scenario is None:
            return Choice(name, index, text_step(f"unknown scenario {name}"))
        script = scenario.script(index)
        step = script if isinstance(script, Step) else script(dialogue)
        if step.recovery is not None and self._seen[dialogue] > 1:
            step = step.recovery
        return Choice(name, index, fill(step, arg))

    def _locate(self, dialogue: Dialogue) -> tuple[str, str, int]:
        replies = 0
        last = True
        for turn in reversed(dialogue):
            replies += turn.role == "assistant"
            if turn.role != "user":
                continue
            tags = TAG.findall(turn.last_text)
            if tags and (last or self._is_sticky(tags[-1][0])):
                return tags[-1][0], tags[-1][1], replies
            if tags:
                break
            last = False
        return "", "", 0

    def _is_sticky(self, name: str) -> bool:
        scenario = self._scenarios.get(name)
        return scenario is not None and scenario.sticky


def fill(step: Step, arg: str) -> Step:
    """Put the tag's argument in place of `{arg}` in a step."""
    return replace(step, blocks=tuple(_fill_block(block, arg) for block in step.blocks))


def _fill_block(block: Block, arg: str) -> Block:
    if isinstance(block, ToolUse):
        filled = {key: _fill_value(value, arg) for key, value in block.input.items()}
        return replace(block, input=filled)
    return replace(block, text=block.text.replace("{arg}", arg))


def _fill_value(value: object, arg: str) -> object:
    return value.replace("{arg}", arg) if isinstance(value, str) else value


def text_step(*texts: str) -> Step:
    """A reply of plain text blocks."""
    return Step(tuple(Text(text) for text in texts))


def once(step: Step) -> Scenario:
    """A scenario of one reply."""
    return Scenario((step,))


def recall(dialogue: Dialogue) -> Step:
    """Quote every earlier user text: proof of what the model was given."""
    users = [text for turn in dialogue if turn.role == "user" for text in turn.texts]
    quoted = " | ".join(users[:-1]) or "nothing"
    return text_step(f"I see {len(users)} user texts. Before this one: {quoted}")


def _error(status: int, kind: str, message: str, **headers: str) -> Scenario:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return once(Step(failure=Failure(status, kind, message, names)))


_CUT = Step((Text("this stream is cut after some deltas"),), damage="cut", delay=0.05)

COMMON: Mapping[str, Scenario] = {
    "plain": once(text_step("Hello from the model, this is plain text.")),
    "echo": once(text_step("{arg}")),
    "think": once(Step((Thinking("Let me think about this carefully."), Text("The answer is 42.")))),
    "slowtext": once(Step((Text("word " * 600),), chunk=5, delay=0.05)),
    "midtext": once(Step((Text("word " * 40),), chunk=5, delay=0.05)),
    "bigtext": once(Step((Text("X" * 1_200_000),), chunk=300_000)),
    "usage": once(Step((Text("Counted."),), usage=Usage(1000, 200, 30, 40))),
    "recall": Scenario((recall,)),
    "maxtok": Scenario(
        (Step((Text("This answer is cut off in the mid"),), stop="max_tokens"),),
        sticky=True,
    ),
    "refusal": Scenario((Step((Text("I can not help"),), stop="refusal"),), sticky=True),
    "e400": _error(400, "invalid_request_error", "bad request"),
    "e401": _error(401, "authentication_error", "invalid x-api-key"),
    "e429": _error(429, "rate_limit_error", "slow down", retry_after="1"),
    "e500": _error(500, "api_error", "internal"),
    "malformed": once(Step((Text("x"),), damage="malformed")),
    "cut": once(_CUT),
    "cutonce": once(replace(_CUT, recovery=text_step("Whole on the second try."))),
}
