"""Finds in what a program has printed which of its arguments it does not know. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

REFUSALS = (
    # commander (claude) and clap (codex).
    re.compile(r"(?:unknown option|unexpected argument) '(--[\w-]+)"),
    # yargs (gemini), which adds a name in camel case to each that has a hyphen.
    re.compile(r"^Unknown arguments?: (.+)$"),
)


def unknown_arguments(printed: Iterable[str], argv: Sequence[str]) -> tuple[str, ...]:
    """The options of a command line, as `--name`, that the lines name as unknown; empty if they name none."""
    given = {argument.partition("=")[0] for argument in argv[1:] if argument.startswith("--")}
    named = (name for line in printed for pattern in REFUSALS for found in pattern.findall(line) for name in found.split(", "))
    return tuple(dict.fromkeys(option for name in named if (option := f"--{name.removeprefix('--')}") in given))
