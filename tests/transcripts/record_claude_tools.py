"""Records conversations about tools between the real claude and its codec.

python -m tests.transcripts.record_claude_tools [--to FOLDER]

Needs the CLI (make .clis/.installed). Each line of a file in `claude_tools` is one step: `prompt`, `reply` and `interrupt` (calls
of the codec), `in` (a line that it wrote), `out` (a line of the CLI), `settle` (a silence of the CLI, for which the codec waits),
`event` (an event of the codec).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.claude.driver import ClaudeDriver
from drivers.contract.agent import PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.agent_specs import Limits, SessionSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import Awaiting, OutputEvent, SessionEnd
from drivers.runtime.process import Process, Spawner
from tests.model_server.anthropic import model_server
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.clis import BIN

HERE = Path(__file__).parent / "claude_tools"
PROGRAM = BIN / "claude"
LIMITS = Limits(start=60, idle=60, total=120, grace=5)
APP = (ToolSpec("get_weather", "The weather.", {"type": "object"}), ToolSpec("get time", "The time.", {"type": "object"}))
GRANTS = (ToolGrant("Read", True), ToolGrant("Write", True), ToolGrant("Agent", True), ToolGrant("Bash"))

Json = dict[str, Any]
Answers = Sequence[str | Json]


def weather(**given: object) -> ToolUse:
    return ToolUse("mcp__app__get_weather", given)


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "run"})


WRITE = ToolUse("Write", {"file_path": "{arg}/written", "content": "x"})
READ = ToolUse("Read", {"file_path": "{arg}/note.txt"})
SUB = ToolUse("Agent", {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "general-purpose"})


def calls(*blocks: Text | ToolUse) -> Scenario:
    return Scenario((Step(blocks, chunk=5000), text_step("Done.")))


SCENARIOS = {
    "app": calls(Text("Asking. "), weather(location="Tokyo"), ToolUse("mcp__app__get_time", {"zone": "Asia"})),
    "mixed": calls(weather(), ToolUse("mcp__app__get_time", {}), READ, bash("echo made")),
    "serial": calls(bash("touch a && echo 1"), bash("touch b && echo 2"), weather()),
    "behind": calls(bash("touch a && echo 1"), WRITE),
    "unlisted": calls(ToolUse("WebFetch", {"url": "http://x.invalid/", "prompt": "x"}), bash("echo 1")),
    "badinput": calls(ToolUse("Bash", {"nonsense": 1}), bash("echo 1")),
    "inner": calls(bash("touch inner"), weather()),
    "subagent": calls(SUB),
}
WIRES: dict[str, tuple[str, list[Answers]]] = {
    "app": ("app", [["two", "rain"]]),
    "mixed": ("mixed", [["rain", "noon", True]]),
    "serial_denied": ("serial", [[False, True, "rain"]]),
    "behind": ("behind", [[True]]),
    "behind_denied": ("behind", [[True, False]]),
    "unlisted": ("unlisted", [[True]]),
    "badinput": ("badinput", [[False]]),
    "subagent": ("subagent", [[False, "rain"]]),
    "interrupt": ("mixed", []),
}
"""By the name of the file: the scenario of the model, and the replies of the client to the pending calls, a list per stop."""


class Recorder:
    """Records the lines and events between a codec and its CLI."""

    def __init__(self, launch: Launch, process: Process) -> None:
        assert isinstance(launch.codec, ClaudeCodec)
        self.codec, self.process = launch.codec, process
        self.records: list[Json] = []

    def flush(self) -> None:
        for line in bytes(self.codec.outbox).splitlines():
            self.records.append({"in": json.loads(line)})
        self.process.write(self.codec.outbox)
        self.codec.outbox.clear()

    async def until(self, *kinds: type[Any]) -> OutputEvent:
        while True:
            silence = self.codec.debounce_seconds()
            try:
                lines = await asyncio.wait_for(self.process.read_lines(), silence)
            except TimeoutError:
                self.records.append({"settle": True})
                events = self.codec.debounced_events()
                self.records += [{"event": json.loads(event.encode())} for event in events]
                if found := [event for event in events if isinstance(event, kinds)]:
                    return found[0]
                continue
            if not lines:
                raise RuntimeError("the CLI has ended")
            last: list[OutputEvent] = []
            for line in lines:
                self.records.append({"out": json.loads(line)})
                events = self.codec.receive(line)
                self.records += [{"event": json.loads(event.encode())} for event in events]
                last += [event for event in events if isinstance(event, kinds)]
                self.flush()
            if last:
                return last[0]

    def reply(self, call_id: str, answer: str | bool) -> None:
        reply: Reply = (
            ToolReply(call_id, answer)
            if isinstance(answer, str)
            else PermissionReply(call_id, "allow" if answer else "deny", "no")
        )
        self.records.append({"reply": {"id": call_id, "answer": answer}})
        self.codec.reply(reply)
        self.flush()
        self.records += [{"event": json.loads(event.encode())} for event in self.codec.pending]
        self.codec.pending.clear()


async def record(name: str, scenario: str, answers: list[Answers], url: str, base: Path) -> str:
    """The steps of one conversation, without the folders and the port of this machine."""
    home, work = base / name / "user", base / name / "user" / "work"
    work.mkdir(parents=True)
    (work / "note.txt").write_text("a note")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-dummy"}
    env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "0", "LANG": "C.UTF-8"}
    launch = ClaudeDriver().session(SessionSpec(str(PROGRAM), work, env, tools=GRANTS, app_tools=APP))
    command = launch.command
    process = await Spawner().spawn(Command(command.argv, command.cwd, command.env, files=command.files))
    recorder = Recorder(launch, process)
    try:
        recorder.flush()
        while launch.codec.phase == "starting":
            for line in await process.read_lines():
                recorder.records.append({"out": json.loads(line)})
                launch.codec.receive(line)
                recorder.flush()
        prompt_text = f"go [[{scenario}:{work}]]"
        recorder.records.append({"prompt": prompt_text})
        launch.codec.prompt(Prompt(prompt_text))
        recorder.flush()
        event = await recorder.until(Awaiting, SessionEnd)
        for given in answers:
            assert isinstance(event, Awaiting), event
            for call, answer in zip(event.calls, given, strict=False):
                recorder.reply(call.id, answer)
            event = await recorder.until(Awaiting, SessionEnd)
        if isinstance(event, Awaiting):
            recorder.records.append({"interrupt": True})
            launch.codec.interrupt()
            recorder.flush()
            event = await recorder.until(SessionEnd)
        assert isinstance(event, SessionEnd), event
    finally:
        await process.close(2.0)
    text = "".join(json.dumps(_trimmed(found)) + "\n" for found in recorder.records)
    return (
        text.replace(str(home), "/home/user")
        .replace(str(home).replace("/", "-"), "-home-user")
        .replace(url, "http://127.0.0.1:9")
    )


def _trimmed(found: Json) -> Json:
    """Remove the long lists of capabilities from a line of the CLI."""
    out = found.get("out", {})
    if out.get("type") == "control_response" and out["response"]["request_id"] == "init":
        return {"out": {**out, "response": {**out["response"], "response": {}}}}
    if out.get("type") == "system" and out.get("subtype") == "init":
        kept = ("type", "subtype", "session_id", "model", "tools", "mcp_servers", "permissionMode", "claude_code_version")
        return {"out": {key: out[key] for key in kept}}
    return found


async def main(to: Path) -> None:
    """Record all of them into this folder."""
    with tempfile.TemporaryDirectory() as base:
        async with model_server(SCENARIOS) as server:
            for name, (scenario, answers) in WIRES.items():
                text = await record(name, scenario, list(answers), server.url, Path(base))
                (to / f"{name}.wire.jsonl").write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(folder))
