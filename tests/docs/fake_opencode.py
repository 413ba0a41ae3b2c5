"""A replacement for the opencode CLI (1.18.33) with its arguments and JSON events. Sessions are files in its
folder of the home folder.

Prompts: `sleep` hangs, `crash` kills the process, `fail` is an error of the model, `call TOOL` a tool call that writes a file
named like the tool. Any other prompt is answered with all prompts of the session so far.
"""

import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

SESSIONS = Path(os.environ["HOME"]) / ".local/share/opencode/fake-sessions"


def main(arguments: list[str]) -> int:
    SESSIONS.mkdir(parents=True, exist_ok=True)
    if arguments == ["--version"]:
        write("1.18.33")
    elif arguments == ["session", "list", "--format", "json"]:
        write(json.dumps([{"id": path.stem} for path in SESSIONS.iterdir()], indent=2))
    elif arguments[:3] == ["run", "--format", "json"]:
        return run(dict(zip(arguments[3::2], arguments[4::2], strict=True)))
    else:
        sys.exit(f"unknown arguments {arguments}")
    return 0


def run(options: dict[str, str]) -> int:
    session = options.get("--session") or f"ses_{uuid.uuid4().hex}"
    stored = SESSIONS / f"{session}.json"
    if "--session" in options and not stored.exists():
        sys.stderr.write("Error: Session not found\n")
        return 1
    prompt = sys.stdin.read()
    prompts = [*(json.loads(stored.read_text()) if stored.exists() else []), prompt]
    stored.write_text(json.dumps(prompts))
    event(session, "step_start")
    word, _, tool = prompt.partition(" ")
    if word == "sleep":
        time.sleep(600)
    if word == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "fail":
        error = {"name": "APIError", "data": {"message": "overloaded"}}
        write(json.dumps({"type": "error", "sessionID": session, "error": error}))
        return 1
    if word == "call":
        call(session, tool)
    event(session, "text", text=f"{options.get('--model', 'default')}: {' | '.join(prompts)}")
    event(session, "step_finish", reason="stop", tokens={"input": 100, "output": 42, "cache": {"write": 0, "read": 7}})
    return 0


def call(session: str, tool: str) -> None:
    permission = json.loads(os.environ.get("OPENCODE_PERMISSION", "{}"))
    state = {"input": {"path": tool}}
    if permission.get(tool, permission.get("*", "allow")) == "allow":
        Path(tool).write_text("ran")
        state |= {"status": "completed", "output": "done\n"}
    else:
        state |= {"status": "error", "error": f"Model tried to call unavailable tool {tool!r}."}
    event(session, "tool_use", tool=tool, callID=f"call_{uuid.uuid4().hex}", state=state)


def event(session: str, kind: str, **part: object) -> None:
    write(json.dumps({"type": kind, "timestamp": 1795334777352, "sessionID": session, "part": part}))


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


sys.exit(main(sys.argv[1:]))
