"""The program of the echo driver: repeats each prompt. Standard library only, so that it starts in 10 ms."""

import json
import sys


def emit(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content if isinstance(block, dict)) if isinstance(content, list) else ""


def task() -> None:
    emit(kind="agent_token", text=sys.stdin.buffer.read().decode("utf-8", "replace"))


def session() -> None:
    emit(kind="native_session")
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["type"] == "prompt":
            emit(kind="agent_token", text=text_of(request["content"]))
            emit(kind="session_end", exit_code=0)


if __name__ == "__main__":
    task() if "--task" in sys.argv else session()
