"""The same agent behind the lines of the claude CLI (`--input-format stream-json`), as far as a session without tools needs them.

The lines have the members of recorded ones (2.1.329). Standard library only. It makes no request to any server.
"""

import json
import sys

SESSION = sys.argv[sys.argv.index("--session-id") + 1] if "--session-id" in sys.argv else "11111111-1111-4111-8111-111111111111"
ENDS = {"session_id": SESSION, "parent_tool_use_id": None, "uuid": "22222222-2222-4222-8222-222222222222"}
DELTA = (
    '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"event %d "}},'
    '"session_id":"' + SESSION + '","parent_tool_use_id":null,"uuid":"22222222-2222-4222-8222-%012d","api_message_id":"msg_%d"}\n'
)
USAGE = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
MODEL = "claude-sonnet-5-5"
INITIALIZED = {
    "commands": [],
    "agents": [],
    "models": [{"value": "default", "displayName": "Default", "description": "The default model"}],
    "output_style": "default",
    "available_output_styles": ["default"],
    "account": {"apiKeySource": "ANTHROPIC_API_KEY"},
}
turns = 0


def write(message: dict[str, object]) -> None:
    """Write a line, which stays in the buffer until it is flushed."""
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")


def event(**members: object) -> None:
    """Write a stream event."""
    write({"type": "stream_event", "event": members, **ENDS})


def run_turn(count: int) -> None:
    """Write a turn of `count` text deltas."""
    global turns
    turns += 1
    empty = {"id": f"msg_{turns}", "type": "message", "role": "assistant", "model": MODEL, "stop_reason": None, "usage": USAGE}
    write(
        {
            "type": "system",
            "subtype": "init",
            "cwd": "/",
            "tools": [],
            "mcp_servers": [],
            "model": MODEL,
            "permissionMode": "default",
            "slash_commands": [],
            "apiKeySource": "ANTHROPIC_API_KEY",
            "claude_code_version": "2.1.329",
            "output_style": "default",
            **ENDS,
        }
    )
    event(type="message_start", message={**empty, "content": []})
    event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
    for number in range(count):
        sys.stdout.write(DELTA % (number, number, turns))
        sys.stdout.flush()
    text = "".join(f"event {number} " for number in range(count))
    write({"type": "assistant", "message": {**empty, "content": [{"type": "text", "text": text}]}, **ENDS})
    event(type="content_block_stop", index=0)
    event(type="message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 42})
    event(type="message_stop")
    write(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": turns,
            "result": text,
            "stop_reason": "end_turn",
            "total_cost_usd": 0.0,
            "usage": USAGE,
            "modelUsage": {},
            "permission_denials": [],
            **ENDS,
        }
    )
    sys.stdout.flush()


def main() -> None:
    """Answer control requests and prompts until the end of the input."""
    if "--version" in sys.argv:
        sys.stdout.write("2.1.329 (Claude Code)\n")
        return
    if sys.argv[1:3] == ["auth", "status"]:
        sys.stdout.write('{"loggedIn": true}\n')
        return
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            answer = INITIALIZED if message["request"]["subtype"] == "initialize" else {}
            response = {"subtype": "success", "request_id": message["request_id"], "response": answer}
            write({"type": "control_response", "response": response})
            sys.stdout.flush()
        elif message["type"] == "user":
            content = message["message"]["content"]
            text = content if isinstance(content, str) else content[-1]["text"]
            if "--replay-user-messages" in sys.argv:
                write({**message, "isReplay": True, "session_id": SESSION})
            run_turn(int(text.split()[-1]))


if __name__ == "__main__":
    main()
