"""Checks of what `info()` declares: names, options, tools and environment variables that clients can use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from jsonschema import Draft202012Validator, SchemaError

from drivers.contract.driver_info import SLASH_OPTION, DriverInfo, Option, ToolSpec
from drivers.testing.check_outcome import Check, Failed
from drivers.testing.driver_under_test import Setup

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
GATEWAYS_OWN = frozenset({"cwd"})


async def name(setup: Setup) -> None:
    found = getattr(setup.driver, "name", None)
    if not isinstance(found, str) or not NAME.fullmatch(found):
        raise Failed(f"the class attribute `name` is {found!r}; make it a word such as 'my-agent'")


async def info(setup: Setup) -> None:
    found = setup.driver.info()
    if not isinstance(found, DriverInfo):
        raise Failed(f"info() gave {type(found).__name__}; it must be a DriverInfo")
    if setup.driver.info() != found:
        raise Failed("info() gave two different answers; it must be the same at any time (`probe` reports what is installed)")
    for field in ("title", "description"):
        if not str(getattr(found, field)).strip():
            raise Failed(f"info().{field} is blank; clients show it to people")
    if found.program.name is not None and not found.program.name.strip():
        raise Failed("info().program.name is blank; give the program's usual name, or None if the driver brings its own")


async def options(setup: Setup) -> None:
    _unique("option", (option.name for option in setup.info.options))
    for option in setup.info.options:
        _option(option)
    if any(option.name == SLASH_OPTION and "on" not in option.choices for option in setup.info.options):
        raise Failed(f"option {SLASH_OPTION!r} decides whether a `/` begins a command; give it the choice `on`")


def _option(option: Option) -> None:
    where = f"option {option.name!r}"
    if not NAME.fullmatch(option.name):
        raise Failed(f"{where}: a name has letters, digits, `_`, `.` and `-` only")
    if option.name in GATEWAYS_OWN:
        raise Failed(f"{where} is the gateway's own; every agent has it already")
    if not option.title.strip() or not option.description.strip():
        raise Failed(f"{where}: its title or its description is blank; clients show both in a form")
    if option.choices and option.default not in option.choices:
        raise Failed(f"{where}: its default {option.default!r} is not one of its choices {', '.join(option.choices)}")
    if option.secret and (option.default or option.choices):
        raise Failed(f"{where} is a secret: it can have neither a default nor choices, which everybody may read in /meta")


async def tools(setup: Setup) -> None:
    _unique("tool", (tool.name for tool in setup.info.tools))
    for tool in setup.info.tools:
        _tool(tool)


def _tool(tool: ToolSpec) -> None:
    where = f"tool {tool.name!r}"
    if not tool.name.strip() or not tool.description.strip():
        raise Failed(f"{where}: its name or its description is blank")
    try:
        schema = json.loads(json.dumps(dict(tool.input_schema)))
        Draft202012Validator.check_schema(schema)
    except (TypeError, ValueError) as error:
        raise Failed(f"{where}: its input_schema is not JSON: {error}") from error
    except SchemaError as error:
        raise Failed(f"{where}: its input_schema is not a JSON schema: {error.message} at {error.json_path}") from error
    if schema.get("type") != "object":
        raise Failed(f'{where}: its input_schema must have "type": "object"; a call\'s input is an object')


async def env(setup: Setup) -> None:
    for pattern in setup.info.program.env:
        if not pattern.strip("*?"):
            raise Failed(
                f"info().program.env has {pattern!r}, which hands the daemon's whole environment to the CLI; name what it needs"
            )


def _unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for found in names:
        if found in seen:
            raise Failed(f"two {what}s have the name {found!r}")
        seen.add(found)


CHECKS = (
    Check("name", "the driver has a name", name),
    Check("info", "info() is the same at any time, with a title and a description", info),
    Check("options", "every option can be shown, given and defaulted", options),
    Check("tools", "every tool has a valid JSON schema of an object", tools),
    Check("env", "only what the CLI needs of the daemon's environment is asked for", env),
)
