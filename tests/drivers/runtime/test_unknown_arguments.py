"""What programs print about arguments that they do not know, as recorded from each."""

from __future__ import annotations

import pytest

from drivers.runtime.unknown_arguments import unknown_arguments


@pytest.mark.parametrize(
    ("printed", "arguments", "unknown"),
    [
        # claude 1.0.119 and 2.1.148.
        ("error: unknown option '--include-hook-events'", ("--print", "--include-hook-events"), ("--include-hook-events",)),
        ("error: unknown option '--model=opus'", ("--model=opus",), ("--model",)),
        # gemini 0.12.0 and 0.44.0, whose usage follows.
        ("Unknown argument: acp\nUsage: gemini [options] [command]\n  --model", ("--acp", "--model=x"), ("--acp",)),
        ("Unknown arguments: no-such, noSuch, acp", ("--no-such", "--acp"), ("--no-such", "--acp")),
        # codex 0.137.0.
        ("error: unexpected argument '--foo' found\n\nUsage: codex app-server", ("app-server", "--foo"), ("--foo",)),
        # Not an argument of the command line.
        ("error: unknown option '--other'", ("--print",), ()),
        ("it said: Unknown argument: acp", ("--acp",), ()),
        ("", ("--acp",), ()),
    ],
)
def test_unknown_arguments(printed: str, arguments: tuple[str, ...], unknown: tuple[str, ...]) -> None:
    assert unknown_arguments(printed.splitlines(), ("program", *arguments)) == unknown
