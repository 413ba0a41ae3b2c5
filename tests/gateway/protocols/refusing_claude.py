"""A stand-in for claude with stream-json: hooks refuse "blockme" and stop "stopme", and "noticeme" is warned about.

The lines are those of claude 2.1.332.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

ARGUMENTS = sys.argv[1:]
SESSION = ARGUMENTS[ARGUMENTS.index("--session-id") + 1] if "--session-id" in ARGUMENTS else str(uuid.uuid4())
OUTCOMES = {
    "blockme": {"kind": "blocked_by_hook", "prompt_kept": False, "reason": "Tickets only"},
    "stopme": {"kind": "stopped_by_hook", "prompt_kept": True, "reason": "Closed today"},
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write(**members: Any) -> None:
    say(json.dumps({**members, "session_id": SESSION, "uuid": str(uuid.uuid4())}))


def turn(prompt: str) -> None:
    write(type="system", subtype="init", tools=[], mcp_servers=[], model="fake", permissionMode="default", slash_commands=[])
    if "noticeme" in prompt:
        write(type="system", subtype="informational", level="warning", content="Careful\nThe limit is near.")
    outcome = next((outcome for word, outcome in OUTCOMES.items() if word in prompt), None)
    if outcome is not None:
        content = f"UserPromptSubmit operation blocked by hook:\n{outcome['reason']}\n\nOriginal prompt: {prompt}"
        write(
            type="system", subtype="informational", level="warning", content=content,
            prevent_continuation=True, prompt_submit_outcome=outcome,
        )  # fmt: skip
    else:
        block = {"type": "text", "text": f"You said: {prompt}"}
        write(
            type="assistant",
            parent_tool_use_id=None,
            message={"id": "m", "role": "assistant", "model": "fake", "content": [block]},
        )
    write(type="result", subtype="success", is_error=False, num_turns=int(outcome is None), result="", usage={}, modelUsage={})


def main() -> None:
    if "--version" in ARGUMENTS:
        return say("2.1.332 (Claude Code)")
    if ARGUMENTS[:2] == ["auth", "status"]:
        return say(json.dumps({"loggedIn": True}))
    if "--input-format" not in ARGUMENTS:
        return turn(sys.stdin.read())
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            response = {"subtype": "success", "request_id": message["request_id"], "response": {"commands": [], "models": []}}
            write(type="control_response", response=response)
        elif message["type"] == "user":
            content = message["message"]["content"]
            turn(content if isinstance(content, str) else " ".join(block.get("text", "") for block in content))


main()
