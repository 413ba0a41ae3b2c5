"""The program behind the echo driver: says back what it is told. Standard library only, so that it starts in 10 ms."""

import json
import sys


def say(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content if isinstance(block, dict)) if isinstance(content, list) else ""


def task() -> None:
    say(kind="agent_token", text=sys.stdin.buffer.read().decode("utf-8", "replace"))


def session() -> None:
    say(kind="native_session")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["type"] == "prompt":
            say(kind="agent_token", text=text_of(request["content"]))
            say(kind="session_end", exit_code=0)


if __name__ == "__main__":
    task() if "--task" in sys.argv else session()
