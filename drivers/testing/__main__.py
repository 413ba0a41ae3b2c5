"""`python -m drivers.testing`: the conformance check on the command line."""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

import drivers.driver_registry as driver_registry
from drivers.runtime.cli_driver import Driver
from drivers.testing import CHECKS, PROMPT, Setup, ToolCases, examine

COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}


@click.command()
@click.argument("driver")
@click.argument("args", nargs=-1)
@click.option("--program", help="The program's path, where it is not on PATH under its usual name.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the driver.")
@click.option("--prompt", default=PROMPT, show_default=True, help="What the agent is asked; about 15 times.")
@click.option(
    "--tool-prompt", "tools", multiple=True, metavar="NAME=PROMPT", help="On this prompt the agent calls that tool; four times."
)
@click.option("--app-tool-prompt", help="On this prompt the agent calls the application-side tool portico_check.")
@click.option("--never-asks", is_flag=True, help="The CLI cannot ask for permission while it runs.")
@click.option("--seconds", default=60.0, show_default=True, help="How long one answer may take.")
@click.option("--only", multiple=True, type=click.Choice([check.name for check in CHECKS]), help="Just this check.")
def main(
    driver: str,
    args: Sequence[str],
    program: str | None,
    options: Sequence[str],
    prompt: str,
    tools: Sequence[str],
    app_tool_prompt: str | None,
    never_asks: bool,
    seconds: float,
    only: Sequence[str],
) -> None:
    """Check DRIVER, which is `package.module:Class` or the name of an installed one, with its real program.

    ARGS (after `--`) go to the program. The exit code is the number of checks that failed.
    """
    given = dict(_pair("--option", option) for option in options)
    cases = ToolCases(dict(_pair("--tool-prompt", tool) for tool in tools), app_tool_prompt, not never_asks)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="portico-check-") as folder:
        work = Path(folder).resolve()
        setup = Setup(_load(driver), work, program, tuple(args), options=given, prompt=prompt, tools=cases, seconds=seconds)
        failed = asyncio.run(_show(setup, only))
    sys.exit(failed)


async def _show(setup: Setup, only: Sequence[str]) -> int:
    failed = 0
    async for outcome in examine(setup, lambda check: not only or check.name in only):
        click.echo(f"{click.style(outcome.status, COLOURS[outcome.status]):<7}  {outcome.check}: {outcome.text}")
        failed += outcome.status == "failed"
    return failed


def _load(name: str) -> Driver:
    module, colon, attribute = name.partition(":")
    if not colon:
        drivers = driver_registry.load()
        if name not in drivers:
            raise click.UsageError(
                f"no driver {name!r} is installed; there are {', '.join(sorted(drivers))}, or give module:Class"
            )
        return drivers[name]
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise click.UsageError(f"cannot make a driver of {name!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Driver):
        raise click.UsageError(
            f"{name!r} is no driver; it must be a subclass of drivers.Driver, drivers.CliDriver or drivers.TurnProcessDriver"
        )
    return found


def _pair(flag: str, option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals:
        raise click.UsageError(f"{flag} {option!r}: write NAME=VALUE")
    return name, value


if __name__ == "__main__":
    main()
