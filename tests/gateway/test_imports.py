"""What a command has imported when it has started: the rest is imported on first use, because it takes time and memory.

Imports inside functions are few, and each has its reason.
"""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeGuard

import httpx

from gateway.server.data_dir_lock import data_dir_lock
from tests.conftest import write_config
from tests.support.daemon import gateway_config
from tests.support.waiting import wait_until

GATEWAY = Path(__file__).parents[2] / "gateway"
MOST_IMPORTS_IN_FUNCTIONS = 28
SHORT_COMMANDS = """
import json, sys
from gateway.cli.main import main

def imported(arguments):
    main(arguments, standalone_mode=False)
    return sorted({name.partition(".")[0] for name in sys.modules})

*first, last = json.loads(sys.argv[1])
found = [imported(arguments) for arguments in first]
import gateway.cli.acp
print(json.dumps([*found, sorted({name.partition(".")[0] for name in sys.modules}), imported(last)]))
"""
"""Prints what commands have imported."""
HEAVY = ["acp", "aiohttp", "cryptography", "fastapi", "jsonschema", "mcp", "prometheus_client", "psycopg", "rich", "sqlite3",
         "starlette", "uvicorn", "websockets"]  # fmt: skip


LOADS_SETTINGS = """
import importlib.metadata
groups, entry_points = [], importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **given: groups.append(given) or entry_points(**given)
from gateway.cli.main import main
main(["key"], standalone_mode=False)
assert not groups, groups
"""
"""Loads the settings, and fails if the metadata of all packages is searched meanwhile, such as for plugins of pydantic."""


def test_short_commands_and_the_client_of_an_editor_import_no_heavy_package(tmp_path: Path) -> None:
    config = write_config(tmp_path, gateway_config(tmp_path))
    key = ["key", "--config", str(config)]
    command = [sys.executable, "-c", SHORT_COMMANDS, json.dumps([["--version"], ["--help"], key, [*key, "list"]])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after_version, after_help, after_key, in_an_editor, after_key_list = json.loads(printed.splitlines()[-1])
    unused = [*HEAVY, "asyncio", "drivers", "psutil", "pydantic"]
    assert [name for name in unused if name in after_version or name in after_help] == []
    assert [name for name in [*HEAVY, "psutil"] if name in after_key] == []
    # Each window of an editor starts a `portico acp`, which stays.
    assert [name for name in [*HEAVY, "asyncio", "psutil"] if name in in_an_editor] == []
    # Named keys are in the store.
    assert [name for name in HEAVY if name in after_key_list] == ["sqlite3"]


def test_settings_are_loaded_without_a_search_for_plugins_of_pydantic(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOADS_SETTINGS], capture_output=True, text=True, env={"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr


STARTED = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print(*sys.modules, file=sys.stderr, flush=True))
from gateway.cli.main import main
main()
"""
"""A command that prints the names of its modules to standard error on SIGUSR1."""


async def test_the_daemon_imports_what_its_first_request_needs(tmp_path: Path) -> None:
    async with started(tmp_path, "serve") as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        async with httpx.AsyncClient() as client:
            for path in ("healthz", "meta"):
                assert (await client.get(f"{url}/{path}")).status_code == 200
        unused = ["acp", "aiohttp", "cryptography", "jsonschema", "mcp", "prometheus_client", "rich", "websockets"]
        unused += ["drivers.api", "drivers.script.schema", "gateway.policy.shell_commands", "gateway.protocols.acp.requests"]
        unused += ["gateway.diagnosis", "gateway.application_tools.server", "gateway.protocols.acp.forwarding"]
        unused += ["gateway.cluster.cluster", "gateway.cluster.node"]
        unused.append("gateway.store.postgresql")
        unused += ["psycopg"]
        imported = await modules_of(process)
        assert [name for name in unused if name in imported] == []


async def test_a_daemon_for_editors_imports_no_web_packages(tmp_path: Path) -> None:
    with data_dir_lock(tmp_path / "data") as lock:
        async with started(tmp_path, "serve", "--for-editors", str(lock.fileno()), pass_fds=[lock.fileno()]) as process:
            assert process.stdout is not None
            assert json.loads(await process.stdout.readline()) == {}
            unused = ["acp", "cryptography", "fastapi", "jsonschema", "mcp", "prometheus_client", "rich", "sse_starlette"]
            unused += ["uvicorn", "websockets", "drivers.api", "drivers.script.schema"]
            unused += ["gateway.cli.agents", "gateway.cli.doctor", "gateway.cli.editor", "gateway.cli.service"]
            process.send_signal(signal.SIGUSR1)
            log = tmp_path / "data" / "acp.log"
            printed = await wait_until(lambda: [line for line in log.read_text().splitlines() if line.startswith("sys ")])
            assert [name for name in unused if name in printed[0].split()] == []


@asynccontextmanager
async def started(folder: Path, *arguments: str, pass_fds: Sequence[int] = ()) -> AsyncIterator[Process]:
    """Start a command with an empty data directory, and end it."""
    config = write_config(folder, gateway_config(folder))
    command = [sys.executable, "-c", STARTED, arguments[0], "--config", str(config), *arguments[1:]]
    process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 20, pass_fds=pass_fds)
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()


async def modules_of(process: Process) -> set[str]:
    """Return the names of the modules that a command has imported. Call it once: a second signal may interrupt the first."""
    assert process.stderr is not None
    process.send_signal(signal.SIGUSR1)
    while not (line := (await process.stderr.readline()).decode()).startswith("sys "):
        assert line, "the command has ended"
    return {*line.split()}


def test_imports_inside_functions_are_few_and_each_has_its_reason() -> None:
    found = [(file, line, reason) for file in GATEWAY.rglob("*.py") for line, reason in imports_in_functions(file.read_text())]
    without = [f"{file.relative_to(GATEWAY.parent)}:{line}" for file, line, reason in found if not reason]
    assert not without, "an import inside a function needs a comment before it, or in its line, that says what it costs"
    assert len(found) <= MOST_IMPORTS_IN_FUNCTIONS, "import at the top, unless most starts would pay for what few users need"


def imports_in_functions(source: str) -> list[tuple[int, bool]]:
    """Return the line of each import inside a function, and whether a comment gives its reason, or that of the one before it."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    inside = (node for function in ast.walk(ast.parse(source)) if isinstance(function, functions) for node in ast.walk(function))
    imports = {node.lineno: node.end_lineno for node in inside if is_import(node)}
    lines, reasons = ["", *source.splitlines()], dict[int, bool]()
    ends = dict[int | None, int]()
    for line in sorted(imports):
        before = next(number for number in range(line - 1, -1, -1) if lines[number].strip() or number == 0)
        commented = "#" in lines[line] or lines[before].strip().startswith("#")
        reasons[line] = commented or (before in ends and reasons[ends[before]])
        ends[imports[line]] = line
    return list(reasons.items())


def is_import(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """Whether the node is an import, or names a function that imports a module by its name."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in ("import_module", "__import__")
        case _:
            return isinstance(node, ast.Import | ast.ImportFrom)
