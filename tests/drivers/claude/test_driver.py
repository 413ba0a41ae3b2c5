"""The claude driver with a program that plays recorded output: tasks, sessions and the probe."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.claude.driver import ClaudeDriver
from drivers.claude.probe import commands, greeting, login_status, models
from drivers.contract.agent_specs import Limits, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.claude.recordings import TRANSCRIPTS
from tests.drivers.small_programs import LIMITS, ask, end_of, shown, text_in, to_end

FakeCli = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path) -> FakeCli:
    """Creates a program that stores its standard input and its arguments, prints a transcript, and exits."""

    def make(transcript: str, *, exit_code: int = 0, stderr: str = "", before: str = "") -> str:
        program = tmp_path / "bin" / "claude"
        program.parent.mkdir()
        lines = TRANSCRIPTS / "claude" / f"{transcript}.jsonl"
        told = f"cat {shlex.quote(str(lines))}\nprintf '%s' '{stderr}' >&2"
        program.write_text(f"#!/bin/sh\n{before}\n{told}\nexit {exit_code}\n")
        program.chmod(0o700)
        return str(program)

    return make


def session(program: str, cwd: Path, **fields: Any) -> SessionSpec:
    return SessionSpec(program, cwd, {"PATH": "/usr/bin:/bin", "HOME": str(cwd)}, **fields)


async def execute(program: str, cwd: Path, task: str = "x", **limits: float) -> CliAgent:
    spec = TaskSpec(program, cwd, {"PATH": "/usr/bin:/bin"}, task=task)
    agent = await ClaudeDriver().execute(spec, Spawner(), Limits(**{"start": 30, "idle": 30, **limits}))
    assert isinstance(agent, CliAgent)
    return agent


async def test_a_task(fake: FakeCli, tmp_path: Path) -> None:
    agent = await execute(fake("oneshot_bash", before="cat > task"), tmp_path, "do it\n")
    events = await to_end(agent)
    assert (tmp_path / "task").read_text() == "do it\n"
    assert text_in(events) == "Listing files. The files are listed."
    assert end_of(events).exit_code == 0
    assert agent.native_id == shown(events)[0]["native_id"]


async def test_a_task_that_fails(fake: FakeCli, tmp_path: Path) -> None:
    events = shown(await to_end(await execute(fake("oneshot_e401", exit_code=1, stderr="oh no"), tmp_path)))
    assert [event["kind"] for event in events] == ["native_session", "usage", "error", "stderr", "session_end"]
    assert events[-1] == {"kind": "session_end", "exit_code": 1, "stop_reason": "error"}


async def test_a_task_whose_process_ends_without_a_result(fake: FakeCli, tmp_path: Path) -> None:
    program = fake("oneshot_bash", before=f"head -n 8 '{TRANSCRIPTS}/claude/oneshot_bash.jsonl'; exit 0")
    events = shown(await to_end(await execute(program, tmp_path)))
    assert events[-2:] == [
        {"kind": "error", "message": "claude ended in the middle of the run, with exit code 0"},
        {"kind": "session_end", "exit_code": 1, "stop_reason": "error"},
    ]


async def test_a_session(fake: FakeCli, tmp_path: Path) -> None:
    # It answers the initialize request, then the prompt.
    lines = TRANSCRIPTS / "claude" / "plain.jsonl"
    program = fake("plain", before=f"read open; head -n 1 '{lines}'; read prompt; tail -n +2 '{lines}'; read more; exit 0")
    agent = await ClaudeDriver().open(session(program, tmp_path), Spawner(), LIMITS)
    assert isinstance(agent, CliAgent)
    events = await ask(agent, "hello")
    assert text_in(events) == "Hello from the model, this is plain text."
    assert end_of(events).stop_reason == "end_turn"
    await agent.close()


async def test_a_deleted_session(fake: FakeCli, tmp_path: Path) -> None:
    program = fake("resume_unknown", exit_code=1)
    with pytest.raises(ResumeFailed, match="No conversation found"):
        await ClaudeDriver().open(session(program, tmp_path, seed=SessionSeed("gone")), Spawner(), LIMITS)


async def test_a_session_that_cannot_be_opened(fake: FakeCli, tmp_path: Path) -> None:
    program = fake("plain", before="echo 'unknown option --tools' >&2; exit 1")
    with pytest.raises(AgentUnavailable, match="took a prompt: unknown option --tools"):
        await ClaudeDriver().open(session(program, tmp_path), Spawner(), LIMITS)


async def test_version(fake: FakeCli, tmp_path: Path) -> None:
    before = 'case "$1" in --version) echo "2.1.329 (Claude Code)"; exit 0;; auth) exit 1;; esac'
    probe = await ClaudeDriver().probe(session(fake("plain", before=before), tmp_path), Spawner())
    assert (probe.version, probe.problem, probe.logged_in) == ("2.1.329", None, False)


async def test_a_program_that_opens_no_session(fake: FakeCli, tmp_path: Path) -> None:
    before = f'case "$1" in --version) echo 2.1.329; exit 0;; auth) touch {tmp_path}/asked;; esac; echo no >&2; exit 2'
    program = fake("plain", before=before)
    probe = await ClaudeDriver().probe(session(program, tmp_path), Spawner())
    assert probe.problem == "claude 2.1.329: it opened no session (exit code 2): no"
    assert not (tmp_path / "asked").exists(), "claude 1.0 sends `auth status` to the model"


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("echo nothing; exit 0", "gave exit code 0 and no version: 'nothing'"),
        ("echo 2.1.329; exit 3", "gave exit code 3 and no version: '2.1.329'"),
        ("echo 'no node' >&2; exit 127", "gave exit code 127 and no version: 'no node'"),
    ],
)
async def test_a_program_that_does_not_print_its_version(fake: FakeCli, tmp_path: Path, before: str, problem: str) -> None:
    program = fake("plain", before=before)
    probe = await ClaudeDriver().probe(session(program, tmp_path), Spawner())
    assert (probe.version, probe.problem) == (None, f"{program} --version {problem}")


def test_models_and_commands_are_read_from_the_initialize_response() -> None:
    lines = (TRANSCRIPTS / "claude" / "plain.jsonl").read_text().splitlines()
    answer = greeting(lines)
    assert "haiku" in models(answer)
    assert "compact" in [command.name for command in commands(answer)]
    assert greeting(["warning", "{}", lines[0]]) == answer
    assert greeting([]) == greeting(["", "[]", '{"type":"system"}']) == greeting(['{"type":"control_response"}']) == {}
    assert models({}) == commands({}) == models({"models": 7}) == commands({"commands": 7}) == ()


@pytest.mark.parametrize(
    ("printed", "known"),
    [
        ('{"loggedIn": true}', True),
        ('{\n  "loggedIn": false\n}', False),
        ('{"loggedIn": 1}', None),
        ('{"logged', None),
        ("yes", None),
    ],
)
def test_login(printed: str, known: bool | None) -> None:
    assert login_status(printed) is known


async def test_a_missing_program(tmp_path: Path) -> None:
    probe = await ClaudeDriver().probe(session("no-such-program", tmp_path), Spawner())
    assert probe.version is None
    assert probe.problem is not None and "No such file" in probe.problem
