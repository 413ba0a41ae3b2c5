"""Lines of a program with something wrong in them: cut, doubled, moved, removed, or with fields lost or odd. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

Kind = Literal["cut", "cut short", "double", "move", "remove", "end here", "lose", "odd"]
Damage = tuple[Kind, int, int]
"""What, where, and a number of which the rest follows."""
KINDS: tuple[Kind, ...] = get_args(Kind)
ODD: tuple[Any, ...] = (None, 0, -1, 2**70, True, 1.5, "", "odd", [], [1], {}, {"type": "odd"}, [[]])


def damaged(lines: Iterable[bytes], damages: Iterable[Damage]) -> list[bytes]:
    """The lines with all of this done to them, one after the other."""
    found = list(lines)
    for how, at, other in damages:
        found = _damage(found, how, at, other) if found else found
    return found


def _damage(lines: Sequence[bytes], how: Kind, at: int, other: int) -> list[bytes]:
    index = at % len(lines)
    line, before, after = lines[index], lines[:index], lines[index + 1 :]
    cut = other % (len(line) + 1)
    match how:
        case "cut":
            return [*before, line[:cut], line[cut:], *after]
        case "cut short":
            return [*before, line[:cut], *after]
        case "double":
            return [*before, line, line, *after]
        case "move":
            rest = [*before, *after]
            position = other % (len(rest) + 1)
            return [*rest[:position], line, *rest[position:]]
        case "remove":
            return [*before, *after]
        case "end here":
            return [*before, line]
        case _:
            return [*before, _changed(line, ODD[(at + other) % len(ODD)] if how == "odd" else None, other, how), *after]


def _changed(line: bytes, odd: Any, other: int, how: Kind) -> bytes:
    try:
        native = json.loads(line)
    except ValueError:
        return line
    positions = list(_positions(native))
    if not positions:
        return line
    container, key = positions[other % len(positions)]
    if how == "lose":
        del container[key]
    else:
        container[key] = odd
    return json.dumps(native).encode()


def _positions(value: Any) -> Iterable[tuple[Any, Any]]:
    """Every position in a JSON value: its container and its key or index."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _positions(value[key])
