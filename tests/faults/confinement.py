"""Files, terminals, agents and patches in a folder that another process swaps with a link to the outside: nothing is outside.

The patches are those of a CLI like codex, which opens the paths itself after its request was accepted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

from drivers.contract.client_services import CHECK_PATHS, ClientRequest
from drivers.contract.codec import Command
from drivers.contract.errors import DriverError
from drivers.runtime import confined_files, process
from drivers.runtime.cli_driver import run_to_end
from drivers.runtime.local_client_services import ClientRequests
from drivers.runtime.process import Spawner
from drivers.runtime.sandbox import Sandbox, unavailable
from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.errors import BadRequest
from tests.drivers.codex.cli import PATCH, Server
from tests.faults.campaign import NotRun, Run
from tests.support.swapped_folders import swapped

SECONDS, QUICK_SECONDS, LATE = 5.0, 1.0, 10
"""Seconds of each race, and how many times as long it may take until some attempts succeeded."""
INSIDE, OUTSIDE, REJECTED = "inside", "outside", "rejected"

Attempt = Callable[["Folders"], Awaitable[str]]


class Folders:
    """The folder `work/sub`, which is swapped with a link to `outside`, and the requests of a session that works in `work`."""

    def __init__(self, base: Path) -> None:
        base = base.resolve()
        self.work, self.sub, self.outside = base / "work", base / "work" / "sub", base / "outside"
        for folder, text in ((self.sub, INSIDE), (self.outside, OUTSIDE)):
            (folder / "deep").mkdir(parents=True)
            (folder / "link").symlink_to("/etc")
            for path in (folder / "file", folder / "deep" / "file"):
                path.write_text(text)
        self._inside, self._before = self.sub.stat().st_ino, self._outside_files()
        self.spawner = Spawner("faults")
        self.requests = ClientRequests(self.work, dict(os.environ), self.spawner)
        self.agents = Agents(parse({"agents": {"demo": {"driver": "echo", "cwd": str(self.work)}}}), os.environ, base)
        self.count = 0

    async def ask(self, method: str, **params: object) -> dict[str, object] | None:
        """The result of a request; None for an error."""
        response = await self.requests.serve(ClientRequest(1, method, params))
        return dict(response.result) if response.error is None else None

    def where(self, printed: str) -> str:
        """Where a program has run that has printed the inode of its working folder."""
        return INSIDE if int(printed.split()[0]) == self._inside else OUTSIDE

    def changes(self) -> list[str]:
        """The violation, if something has been created or changed outside."""
        return [] if self._outside_files() == self._before else ["the folder outside was changed"]

    def _outside_files(self) -> dict[str, str]:
        return {str(path): path.read_text() if path.is_file() else "" for path in sorted(self.outside.rglob("*"))}


async def _read(folders: Folders) -> str:
    answer = await folders.ask("fs/read_text_file", path=str(folders.sub / "deep" / "file"))
    return str(answer["content"]) if answer else REJECTED


async def _write(folders: Folders) -> str:
    folders.count += 1
    path = folders.sub / f"new-{folders.count % 100}" / "file"
    return INSIDE if await folders.ask("fs/write_text_file", path=str(path), content="x") is not None else REJECTED


async def _overwrite(folders: Folders) -> str:
    answer = await folders.ask("fs/write_text_file", path=str(folders.sub / "file"), content=INSIDE)
    return INSIDE if answer is not None else REJECTED


async def _terminal(folders: Folders) -> str:
    created = await folders.ask("terminal/create", command="ls -di .", cwd=str(folders.sub))
    if created is None:
        return REJECTED
    await folders.ask("terminal/wait_for_exit", **created)
    output = await folders.ask("terminal/output", **created)
    await folders.ask("terminal/release", **created)
    return folders.where(str((output or {})["output"]))


async def _agent(folders: Folders) -> str:
    try:
        cwd = folders.agents.get("demo").spec({"cwd": str(folders.sub)}).cwd
        _, printed = await run_to_end(Command(("ls", "-di", "."), cwd, dict(os.environ), stdin=b""), folders.spawner)
    except (BadRequest, DriverError):
        return REJECTED
    return folders.where(printed)


async def _link(folders: Folders) -> str:
    """Both folders have this link to the outside: no check may accept it, at whatever moment it looks."""
    return REJECTED if await folders.ask(CHECK_PATHS, paths=["sub/link/file"]) is None else OUTSIDE


async def _patch(folders: Folders) -> str:
    """A trusted patch in the gateway's sandbox, which the CLI writes by itself when it is accepted."""
    if unavailable() or not await _accepted(folders, confined=True):
        return REJECTED
    sandbox = folders.spawner.with_launcher(Sandbox((folders.work,), ()))
    write = Command(("sh", "-c", "echo x > sub/patched"), folders.work, dict(os.environ), stdin=b"")
    code, _ = await run_to_end(write, sandbox)
    return REJECTED if code else INSIDE


async def _unconfined_patch(folders: Folders) -> str:
    """The same without a sandbox: it is never accepted by trust."""
    return OUTSIDE if await _accepted(folders, confined=False) else REJECTED


async def _accepted(folders: Folders, *, confined: bool) -> bool:
    """Whether codex' driver accepts a trusted patch in the folder that is swapped."""
    server = Server("shell", trusted=["apply_patch"], confined=confined, folder=str(folders.work))
    server.begin("one")
    server.notify(
        "item/started", "one", item={**PATCH, "changes": [{**PATCH["changes"][0], "path": str(folders.sub / "patched")}]}
    )
    server.request("item/fileChange/requestApproval", "one", "p1")
    (check,) = server.codec.client_requests
    server.codec.client_responded(check, await folders.requests.serve(check))
    return any(line.get("result") == {"decision": "accept"} for line in server.written())


RACES: dict[str, dict[str, Attempt]] = {
    "files": {
        "reads": _read,
        "writes": _write,
        "overwrites": _overwrite,
        "links": _link,
        "patches without a sandbox": _unconfined_patch,
    },
    "processes": {"terminals": _terminal, "agents": _agent, "patches": _patch},
}
NEVER_INSIDE = frozenset({"links", "patches without a sandbox", *(("patches",) if unavailable() else ())})
"""Attempts that must be rejected at every moment."""


async def confinement(run: Run) -> None:
    """Each access, with both mechanisms, in a race with a process that swaps a folder in its path with a link."""
    for mechanism in ("openat2", "walk"):
        for name, attempts in RACES.items():
            await run.case(f"{name}, {mechanism}", partial(_race, run, attempts, mechanism))


async def _race(run: Run, attempts: dict[str, Attempt], mechanism: str) -> list[str]:
    if mechanism == "openat2" and not confined_files.has_openat2():
        raise NotRun("the kernel does not have openat2, or does not permit it")
    fallback = mechanism == "walk"
    counts = {name: Counter[str]() for name in attempts}
    with (
        tempfile.TemporaryDirectory(prefix="portico-faults-confinement-") as base,
        patch.object(confined_files, "has_openat2", lambda: not fallback),
        patch.object(process, "has_descriptor_paths", lambda: not fallback),
    ):
        folders = Folders(Path(base))
        # Before the race. The first request imports the protocol's package.
        before = {name: await attempt(folders) for name, attempt in attempts.items()}
        problems = [
            f"{name}: {where} without a race" for name, where in before.items() if (where == INSIDE) == (name in NEVER_INSIDE)
        ]
        with swapped(folders.sub, folders.outside):
            began, seconds = time.monotonic(), QUICK_SECONDS if run.quick else SECONDS
            # Longer on a busy machine, where an attempt of some milliseconds may always meet a swap.
            while (took := time.monotonic() - began) < seconds or (
                took < LATE * seconds and not all(map(_raced, counts.items()))
            ):
                for name, attempt in attempts.items():
                    counts[name][await attempt(folders)] += 1
        await folders.requests.close()
        problems += folders.changes()
    for name, count in counts.items():
        text = f"{count[INSIDE]} inside, {count[REJECTED]} rejected, {count[OUTSIDE]} outside"
        run.report.remarks.append(f"{mechanism}: {name}: {text}")
        if count[OUTSIDE] or not _raced((name, count)):
            problems.append(f"{name}: {text}")
    return problems


def _raced(attempts: tuple[str, Counter[str]]) -> bool:
    """Whether some attempts of a name came before a swap and others behind it."""
    name, count = attempts
    return bool(count[REJECTED] and (count[INSIDE] or name in NEVER_INSIDE or name == "patches"))
