"""What must hold after every fault, as functions without I/O. Each returns its violations as texts; none if all is well."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.support.sse import NumberedEvent as Frame

Atom = tuple[str, ...]
"""A part of a conversation: ("user", text), ("text", text), ("call", id), ("result", id)."""

CANCELLED = "Tool call cancelled"
MARK = re.compile(r"<([\w-]+):(\d+)>")


def seen_in_log(seen: Sequence[Frame], replayed: Sequence[Frame], *, gaps: bool = True) -> list[str]:
    """Every frame that a client received is in the replayed log with the same content, or its number is in a gap.

    Without `gaps`, a number in a gap is a violation too.
    """
    log = {number: (name, data) for number, name, data in replayed if name != "gap"}
    lost = [(data["from"], data["to"]) for _, name, data in replayed if name == "gap"]
    problems = []
    for number, name, data in seen:
        if name == "gap" or log.get(number) == (name, data):
            continue
        if number in log:
            problems.append(f"frame {number} was {(name, data)!r} and is {log[number]!r} in the log")
        elif not any(first <= int(number.split(".")[0]) <= last for first, last in lost):
            problems.append(f"frame {number} {(name, data)!r} is in neither the log nor a gap")
        elif not gaps:
            problems.append(f"frame {number} {(name, data)!r} is in a gap of the log")
    return problems


def numbers_increase(frames: Sequence[Frame]) -> list[str]:
    """The ids of a stream increase, so that no frame is repeated."""
    keys = [tuple(int(part) for part in number.split(".")) for number, _, _ in frames]
    # The frames N.1, N.2 of an event come before its last one, N.
    ordered = [(key[0], key[1] if len(key) > 1 else 1 << 30) for key in keys]
    return [f"frame {b} follows {a}" for a, b in pairwise(ordered) if a >= b]


def history_is_log(history: Sequence[Mapping[str, Any]], replayed: Sequence[Frame]) -> list[str]:
    """The history is the fold of the log, which is replayed in `message` mode with the messages of the clients.

    Results of cancelled calls are left out on both sides: a run that is cut off has none in its log.
    """
    cancelled = {message["toolCallId"] for message in history if message["role"] == "tool" and message["content"] == CANCELLED}
    of_history = [atom for message in history for atom in atoms_of_message(message)]
    of_log = [atom for _, name, data in replayed for atom in atoms_of_frame(name, data)]
    left, right = ([atom for atom in atoms if atom[0] != "result" or atom[1] not in cancelled] for atoms in (of_history, of_log))
    if left == right:
        return []
    n = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return [f"the history has {_short(left[n : n + 3])} where the log has {_short(right[n : n + 3])} (part {n})"]


def atoms_of_message(message: Mapping[str, Any]) -> list[Atom]:
    """The parts of a message of the history."""
    role, content = message["role"], message["content"]
    if role == "tool":
        return [("result", message["toolCallId"])]
    if isinstance(content, str):
        return [("user" if role == "user" else "text", content)]
    atoms: list[Atom] = []
    for block in content:
        if block["type"] == "tool_use":
            atoms.append(("call", block["toolCallId"]))
        else:
            atoms.append(("user" if role == "user" else block["type"], block.get("text", block.get("thinking", ""))))
    return atoms


def atoms_of_frame(name: str, data: Mapping[str, Any]) -> list[Atom]:
    """The parts of a message that a frame in `message` mode adds to the history."""
    if name == "client_message":
        return [] if data["role"] == "tool_permission" else atoms_of_message(data)
    if name in ("text", "thinking"):
        return [(name, data[name])]
    if name == "tool_call":
        return [("call", data["toolCallId"])]
    if name == "tool_result":
        return [("result", data["toolCallId"])]
    if name == "tool_calls_cancelled":
        return [("result", call) for call in data["toolCallIds"]]
    return []


def given_once(log: Iterable[Mapping[str, Any]]) -> list[str]:
    """No prompt was given to an agent twice; `log` has the entries of the faulty agent's prompts.log."""
    counts = Counter(entry["id"] for entry in log if entry["type"] in ("prompt", "steer") and not entry["go_on"])
    return [f"prompt {prompt} was given {count} times" for prompt, count in counts.items() if count > 1]


def answers_only(prompt: str, text: str, count: int | None = None) -> list[str]:
    """A text consists of the faulty agent's answer to this prompt: `<prompt:0><prompt:1>…`, all `count` of them if given."""
    marks = MARK.findall(text)
    problems = [f"the answer to {prompt} contains output for {other}" for other in sorted({p for p, _ in marks} - {prompt})]
    numbers = [int(n) for p, n in marks if p == prompt]
    if numbers != list(range(len(numbers))):
        problems.append(f"the answer to {prompt} has the texts {numbers}")
    if count is not None and len(numbers) != count:
        problems.append(f"the answer to {prompt} has {len(numbers)} of {count} texts")
    return problems


def ends_once(frames: Sequence[Frame]) -> list[str]:
    """A stream of one turn has exactly one `turn_stop`, which is last."""
    names = [name for _, name, _ in frames]
    if names.count("turn_stop") == 1 and names[-1] == "turn_stop":
        return []
    return [f"the stream has {names.count('turn_stop')} turn_stop and ends with {names[-1:]}"]


def text_of(frames: Iterable[Frame]) -> str:
    """The text of a stream in `delta` mode."""
    return "".join(data["delta"] for _, name, data in frames if name == "text_delta")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
