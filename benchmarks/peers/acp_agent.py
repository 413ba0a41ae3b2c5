"""The agent that all sides run: speaks the Agent Client Protocol over stdio, and emits as many updates as its prompt requests.

Standard library only, and no module of the benchmark, so that it starts fast. Each update is a write of its own, as those of real
agents are.
"""

import json
import sys

UPDATE = (
    '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":'
    '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"event %d "}}}}\n'
)


def main() -> None:
    """Answer requests until the end of the input."""
    sessions = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
        elif method == "session/new":
            sessions += 1
            result = {"sessionId": f"agent-session-{sessions}"}
        elif method == "session/prompt":
            for number in range(int(params["prompt"][-1]["text"])):
                sys.stdout.write(UPDATE % (params["sessionId"], number))
                sys.stdout.flush()
            result = {"stopReason": "end_turn"}
        else:
            result = {}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
