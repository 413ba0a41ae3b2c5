"""Sets a member in a JSON text with comments and trailing commas, such as an editor's settings; all else stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from typing import Any

# What is not closed extends to the end: the search is not repeated behind each quote.
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"?|,(?=\s*[}\]])', re.DOTALL)
_SPACE = re.compile(r"\s*")


def parse(text: str) -> Any:
    """Return the value of a JSON text with comments; None if it has no value. Raises JSONDecodeError."""
    plain = _plain(text)
    return json.loads(plain) if plain.strip() else None


def with_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with `value` at `path`, the keys of nested objects; objects that are missing are created.

    Raises JSONDecodeError if the text is not JSON, and TypeError if the text, or a value on the path, is not an object.
    """
    parse(text)
    plain = _plain(text)
    if not plain.strip():
        return f"{text.rstrip()}\n{_dumped(_nested(path, value), 0)}\n".lstrip("\n")
    start = _end_of_space(plain, 0)
    for depth, key in enumerate(path):
        if plain[start] != "{":
            raise TypeError(f"{'.'.join(path[:depth]) or 'the text'} is not an object")
        # A key that is there twice has the last value.
        found = {name: span for name, *span in _members(plain, start)}.get(key)
        if found is None:
            return _inserted(text, plain, start, key, _nested(path[depth + 1 :], value), depth + 1)
        start, end = found
    return text[:start] + _dumped(value, len(path)) + text[end:]


def _plain(text: str) -> str:
    """Return the text with spaces in place of comments and trailing commas, so that each position stays the same."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _STRING_OR_TRAILING_COMMA.sub(blank, _STRING_OR_COMMENT.sub(blank, text))


def _members(plain: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield each key of the object at `start`, with the start and the end of its value."""
    decoder = json.JSONDecoder()
    at = _end_of_space(plain, start + 1)
    while plain[at] != "}":
        key, at = decoder.raw_decode(plain, at)
        value_start = _end_of_space(plain, plain.index(":", at) + 1)
        _, at = decoder.raw_decode(plain, value_start)
        yield key, value_start, at
        at = _end_of_space(plain, at)
        if plain[at] == ",":
            at = _end_of_space(plain, at + 1)


def _inserted(text: str, plain: str, start: int, key: str, value: Any, depth: int) -> str:
    """Return the text with a new member as the first of the object at `start`."""
    empty = plain[_end_of_space(plain, start + 1)] == "}"
    member = f"\n{'  ' * depth}{json.dumps(key, ensure_ascii=False)}: {_dumped(value, depth)}"
    rest = text[start + 1 :]
    if not empty:
        return f"{text[: start + 1]}{member},{rest}"
    rest = rest.lstrip(" ")
    end = "" if rest.startswith("\n") else "\n" + "  " * (depth - 1)
    return f"{text[: start + 1]}{member}{end}{rest}"


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _dumped(value: Any, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)


def _end_of_space(plain: str, at: int) -> int:
    match = _SPACE.match(plain, at)
    assert match is not None
    return match.end()


__all__ = ["JSONDecodeError", "parse", "with_member"]
