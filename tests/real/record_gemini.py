"""Records the transcripts of the gemini CLI again: `python -m tests.real.record_gemini [--to FOLDER]`, after `make test-real`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivers.acp import import_protocol
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.agent_specs import Limits, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.codec import Launch
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, OutputEvent, SessionEnd
from drivers.gemini.driver import GeminiDriver
from drivers.gemini.home import prepare_home, user_folder
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.gemini.recordings import TRANSCRIPTS
from tests.model_server.gemini import model_server
from tests.real.clis import BIN

PROGRAM = BIN / "gemini"
SHELL, READ, WRITE = "run_shell_command", "read_file", "write_file"

TASKS = {
    "task_plain": "hello [[plain]]",
    "task_think": "hello [[think]]",
    "task_fileread": "[[fileread:f.txt]]",
    "task_toolfail": "[[toolfail]]",
    "task_badtool": "[[badtool]]",
    "task_e400": "[[e400]]",
    "task_e401": "[[e401]]",
    "task_cut": "[[cut]]",
    "task_maxtok": "[[maxtok]]",
    "task_refusal": "[[refusal]]",
}
SESSIONS: dict[str, tuple[dict[str, bool], Sequence[str]]] = {
    "plain": ({}, ["hello [[plain]]", "and [[think]]", "[[recall]]"]),
    "shell": ({SHELL: True}, ["[[shell]]", "[[run:echo err >&2; exit 3]]"]),
    "permission": ({SHELL: False}, ["[[run:touch made.txt]]", "deny", "[[run:touch made.txt]]", "grant"]),
    "unlisted": ({READ: True}, ["[[run:touch made.txt]]"]),
    "read_write": ({READ: True, WRITE: False}, ["[[fileread:f.txt]]", "[[toolfail]]", "[[filewrite:out.txt]]", "grant"]),
    "parallel": ({SHELL: False, READ: True}, ["[[parallel:f.txt]]", "grant", "deny"]),
    "badtool": ({SHELL: True}, ["[[badtool]]"]),
    "errors": ({}, ["[[e400]]", "[[e401]]", "[[malformed]]", "[[cut]]", "after [[plain]]"]),
    "ends": ({}, ["[[maxtok]]", "[[refusal]]"]),
    "interrupt": ({}, ["interrupt [[slowcount]]", "after [[plain]]"]),
    "interrupt_tool": ({SHELL: True}, ["interrupt [[longshell]]", "after [[plain]]"]),
    "interrupt_permission": ({SHELL: False}, ["[[run:ls]]", "stop", "after [[plain]]"]),
}


class Recorder:
    """One transcript of a CLI whose home and work are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lines: list[bytes] = []

    def action(self, what: str) -> None:
        self.lines.append(f"#{what}".encode())

    def listen(self, launch: Launch) -> Launch:
        receive_lines = launch.codec.receive_lines

        # Not `receive`: of lines that were read at once, it is not called with those that only repeat the one before.
        def recorded_receive(lines: Sequence[bytes]) -> list[OutputEvent]:
            self.lines += lines
            return receive_lines(lines)

        launch.codec.receive_lines = recorded_receive  # type: ignore[method-assign]
        return launch

    def write(self, path: Path) -> None:
        text = b"\n".join(self.lines) + b"\n"
        text = text.replace(str(self._folder).encode(), b"/home/user")
        text = re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:9", text)
        path.write_bytes(text)


async def until_stop(agent: CliAgent) -> OutputEvent:
    while True:
        for event in await asyncio.wait_for(agent.receive(), 120):
            if isinstance(event, Awaiting | SessionEnd):
                return event


async def interrupted(agent: CliAgent, seen: str) -> None:
    """Interrupt the run one second after an event of this kind, so that its command has started."""
    while not any(event.kind == seen for event in await agent.receive()):
        pass
    await asyncio.sleep(1.0)
    await agent.interrupt()
    await until_stop(agent)


async def record_task(path: Path, task: str, folder: Path, env: dict[str, str]) -> None:
    spec = TaskSpec(str(PROGRAM), folder / "work", env, (), {}, folder / path.stem, task=task)
    await asyncio.to_thread(prepare_home, user_folder(spec), folder / path.stem, link_all=True)
    recorder = Recorder(folder)
    recorder.action("task")
    agent = await CliAgent.start(recorder.listen(GeminiDriver().task(spec)), Spawner(), Limits())
    end = await until_stop(agent)
    recorder.action(f"exit {end.exit_code}")  # type: ignore[union-attr]
    recorder.write(path)


async def record_session(path: Path, resume: str | None, folder: Path, env: dict[str, str], **given: Any) -> str:
    tools, actions = given["tools"], given["actions"]
    grants = tuple(ToolGrant(*grant) for grant in tools.items())
    spec = SessionSpec(str(PROGRAM), folder / "work", env, (), {}, folder / "session", tools=grants, seed=SessionSeed(resume))
    await asyncio.to_thread(prepare_home, user_folder(spec), folder / "session", link_all=False)
    recorder = Recorder(folder)
    recorder.action("session " + json.dumps({"tools": [[g.name, g.trust] for g in grants], "resume": resume}))
    agent = await CliAgent.start(recorder.listen(GeminiDriver().session(spec)), Spawner(), Limits())
    stopped: OutputEvent | None = None
    for action in actions:
        if action in ("grant", "deny"):
            recorder.action(action)
            await agent.reply(PermissionReply(stopped.calls[0].id, "allow" if action == "grant" else "deny"))  # type: ignore[union-attr]
        elif action == "stop":
            recorder.action("interrupt")
            await agent.interrupt()
        else:
            recorder.action(f"prompt {action}")
            await agent.prompt(Prompt(action))
            if action.startswith("interrupt"):
                await asyncio.wait_for(interrupted(agent, "tool_call" if "shell" in action else "agent_token"), 60)
                _mark_interrupt(recorder)
                continue
        stopped = await until_stop(agent)
    await agent.close()
    recorder.write(path)
    return agent.native_id or ""


def _mark_interrupt(recorder: Recorder) -> None:
    """Insert the action before the response to the prompt. Its position among the last lines does not change the events."""
    recorder.lines.insert(len(recorder.lines) - 1, b"#interrupt")


async def main(to: Path) -> None:
    """Record all of them into this folder."""
    await import_protocol()
    counting = {"slowcount": _slow_count()}
    async with model_server(counting) as server:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name in ("work", "home"):
                (folder / name).mkdir()
            (folder / "work" / "f.txt").write_text("content")
            env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "LANG": "C.UTF-8", "TERM": "dumb"}
            env |= {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": server.url}
            for name, task in TASKS.items():
                await record_task(to / f"{name}.jsonl", task, folder, env)
            native_id = ""
            for name, (tools, actions) in SESSIONS.items():
                found = await record_session(to / f"{name}.jsonl", None, folder, env, tools=tools, actions=actions)
                native_id = native_id or found
            await record_session(to / "resume.jsonl", native_id, folder, env, tools={}, actions=["again [[recall]]"])


def _slow_count() -> Any:
    from tests.model_server.scenarios import Scenario, Step, Text

    # Different words: the CLI stops a repeated word as a loop.
    return Scenario((replace(Step((Text(" ".join(map(str, range(2000)))),), chunk=8), delay=0.05),))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=TRANSCRIPTS / "gemini", metavar="FOLDER")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(folder))
