"""An agent for the Agent Client Protocol that needs no package: it reads and writes JSON-RPC lines, and starts in 30 ms.

`python plain_acp_agent.py FOLDER`. Importing the official package takes a second, for each of the processes that a conformance
check starts. FOLDER has a file for each session, so that another process can resume it.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any


def respond(sessions: Path, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None if its session does not exist."""
    session = params.get("sessionId", "")
    if session and not (sessions / session).exists():
        return None
    if method == "initialize":
        capabilities = {"loadSession": False, "sessionCapabilities": {"close": {}, "resume": {}}}
        info = {"name": "plain", "title": "Plain", "version": "1.2.3"}
        return {"protocolVersion": 1, "agentInfo": info, "agentCapabilities": capabilities, "authMethods": []}
    if method == "session/new":
        created = uuid.uuid4().hex
        (sessions / created).touch()
        return {"sessionId": created}
    if method == "session/prompt":
        text = "".join(block.get("text", "") for block in params["prompt"])
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        send(method="session/update", params={"sessionId": session, "update": update})
        return {"stopReason": "end_turn"}
    return {}


def send(**message: Any) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main(sessions: Path) -> None:
    """Respond to each request, until standard input is closed."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            result = respond(sessions, request["method"], request.get("params", {}))
            missing = {"code": -32002, "message": "Resource not found"}
            send(id=request["id"], **({"error": missing} if result is None else {"result": result}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
