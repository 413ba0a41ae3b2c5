"""`portico run`: standard output and standard error, exit codes, Ctrl-C and other signals, and the spinner on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.terminal_text import lines
from tests.conftest import write_config
from tests.support.daemon import gateway_config
from tests.support.portico_command import PorticoCommand
from tests.support.requests import agent_processes, is_alive, read_pid
from tests.support.waiting import wait_until


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., PorticoCommand]:
    """Return a factory of `portico run demo PROMPT`, whose agent plays the given steps."""

    def command(*steps: Any, prompt: str = "hi", start: Any = (), own: bool = False, **options: str) -> PorticoCommand:
        scenes = tmp_path / "scenes"
        scenes.mkdir(exist_ok=True)
        (scenes / "scene.json").write_text(json.dumps({"start": [*start], "turns": [{"steps": [*steps]}]}))
        entry = {"driver": "script", "cwd": str(scenes), "options": {"scenario": "scene.json", **options}}
        write_config(tmp_path, gateway_config(tmp_path, agents={"demo": entry}))
        return PorticoCommand(tmp_path, "run", "demo", prompt, own=own)

    return command


async def test_standard_output_has_only_the_response(tmp_path: Path) -> None:
    assert await PorticoCommand(tmp_path, "run", "echo", "hi").run() == (0, "hi\n", "")
    assert not (tmp_path / "data").exists(), "no daemon, no data"


async def test_dash_as_prompt_reads_standard_input(tmp_path: Path) -> None:
    code, out, _ = await PorticoCommand(tmp_path, "run", "echo", "-").run("from stdin\näöü\n".encode())
    assert (code, out) == (0, "from stdin\näöü\n")
    big = "x" * 1_000_000
    assert (await PorticoCommand(tmp_path, "run", "echo", "-").run(big.encode()))[:2] == (0, big + "\n")


async def test_prompt_after_double_dash_may_begin_with_a_dash(tmp_path: Path) -> None:
    assert await PorticoCommand(tmp_path, "run", "echo", "--", "--help").run() == (0, "--help\n", "")


async def test_text_that_the_terminal_cannot_show_or_that_is_no_text(tmp_path: Path) -> None:
    latin = {"PYTHONIOENCODING": "latin-1"}
    assert await PorticoCommand(tmp_path, "run", "echo", "smile 😀", env=latin, own=True).run() == (0, "smile \\U0001f600\n", "")
    refusal = "Error: the prompt is not text in the encoding of this terminal, utf-8; use that encoding, or set LC_ALL\n"
    for prompt, given in ((os.fsdecode(b"caf\xe9"), b""), ("-", b"caf\xe9")):
        assert await PorticoCommand(tmp_path, "run", "echo", prompt).run(given) == (1, "", refusal)


@pytest.mark.parametrize("arguments", [("run", "echo", "hi"), ("agents", "list"), ("agents", "--help")])
async def test_a_full_disk_behind_standard_output_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = await PorticoCommand(tmp_path, *arguments, config="--help" not in arguments).start(stdout=full)
    os.close(full)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (1, b"Error: the output cannot be written: No space left on device\n")


async def test_tool_calls_and_errors_are_on_standard_error(play: Callable[..., PorticoCommand]) -> None:
    call = {"tool_call": {"name": "own", "detail": "[bold]a[/bold] file"}}
    end = {"stop": {"reason": "error", "message": "the model failed [/no] to {options.token}"}}
    code, out, err = await play({"text": "a"}, call, {"text": "b"}, end, token="tok-1234").run()
    assert (code, out) == (1, "a\nb\n")
    assert "own [bold]a[/bold] file" in err
    assert "the model failed [/no] to ***" in err
    assert "tok-1234" not in err


async def test_control_characters_are_not_printed(play: Callable[..., PorticoCommand]) -> None:
    hidden = "\x1b[2K\x1b]0;t\x07\x9b31m"
    call = {"tool_call": {"name": f"own{hidden}", "detail": f"a{hidden}\nb"}}
    end = {"stop": {"reason": "error", "message": f"failed{hidden}\nagain"}}
    _, out, err = await play({"text": f"a{hidden}"}, call, {"stderr": f"e{hidden}"}, end).run()
    assert out == f"a{hidden}\n", "not a terminal"
    shown = r"\x1b[2K\x1b]0;t\x07\x9b31m"
    assert f"own{shown} a{shown}\\nb\n" in err
    assert f"failed{shown}\nagain\n" in err
    assert err.replace("\n", "").isprintable()


def test_text_for_a_terminal_keeps_line_breaks_and_tabs() -> None:
    assert lines("ä\tb\r\nc\rd\u200be\n") == "ä\tb\r\nc\\rd\\u200be\n"


async def test_crash_prints_standard_error_of_the_agent(play: Callable[..., PorticoCommand]) -> None:
    code, out, err = await play({"text": "a"}, {"stderr": "[/] no memory"}, {"exit": 7}).run()
    assert (code, out) == (7, "a\n")
    assert "[/] no memory" in err
    assert "Traceback" not in err


async def start_turn(command: PorticoCommand) -> tuple[asyncio.subprocess.Process, psutil.Process]:
    """Start a command whose agent writes "word", and return it with its agent."""
    process = await command.start()
    assert process.stdout is not None
    assert await process.stdout.read(4) == b"word"
    (agent,) = agent_processes(process.pid)
    return process, agent


async def test_ctrl_c_interrupts_the_turn(play: Callable[..., PorticoCommand]) -> None:
    process, agent = await start_turn(play({"text": "word"}, {"hang": True}, prompt="private-words", own=True))
    assert "private-words" not in " ".join(agent.cmdline())
    process.send_signal(signal.SIGINT)
    await assert_ended(process, signal.SIGINT, agent.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_the_turn_with_its_agent(
    play: Callable[..., PorticoCommand], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM comes twice, as that of `timeout` does, and the agent does not end by itself."""
    stray = {"spawn": {"seconds": 300, "new_session": True, "pid_file": "stray"}}
    hang = {"hang": {"ignore_interrupt": True, "ignore_term": number == signal.SIGTERM}}
    process, agent = await start_turn(play(stray, {"text": "word"}, hang, own=True))
    left = await read_pid(tmp_path / "scenes" / "stray")
    for _ in range(2 if number == signal.SIGTERM else 1):
        process.send_signal(number)
    await assert_ended(process, number, agent.pid, left)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_signal_while_the_agent_starts(play: Callable[..., PorticoCommand], tmp_path: Path, number: signal.Signals) -> None:
    process = await play(start=[{"write_file": {"path": "started", "text": "x"}}, {"delay": 300}], own=True).start()
    await wait_until((tmp_path / "scenes" / "started").exists)
    (agent,) = agent_processes(process.pid)
    process.send_signal(number)
    await assert_ended(process, number, agent.pid)


async def assert_ended(process: asyncio.subprocess.Process, number: signal.Signals, *others: int) -> None:
    """Assert that a command ends by a signal, and with it the other processes."""
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    assert not any(map(is_alive, others))


async def test_signal_ends_a_command_whose_output_nobody_reads(play: Callable[..., PorticoCommand]) -> None:
    reading, writing = os.pipe()
    try:
        process = await play({"text": "x" * 1_000_000}, {"hang": True}, own=True).start(stdout=writing)
        await wait_until(lambda: not select.select([], [writing], [], 0)[1])
        (agent,) = agent_processes(process.pid)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 60)
    finally:
        os.close(reading)
        os.close(writing)
    assert process.returncode == 143
    assert not is_alive(agent.pid)


async def test_signal_when_the_terminal_is_gone(play: Callable[..., PorticoCommand]) -> None:
    master, slave = pty.openpty()
    process = await play({"text": "word"}, {"hang": True}, own=True).start(slave, slave)
    os.close(slave)
    terminal = b""
    while b"word" not in terminal:
        terminal += await asyncio.to_thread(os.read, master, 4096)
    (agent,) = agent_processes(process.pid)
    os.close(master)
    process.send_signal(signal.SIGHUP)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 129
    assert not is_alive(agent.pid)


async def test_hangup_that_is_ignored_at_the_start_stays_ignored(play: Callable[..., PorticoCommand], tmp_path: Path) -> None:
    """As `nohup` does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, _ = await start_turn(play({"text": "word"}, {"wait_for_file": "go"}, {"text": " end"}, own=True))
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "scenes" / "go").touch()
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (0, b" end\n")


async def test_unusable_agent_or_option_is_named_in_the_error(tmp_path: Path) -> None:
    write_config(tmp_path, gateway_config(tmp_path, agents={"missing": {"driver": "claude", "program": "no-such-program"}}))
    for arguments, named in (
        (("unknown", "x"), ("'unknown'", "echo", "script")),
        (("script", "x", "--model", "m"), ("'script'", "'model'")),
        (("missing", "x"), ("'missing'", "no-such-program", "agents.missing.program")),
    ):
        code, out, err = await PorticoCommand(tmp_path, "run", *arguments).run()
        assert (code != 0, out) == (True, "")
        assert all(word in err for word in named), err
        assert "Traceback" not in err


async def test_failed_start_prints_standard_error_of_the_agent(play: Callable[..., PorticoCommand]) -> None:
    code, out, err = await play(start=[{"stderr": "no login with {options.token}"}, {"exit": 2}], token="tok-1234").run()
    assert (code != 0, out) == (True, "")
    assert "agent 'demo' cannot start: " in err and "no login with ***" in err
    assert "Traceback" not in err


async def test_a_program_below_the_oldest_supported_version_is_not_started(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "claude-code"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "1.0.119"}')
    program = package / "claude"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    write_config(tmp_path, gateway_config(tmp_path, agents={"old": {"driver": "claude", "program": str(program)}}))
    code, out, err = await PorticoCommand(tmp_path, "run", "old", "hi").run()
    assert (code != 0, out) == (True, "")
    assert err == (
        "Error: agent 'old' cannot be used: 1.0.119 is older than 2.1.148, the oldest version that is supported; update it with "
        "`npm install -g @anthropic-ai/claude-code`\n"
    )
    assert not (tmp_path / "started").exists()


async def test_spinner_is_written_to_a_terminal(play: Callable[..., PorticoCommand], tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        command = play({"write_file": {"path": "begun", "text": "x"}}, {"delay": 0.4}, {"text": "word"})
        process = await command.start(stderr=slave)
        os.close(slave)
        terminal = b""
        while b"waiting for the agent" not in terminal:
            terminal += await asyncio.to_thread(os.read, master, 4096)
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        os.close(master)
    assert (process.returncode, out) == (0, b"word\n")
    assert b"word" not in terminal
