"""Records the output of the pinned codex CLI into tests/transcripts/codex (see the README there).

python -m tests.real.codex.record [--to FOLDER] [NAME...]

The file of a session also holds the actions on the codec between the lines, as objects with the key `portico`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.codex.driver import CodexDriver
from drivers.contract.agent import PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.agent_specs import SessionSpec, TaskSpec
from drivers.contract.capabilities import SupportsDebounce
from drivers.contract.codec import Codec, Launch
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import AgentToken, Awaiting, OutputEvent, ToolCall
from drivers.runtime.process import Process, Spawner
from tests.model_server.openai import model_server
from tests.real.clis import BIN
from tests.real.codex.conftest import CONFIG, DUMMY_KEY

FOLDER = Path(__file__).parents[2] / "transcripts" / "codex"
WEATHER = ToolSpec("get_weather", "The weather of a place.", {"type": "object", "properties": {"location": {"type": "string"}}})
SILENCE = 60.0


@dataclass(frozen=True)
class Session:
    """The prompts of a session, its tools (name to trust) and the replies to its calls. `stop` interrupts the run."""

    prompts: tuple[str, ...]
    own: dict[str, bool] = field(default_factory=dict)
    app: bool = False
    denied: str | None = None
    stop: type[OutputEvent] | None = None
    options: dict[str, str] = field(default_factory=dict)


ASK = {"shell": False, "apply_patch": False}
TRUST = {"shell": True, "apply_patch": True}
TASKS = {
    "exec_plain": "[[plain]]",
    "exec_think": "[[think]]",
    "exec_shell": "[[shell]]",
    "exec_parallel": "[[parallel]]",
    "exec_toolfail": "[[toolfail]]",
    "exec_patch": "[[patch:out.txt]]",
    "exec_e400": "[[e400]]",
    "exec_e401": "[[e401]]",
    "exec_maxtok": "[[maxtok]]",
    "exec_cutonce": "[[cutonce]]",
}
SESSIONS = {
    "three_turns": Session(("[[plain]]", "[[think]]", "[[recall]]")),
    "usage": Session(("[[usage]]", "[[usage]]")),
    "trusted": Session(("[[shell]]", "[[toolfail]]", "[[patch:out.txt]]"), TRUST),
    "parallel": Session(("[[parallel]]",), TRUST),
    "granted": Session(("[[run:ls]]", "[[runoutside:true]]", "[[patch:out.txt]]"), ASK),
    "granted_parallel": Session(("[[parallel]]",), ASK),
    "denied": Session(("[[run:ls]]", "[[patch:out.txt]]"), ASK, denied="too risky"),
    "not_listed": Session(("[[run:ls]]", "[[patch:out.txt]]")),
    "weather": Session(("[[weather]]", "[[weathers]]"), app=True),
    "mixed": Session(("[[mixed:out.txt]]",), {"shell": True, "apply_patch": False}, app=True),
    "code": Session(("[[code]]",), {"shell": False}, options={"model": "gpt-6.1-sol"}),
    # Recorded again until one of the first two commands, and of the scripts, has no item of its own.
    "stopped": Session(("[[run:touch /etc/x]]", "[[run:touch /etc/x]]", "[[shell]]"), TRUST),
    "code_stopped": Session(("[[coderun:touch /etc/x]]",) * 2, TRUST, options={"model": "gpt-6.1-sol"}),
    "background": Session(("[[bgshell]]", "[[plain]]"), TRUST),
    "interrupt": Session(("[[slowtext]]", "[[plain]]"), stop=AgentToken),
    "interrupt_tool": Session(("[[longshell]]", "[[plain]]"), TRUST, stop=ToolCall),
    "interrupt_waiting": Session(("[[weather]]", "[[plain]]"), app=True, stop=Awaiting),
    "e400": Session(("[[e400]]", "[[plain]]")),
    "e401": Session(("[[e401]]", "[[plain]]")),
    "e500": Session(("[[e500]]", "[[plain]]")),
    "maxtok": Session(("[[maxtok]]", "[[plain]]")),
    "refusal": Session(("[[refusal]]", "[[plain]]")),
    "cutonce": Session(("[[cutonce]]",)),
}


class Recorder:
    """Feeds the output of one process to its codec and records both."""

    def __init__(self, process: Process, codec: Codec, session: Session | None) -> None:
        self.process, self.codec, self.session = process, codec, session
        self.lines: list[bytes] = []
        self._prompts = list(session.prompts) if session else []
        self._stopped = False

    async def run(self) -> None:
        """Run until all prompts are answered or the process has ended."""
        self._flush()
        while True:
            if self.codec.phase == "ready" and self.session:
                if not self._prompts:
                    return
                self._record_action(prompt=self._prompts[0])
                self.codec.prompt(Prompt(self._prompts.pop(0)))
            self._flush()
            debouncing = self.codec if isinstance(self.codec, SupportsDebounce) else None
            silence = debouncing.debounce_seconds() if debouncing is not None else None
            try:
                lines = await asyncio.wait_for(self.process.read_lines(), SILENCE if silence is None else silence)
            except TimeoutError:
                if debouncing is None or silence is None:
                    raise
                self._record_action(settle=True)
                self._act(debouncing.debounced_events())
                continue
            if not lines:
                return
            for line in lines:
                self.lines.append(line)
                self._act(self.codec.receive(line))

    def _act(self, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if self.session and self.session.stop and isinstance(event, self.session.stop) and not self._stopped:
                self._stopped = True
                self._record_action(interrupt=True)
                self.codec.interrupt()
            elif isinstance(event, Awaiting):
                for call in event.calls:
                    self._answer(call.id, call.wants)

    def _answer(self, call_id: str, wants: str) -> None:
        assert self.session is not None
        reply: Reply = ToolReply(call_id, "18 degrees")
        if wants == "permission":
            reply = PermissionReply(call_id, "allow" if self.session.denied is None else "deny", self.session.denied)
            self._record_action(permission=call_id, granted=reply.allowed, reason=reply.reason)
        else:
            self._record_action(result=call_id, content="18 degrees")
        self.codec.reply(reply)

    def _record_action(self, **what: Any) -> None:
        self.lines.append(json.dumps({"portico": what}).encode())

    def _flush(self) -> None:
        self.process.write(self.codec.outbox)
        self.codec.outbox.clear()


async def record(name: str, url: str) -> bytes:
    """The output of the CLI with an empty home folder, without paths and ports of this machine."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        (home / ".codex").mkdir()
        (home / "work").mkdir()
        (home / ".codex" / "config.toml").write_text(CONFIG.format(url=url))
        env = {"HOME": folder, "CODEX_HOME": f"{folder}/.codex", "PATH": os.environ["PATH"], "SCRIPTED_KEY": DUMMY_KEY}
        program, session = str(BIN / "codex"), SESSIONS.get(name)
        launch: Launch
        if session is None:
            task = TaskSpec(program, home / "work", env, options={"sandbox": "workspace-write"}, task=TASKS[name])
            launch = CodexDriver().task(task)
        else:
            tools = tuple(ToolGrant(tool, trust) for tool, trust in session.own.items())
            app = (WEATHER,) if session.app else ()
            launch = CodexDriver().session(
                SessionSpec(program, home / "work", env, options=session.options, tools=tools, app_tools=app)
            )
        process = await Spawner().spawn(launch.command)
        recorder = Recorder(process, launch.codec, session)
        try:
            await recorder.run()
        finally:
            await process.close(0.0)
        head = [] if session is None else [json.dumps({"portico": {"own": session.own, "app": session.app}}).encode()]
        return neutral(b"\n".join([*head, *map(shortened, recorder.lines)]) + b"\n", folder)


def shortened(line: bytes) -> bytes:
    """A line without the text of the CLI's own instructions, of 15 KB and more, which the model's API has as messages."""
    if not line.startswith(b'{"method":"rawResponseItem/completed"'):
        return line
    message = json.loads(line)
    for part in message["params"]["item"].get("content") or []:
        part["text"] = part.get("text", "")[:80]
    return json.dumps(message, separators=(",", ":")).encode()


def neutral(text: bytes, home: str) -> bytes:
    """Replace the home folder and the ports of this machine."""
    text = text.replace(home.encode(), b"/home/user")
    return re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:9", text)


async def main(names: Sequence[str], folder: Path) -> None:
    for name in names or [*TASKS, *SESSIONS]:
        async with model_server() as server:
            recorded = await record(name, server.url)
        assert len(recorded) < 60_000, f"{name} has {len(recorded)} bytes"
        (folder / f"{name}.jsonl").write_bytes(recorded)
        sys.stdout.write(f"{name}: {len(recorded)} bytes\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.names, given.to))
