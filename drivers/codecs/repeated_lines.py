"""Reads lines that repeat a line with another text, as the deltas of a message do, without parsing each of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drivers.contract.events import AgentToken, OutputEvent, Thinking
from drivers.contract.line_splitter import parse_object

MIN_LINES = 4
"""Lines that are read at once, from which on it is worth its own cost: two lines are parsed to learn what repeats."""
MAX_MISSES = 3
"""Lines that no other line repeats, after which no more of those that are read at once are tried."""
Path = tuple[str, ...]
"""The names of the members that lead to a value."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_inside: Callable[[bytes, int], Any] = re.compile(rb'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+)*+').match
"""The inside of a JSON string from a position on, perhaps nothing. It stops at `\\u`: surrogates are not valid in each text.

Possessive: otherwise each escape takes 130 bytes until the match ends, 4 GB for the longest line (CPython 3.11)."""
_SPECIAL = re.compile(rb"[\\\x00-\x1f]")
_PROBE = b"portico-probe"
_EVENTS: dict[type[AgentToken | Thinking], TypeAdapter[Any]] = {
    AgentToken: TypeAdapter(list[AgentToken]),
    Thinking: TypeAdapter(list[Thinking]),
}


class RepeatedDelta:
    """What repeats a line of one delta: its bytes, but for the inside of the string with the text and of one unread string.

    Parameters:
        parts: The bytes before, between and after these one or two strings, with the quotes.
        text: Which of the strings is the text, 0 or 1.
    """

    def __init__(self, kind: type[AgentToken | Thinking], parts: Sequence[bytes], text: int) -> None:
        self._events, self._parts, self._text = _EVENTS[kind], parts, text

    @classmethod
    def of(cls, line: bytes, event: AgentToken | Thinking, text: Path, unread: Path | None = None) -> RepeatedDelta | None:
        """What repeats a line whose only event was `event`; None if it is not certain where its strings are.

        Parameters:
            text: Where the object on the line has the text of the event.
            unread: Where it has a string that is another one on each line, and that the codec does not read.
        """
        message = parse_object(line)
        strings: dict[int, tuple[Path, bytes, str]] = {}
        for path in (text,) if unread is None else (text, unread):
            value = _value(message, path)
            if not isinstance(value, str) or not _PLAIN.fullmatch(value) or (path == text and value != event.text):
                return None
            quoted = f'"{value}"'.encode()
            start = line.find(quoted)
            # Both have the same value where one of them is escaped: the other one is found for both.
            if line.count(quoted) != 1 or start in strings:
                return None
            strings[start] = (path, quoted, value)
        parts, end = list[bytes](), 0
        for start, (_, quoted, _) in sorted(strings.items()):
            parts.append(line[end : start + 1])
            end = start + len(quoted) - 1
        parts.append(line[end:])
        # What was found is the inside of these strings only if another one in their places changes these values and nothing else.
        changed = parse_object(_PROBE.join(parts))
        for path, _, value in strings.values():
            if _value(changed, path) != _PROBE.decode():
                return None
            _set(changed, path, value)
        if changed != message:
            return None
        return cls(type(event), parts, [strings[start][0] for start in sorted(strings)].index(text))

    def read(self, lines: Sequence[bytes], start: int) -> list[OutputEvent]:
        """The events of the lines from `start` on, one for each, until the first line that repeats nothing."""
        texts = self._one_string(lines, start) if len(self._parts) == 2 else self._two_strings(lines, start)
        if not texts:
            return []
        try:
            events: list[OutputEvent] = self._events.validate_json(b'[{"text":"%b"}]' % b'"},{"text":"'.join(texts))
        except ValidationError:
            # Not UTF-8.
            return []
        return events

    def _one_string(self, lines: Sequence[bytes], start: int) -> list[bytes]:
        (before, after), texts = self._parts, list[bytes]()
        skip = len(before)
        for n in range(start, len(lines)):
            line = lines[n]
            if not line.startswith(before):
                break
            text = _inside(line, skip)[0]
            # An empty text is no event.
            if not text or line[skip + len(text) :] != after:
                break
            texts.append(text)
        return texts

    def _two_strings(self, lines: Sequence[bytes], start: int) -> list[bytes]:
        (before, between, after), texts, unread = self._parts, list[bytes](), list[bytes]()
        skip, skip_between, text_is_first = len(before), len(between), self._text == 0
        for n in range(start, len(lines)):
            line = lines[n]
            if not line.startswith(before):
                break
            end = skip + len(_inside(line, skip)[0]) if text_is_first else line.find(b'"', skip)
            if not line.startswith(between, end):
                break
            second = end + skip_between
            last = line.find(b'"', second) if text_is_first else second + len(_inside(line, second)[0])
            if line[last:] != after:
                break
            first_string, second_string = line[skip:end], line[second:last]
            text = first_string if text_is_first else second_string
            if not text:
                break
            texts.append(text)
            unread.append(second_string if text_is_first else first_string)
        joined = b"".join(unread)
        # Of the other strings only the quotes were looked for.
        return texts if joined.isascii() and not _SPECIAL.search(joined) else []


def _value(message: Any, path: Path) -> Any:
    for name in path:
        message = message.get(name) if isinstance(message, dict) else None
    return message


def _set(message: Any, path: Path, value: str) -> None:
    for name in path[:-1]:
        message = message[name]
    message[path[-1]] = value
