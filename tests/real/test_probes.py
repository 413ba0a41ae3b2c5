"""The probes of the real CLIs: what they find out, that they make no model request, and what they write.

With PORTICO_TEST_CLIS they run with other versions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import drivers.driver_registry as driver_registry
from drivers.compatibility import compatibility
from drivers.contract.agent_specs import AgentSpec
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.process import Spawner
from tests.real.clis import BIN, CLIS, require
from tests.real.models import Model

NAMES = ("claude", "codex", "gemini")
REFUSING = """#!/bin/sh
for argument in "$@"; do
    if test "$argument" = {refused}; then echo "{message}" >&2; exit 1; fi
done
exec {program} "$@"
"""


@dataclass
class Cli:
    """An installed CLI with an empty home folder. `spec` is an agent's, with the driver's defaults as its options."""

    driver: CliDriver
    spec: AgentSpec
    home: Path
    version: str

    def refusing(self, argument: str, message: str) -> AgentSpec:
        """The spec of a program that refuses an argument, and is this CLI otherwise."""
        program = self.home.parent / "refusing"
        program.write_text(REFUSING.format(refused=argument, message=message, program=self.spec.program))
        program.chmod(0o700)
        return replace(self.spec, program=str(program))


@pytest.fixture
async def cli(request: pytest.FixtureRequest, tmp_path: Path, model: Model) -> AsyncIterator[Cli]:
    name = request.param
    program = require(BIN / name)
    driver = driver_registry.load()[name]
    assert isinstance(driver, CliDriver)
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work, tmp_path / "tmp"):
        folder.mkdir()
    env = {
        "HOME": str(home),
        "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": str(tmp_path / "tmp"),
        "ANTHROPIC_API_KEY": "sk-ant-dummy-0123456789abcdef",
        "ANTHROPIC_BASE_URL": model.url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CODEX_API_KEY": "sk-dummy-0123456789abcdef",
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "GEMINI_API_KEY": "dummy-gemini-key-0123456789",
        "GOOGLE_GEMINI_BASE_URL": model.url,
    }
    options = {option.name: option.default for option in driver.info().options}
    package = CLIS / "node_modules" / compatibility()[name].package / "package.json"
    spec = AgentSpec(str(program), work, env, (), options)
    yield Cli(driver, spec, home, json.loads(package.read_text())["version"])
    assert list((tmp_path / "tmp").glob("portico-*")) == []
    assert list(work.iterdir()) == []
    # Some versions ask whether the host is there (claude 2.1.148 to 2.1.197).
    assert [request for request in model.requests if request.method != "HEAD"] == []


@pytest.mark.parametrize("cli", NAMES, indirect=True)
async def test_the_probe_opens_a_session(cli: Cli) -> None:
    probe = await cli.driver.probe(cli.spec, Spawner())
    assert (probe.version, probe.problem, probe.logged_in) == (cli.version, None, True)
    assert probe.models


@pytest.mark.parametrize("cli", ["claude"], indirect=True)
async def test_an_argument_that_a_session_needs_is_named_as_the_problem(cli: Cli) -> None:
    probe = await cli.driver.probe(cli.refusing("--tools", "error: unknown option '--tools'"), Spawner())
    assert probe.problem == f"claude {cli.version}: it opened no session (exit code 1): error: unknown option '--tools'"
