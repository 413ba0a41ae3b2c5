"""clerk, a made-up CLI that stays for many prompts. Its sessions are files in the home folder.

Arguments: `--resume=ID`, `--history=FILE`, and a `--allow=TOOL` or `--ask=TOOL` for each tool that it may use. It writes and
reads one JSON object a line:

    {"type": "ready", "session": ID}                  it takes prompts; "no session" instead, if there is none to resume
    {"type": "prompt", "text": TEXT}                  (read) begins a run
    {"type": "text", "text": TEXT}                    a part of the answer
    {"type": "call", "id": ID, "tool": TOOL, "input": {…}}
    {"type": "ask", "ids": [ID, …]}                   the calls that wait for a decision
    {"type": "decision", "id": ID, "allow": BOOL, "reason": TEXT}   (read)
    {"type": "result", "id": ID, "text": TEXT, "failed": BOOL}
    {"type": "stop"}                                  (read) ends the run
    {"type": "done", "how": "end" | "stopped" | "failed", "text": TEXT}

Prompts: `sleep` waits for a stop, `fail` fails, `use TOOL…` calls tools, each of which writes a file with its name. Any other
prompt is answered with all prompts of the session so far.
"""

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

SESSIONS = Path(os.environ["HOME"]) / "fake-clerk"


class Stopped(Exception):
    """The run is stopped."""


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        sys.stdout.write("clerk 1.4.0\n")
        return 0
    options = [argument.removeprefix("--").split("=", 1) for argument in arguments]
    tools = {value: name for name, value in options if name in ("allow", "ask")}
    given = dict(options)
    SESSIONS.mkdir(exist_ok=True)
    stored = SESSIONS / f"{given.get('resume') or uuid.uuid4().hex}.json"
    if "resume" in given and not stored.exists():
        write("no session", text=f"there is no session {given['resume']}")
        return 1
    history = json.loads(Path(given["history"]).read_text()) if "history" in given else []
    prompts = json.loads(stored.read_text()) if "resume" in given else [text for role, text in history if role == "user"]
    write("ready", session=stored.stem)
    while (message := read()) is not None:
        if message["type"] == "prompt":
            prompts.append(message["text"])
            stored.write_text(json.dumps(prompts))
            run(prompts, tools)
    return 0


def run(prompts: list[str], tools: dict[str, str]) -> None:
    word, *names = prompts[-1].split() or [""]
    try:
        if word == "fail":
            return write("done", how="failed", text="the model is overloaded")
        if word == "sleep":
            wait("")
        if word == "use":
            use([name for name in names if name in tools], tools)
        write("text", text=" | ".join(prompts))
        write("done", how="end", text="")
    except Stopped:
        write("done", how="stopped", text="")


def use(names: list[str], tools: dict[str, str]) -> None:
    calls = {uuid.uuid4().hex: name for name in names}
    for call_id, name in calls.items():
        write("call", id=call_id, tool=name, input={"file": name})
    asked = [call_id for call_id, name in calls.items() if tools[name] == "ask"]
    if asked:
        write("ask", ids=asked)
    for call_id, name in calls.items():
        decision = wait(call_id) if call_id in asked else {"allow": True}
        if decision["allow"]:
            Path(name).touch()
        text = f"{name} is done" if decision["allow"] else decision["reason"]
        write("result", id=call_id, text=text, failed=not decision["allow"])


DECISIONS: dict[str, Any] = {}


def wait(call_id: str) -> Any:
    """Return the decision on a call. Raises Stopped."""
    while call_id not in DECISIONS:
        message = read()
        if message is None:
            sys.exit(1)
        if message["type"] == "stop":
            raise Stopped
        if message["type"] == "decision":
            DECISIONS[message["id"]] = message
    return DECISIONS.pop(call_id)


def read() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def write(kind: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
