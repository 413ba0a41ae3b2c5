"""Runs the checks of a release, each with a limit of time; one that fails is repeated alone before it counts."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.checks import CHECKS, Check
from tests.matrix.clis import Cli
from tests.matrix.results import PASSED
from tests.matrix.rig import CheckFailed, Rig, open_rig

CHECK_SECONDS = 30.0
"""A check that takes longer has failed."""
WHY_CHARACTERS = 300


@dataclass
class Outcome:
    """The outcome of all checks of a release, by their names.

    `results` are "passed" or "failed: WHY", `behaviour` the words that checks returned. `repeated` says why a check failed the
    first time.
    """

    results: dict[str, str] = field(default_factory=dict)
    behaviour: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, str] = field(default_factory=dict)


async def run_checks(cli: Cli, bin_folder: Path, checks: Mapping[str, Check] = CHECKS) -> Outcome:
    """Run all checks, with one gateway as long as they pass. One that fails is repeated with another gateway and a new home."""
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        rig: Rig | None = None
        for name, check in checks.items():
            if rig is None:
                rig = await stack.enter_async_context(open_rig(cli, bin_folder))
            result, word = await run_check(check, rig)
            if result != PASSED:
                outcome.repeated[name] = result
                await stack.aclose()
                rig = None
                async with open_rig(cli, bin_folder) as alone:
                    result, word = await run_check(check, alone)
            outcome.results[name] = result
            if word:
                outcome.behaviour[name] = word
    return outcome


async def run_check(check: Check, rig: Rig) -> tuple[str, str]:
    """Run a check once: its result, and the word that it returned."""
    try:
        async with asyncio.timeout(CHECK_SECONDS) as limit:
            return PASSED, await check(rig) or ""
    except TimeoutError as error:
        took = f"not finished after {CHECK_SECONDS:g} s" if limit.expired() else "a limit of time was reached"
        return f"failed: {took}, in {_places(error.__cause__ or error)}", ""
    except CheckFailed as error:
        return f"failed: {one_line(error, rig.base)}", ""
    except Exception as error:
        return f"failed: {type(error).__name__}: {one_line(error, rig.base)}, in {_places(error)}", ""


def one_line(error: BaseException, base: Path | None = None) -> str:
    """The message in one line of limited length, without folders and ports of this machine."""
    text = " ".join(str(error).split())
    if base is not None:
        text = text.replace(str(base), "…")
    text = re.sub(r"/\S*portico-matrix-\w+", "…", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", text))
    return text if len(text) <= WHY_CHARACTERS else text[: WHY_CHARACTERS - 1] + "…"


def _places(error: BaseException) -> str:
    """The functions of the checks that an exception has passed, the outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{frame.name} (line {frame.lineno})" for frame in frames if "/tests/matrix/" in frame.filename[-60:])
