"""A campaign: named cases, each of which returns its violations. Cases run concurrently, with a limit of time each."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.daemon import Daemon, closing

CASE_SECONDS = 90.0
"""A case that takes longer has failed."""


@dataclass
class Failure:
    """The violations of one case."""

    case: str
    problems: list[str]


@dataclass
class Report:
    """The result of a campaign. `reason` is set where it could not run."""

    name: str
    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    remarks: list[str] = field(default_factory=list)


class NotRun(Exception):
    """The campaign, or a part of it, needs what this machine does not permit."""


@dataclass
class Run:
    """The run of one campaign: its settings, and where it reports to."""

    name: str
    seed: int
    quick: bool
    report: Report

    def random(self, *names: object) -> random.Random:
        """A source of random numbers that depends on the seed and these names only."""
        return random.Random("/".join(str(part) for part in (self.seed, self.name, *names)))

    def record(self, name: str, problems: list[str]) -> None:
        """Record the violations of a case that has been run."""
        self.report.cases += 1
        if problems:
            self.report.failures.append(Failure(name, problems))

    async def case(self, name: str, check: Callable[[], Awaitable[list[str]]], daemon: Daemon | None = None) -> None:
        """Run one case and record its violations; an exception is one too.

        A case that reaches the limit of time ends `daemon`, and records what the threads of that process did.
        """
        try:
            async with asyncio.timeout(CASE_SECONDS) as limit:
                problems = await check()
        except NotRun as error:
            self.report.remarks.append(f"{name}: not run: {error}")
            return
        except TimeoutError as error:
            if limit.expired():
                problems = [f"not finished after {CASE_SECONDS:g} s, in {_functions(error.__cause__ or error)}"]
                if daemon is not None:
                    problems.append(await daemon.abort())
            else:
                problems = [f"a time limit was reached in {_functions(error)}"]
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        self.record(name, problems)

    async def concurrently(self, jobs: Sequence[Callable[[], Awaitable[None]]], workers: int) -> None:
        """Run the jobs, at most `workers` at a time."""
        queue = list(reversed(jobs))

        async def work() -> None:
            while queue:
                await queue.pop()()

        await asyncio.gather(*(work() for _ in range(workers)))

    @asynccontextmanager
    async def daemon(self, *, start: bool = True, **fields: Any) -> AsyncIterator[Daemon]:
        """A daemon in a folder of its own, which is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix=f"portico-faults-{self.name}-", ignore_cleanup_errors=True) as folder:
            async with closing(Daemon(Path(folder), **fields)) as daemon:
                if start:
                    await daemon.start()
                yield daemon


def _functions(error: BaseException) -> str:
    """The functions of the campaigns that an exception has passed, the outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{frame.name} (line {frame.lineno})" for frame in frames[1:] if "/tests/faults/" in frame.filename)


Campaign = Callable[[Run], Awaitable[None]]


async def run_campaign(name: str, campaign: Campaign, seed: int, quick: bool) -> Report:
    """Run a campaign and return its report."""
    report = Report(name)
    began = time.monotonic()
    try:
        await campaign(Run(name, seed, quick, report))
    except NotRun as error:
        report.reason = str(error)
    except Exception as error:
        report.failures.append(Failure("the campaign itself", [f"{type(error).__name__}: {error}"]))
    report.seconds = time.monotonic() - began
    return report
