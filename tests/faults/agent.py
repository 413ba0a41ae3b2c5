"""The faulty agent: it logs every prompt that it is given and does what the prompt lists. Standard library only; `-I -S`.

Its lines are those of drivers/codecs/output_event_lines.py. A prompt is JSON: `{"id": "p1", "do": [["text", 3, 0.01], …]}`.
Each text that it writes names the prompt and its own number: `<p1:0>`.

It appends to two files of its folder (`--folder`): `prompts.log`, a JSON object for each prompt, message and reply that it is
given, and `processes.log`, a line `PID KIND` for each process that it starts, written by that process, and for itself.

| step | what it does |
|---|---|
| `["text", count, seconds]` | so many texts with that time in between |
| `["flood", count, bytes]` | so many texts of that size as fast as possible |
| `["end_message"]` | the message is complete |
| `["ask"]` | a tool call that waits for permission |
| `["spawn", kind]` | starts a process that sleeps; KINDS has the kinds |
| `["orphans", count]` | starts so many processes without a parent, which exit at once |
| `["sleep", seconds]` | sends nothing for so long |
| `["hang"]` | does nothing until it is ended |
| `["deaf"]` | does not read its standard input any more, and does nothing |
| `["exit", code]` | ends its process |
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLEEP = "86399"
"""Seconds that a started process sleeps; the campaigns recognize the processes by it."""
KINDS = ("plain", "clean", "setsid", "setsid-clean", "double-fork", "orphan", "ignores-term")
READ_SIZE = 1024 * 1024


class Interrupted(Exception):
    """The gateway has interrupted the turn."""


class Agent:
    """One process. `flags` are the arguments: `--ignore-interrupt`, `--ignore-eof`, `--ignore-term`, `--task`."""

    def __init__(self, flags: "list[str]", folder: str) -> None:
        self.flags, self.folder = flags, folder
        self.rest = b""
        self.requests: list[dict[str, Any]] = []
        self.eof = False
        self.prompt = ""
        self.texts = self.calls = 0

    # -- files --------------------------------------------------------------------------------------------------------

    def append(self, name: str, line: str) -> None:
        fd = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, line.encode() + b"\n")
        os.close(fd)

    def log_request(self, request: "dict[str, Any]") -> None:
        given = _prompt(request)["id"] if request["type"] in ("prompt", "steer") else request.get("id", "")
        entry = {"pid": os.getpid(), "type": request["type"], "id": given, "go_on": bool(request.get("go_on"))}
        self.append("prompts.log", json.dumps(entry))

    # -- input and output ---------------------------------------------------------------------------------------------

    def emit(self, kind: str, **fields: object) -> None:
        data = memoryview(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        while data:
            data = data[os.write(1, data) :]

    def write_text(self, padding: int = 0) -> None:
        self.emit("agent_token", text=f"<{self.prompt}:{self.texts}>" + "." * padding)
        self.texts += 1

    def read(self, seconds: "float | None") -> None:
        """Read what comes within this time."""
        if self.eof:
            time.sleep(86399 if seconds is None else seconds)
            return
        if not select.select([0], [], [], seconds)[0]:
            return
        chunk = os.read(0, READ_SIZE)
        if not chunk:
            self.eof = True
            if "--ignore-eof" not in self.flags and "--task" not in self.flags:
                sys.exit(0)
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.requests += [json.loads(line) for line in lines]

    def wait(self, seconds: "float | None") -> None:
        """Wait that long; None: for ever. Raises Interrupted."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            self.take_interrupt()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self.read(left)

    def take_interrupt(self) -> None:
        for request in [one for one in self.requests if one["type"] in ("interrupt", "steer")]:
            self.requests.remove(request)
            if request["type"] == "steer":
                self.log_request(request)
            elif "--ignore-interrupt" not in self.flags:
                raise Interrupted

    # -- turns --------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        self.next_request()
        self.emit("native_session")
        while True:
            request = self.next_request()
            if request["type"] in ("prompt", "steer"):
                self.log_request(request)
            if request["type"] == "prompt":
                self.play(_prompt(request))
                if "--task" in self.flags:
                    return

    def next_request(self) -> "dict[str, Any]":
        while not self.requests:
            self.read(None)
        return self.requests.pop(0)

    def play(self, prompt: "dict[str, Any]") -> None:
        self.prompt, self.texts, self.calls = prompt["id"], 0, 0
        reason, code = "end_turn", 0
        self.requests = [one for one in self.requests if one["type"] != "interrupt"]
        try:
            for name, *values in prompt["do"]:
                getattr(self, "do_" + name)(*values)
        except Interrupted:
            reason, code = "cancelled", 130
        self.emit("session_end", exit_code=code, stop_reason=reason)

    def do_text(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.write_text()
            self.wait(seconds)

    def do_flood(self, count: int, size: int) -> None:
        for _ in range(count):
            self.write_text(size)

    def do_end_message(self) -> None:
        self.emit("message_end")

    def do_ask(self) -> None:
        call = f"{self.prompt}-call-{self.calls}"
        self.calls += 1
        self.emit("tool_call", id=call, name="act", status="started", input={})
        self.emit("awaiting", calls=[{"id": call, "wants": "permission"}])
        while not (replies := [one for one in self.requests if one["type"] == "reply" and one["id"] == call]):
            self.take_interrupt()
            self.read(None)
        self.requests.remove(replies[0])
        self.log_request(replies[0])
        self.emit("tool_result", tool_call_id=call, output="done", is_error=False)
        self.emit("tool_call", id=call, name="act", status="completed")

    def do_spawn(self, kind: str) -> None:
        if kind != "none":
            before = self.spawned(kind)
            spawn(kind, os.path.join(self.folder, "processes.log"))
            while self.spawned(kind) == before:
                time.sleep(0.01)
        self.write_text()

    def spawned(self, kind: str) -> int:
        with open(os.path.join(self.folder, "processes.log")) as file:
            return sum(line.split()[1] == kind for line in file if line.endswith("\n"))

    def do_orphans(self, count: int) -> None:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                os.setsid()
                if os.fork() == 0:
                    # Its parent has exited by then.
                    time.sleep(0.1)
                os._exit(0)
            os.waitpid(child, 0)

    def do_sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def do_hang(self) -> None:
        self.wait(None)

    def do_deaf(self) -> None:
        while True:
            time.sleep(86399)

    def do_exit(self, code: int) -> None:
        os._exit(code)


def _prompt(request: "dict[str, Any]") -> "dict[str, Any]":
    if request.get("go_on"):
        return {"id": "go-on", "do": [["text", 1, 0]]}
    content = request["content"]
    text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
    found: dict[str, Any] = json.loads(text)
    return found


def spawn(kind: str, log: str) -> None:
    """Start a process of this kind, which writes its id and kind to the log and sleeps."""
    trap = "trap '' TERM; " if kind == "ignores-term" else ""
    sleeper = ["/bin/sh", "-c", f'{trap}echo $$ {kind} >> "$0"; exec sleep {SLEEP}', log]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if kind in ("clean", "setsid-clean", "orphan"):
        how["env"] = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    if kind in ("setsid", "setsid-clean"):
        how["start_new_session"] = True
    if kind not in ("double-fork", "orphan"):
        subprocess.Popen(sleeper, **how)
        return
    # The child in between starts the sleeper in a session of its own and ends, so that the sleeper has no parent here.
    child = os.fork()
    if child == 0:
        os.setsid()
        subprocess.Popen(sleeper, **how)
        os._exit(0)
    os.waitpid(child, 0)


def main(argv: "list[str]") -> None:
    """Arguments: `--folder PATH [--start-delay SECONDS] [flags]`."""
    agent = Agent(argv, argv[argv.index("--folder") + 1])
    agent.append("processes.log", f"{os.getpid()} agent")
    if "--ignore-term" in argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--start-delay" in argv:
        time.sleep(float(argv[argv.index("--start-delay") + 1]))
    agent.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
