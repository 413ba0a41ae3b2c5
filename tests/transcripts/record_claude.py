"""Records the output of the real claude: those files of tests/transcripts/claude whose settings are in the table below.

python -m tests.transcripts.record_claude [--to FOLDER] [NAME...]

Needs the CLI (make .clis/.installed). The README there has the commands, and the files that were recorded by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model_server.anthropic import model_server
from tests.real.clis import BIN

FOLDER = Path(__file__).parent / "claude"
PROGRAM = BIN / "claude"
SECONDS = 60.0
LINE_BYTES = 1 << 22
STREAM = ("--output-format", "stream-json", "--verbose", "--include-partial-messages", "--model", "sonnet")
SESSION = ("-p", "--input-format", "stream-json", *STREAM, "--permission-prompt-tool", "stdio", "--strict-mcp-config")
ENVIRONMENT = {
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "NO_COLOR": "1",
    "ANTHROPIC_API_KEY": "sk-dummy",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",
}

Json = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """The prompts of one process, its tools, and whether permission requests are granted. `once` is the one-shot mode."""

    prompts: tuple[str, ...]
    tools: str = ""
    granted: bool = True
    once: bool = False


RECORDINGS = {
    "plain": Recording(("x [[plain]]",)),
    "think": Recording(("x [[think]]",)),
    "three_turns": Recording(("first [[plain]]", "second [[think]]", "third [[recall]]")),
    "bash": Recording(("x [[bash]]",), "Bash"),
    "toolfail": Recording(("x [[toolfail]]",), "Bash"),
    "badtool": Recording(("x [[badtool]]",), "Bash"),
    "parallel": Recording(("x [[parallel:{work}/hello.txt]]",), "Bash,Read"),
    "permission_denied": Recording(("x [[run:touch zz]]",), "Bash", granted=False),
    "e401": Recording(("bad [[e401]]", "after [[plain]]")),
    "e500": Recording(("bad [[e500]]", "after [[plain]]")),
    "maxtok": Recording(("bad [[maxtok]]", "after [[plain]]")),
    "refusal": Recording(("bad [[refusal]]", "after [[plain]]")),
    "cut": Recording(("x [[cut]]",)),
    "malformed": Recording(("x [[malformed]]",)),
    "oneshot_bash": Recording(("x [[bash]]",), "Bash", once=True),
    "oneshot_e401": Recording(("x [[e401]]",), once=True),
    "oneshot_e500": Recording(("x [[e500]]",), once=True),
}


async def record(recording: Recording, url: str) -> bytes:
    """The output of one process with an empty home folder, without folders and ports of this machine."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        work = Path(base) / "work" / "w"
        await asyncio.to_thread(_prepare, work)
        env = {**ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": base, "CLAUDE_CONFIG_DIR": f"{base}/.claude"}
        arguments = ("--print", *STREAM) if recording.once else SESSION
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, *arguments, "--tools", recording.tools),
            cwd=work,
            env={**env, "ANTHROPIC_BASE_URL": url},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES,
        )
        prompts = [prompt.replace("{work}", str(work)) for prompt in recording.prompts]
        try:
            async with asyncio.timeout(SECONDS):
                output = await (_task(process, prompts[0]) if recording.once else _session(process, prompts, recording.granted))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        return re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:9", output.replace(base.encode(), b"/home/user"))


def _prepare(work: Path) -> None:
    work.mkdir(parents=True)
    (work / "hello.txt").write_text("hello world\n")


async def _task(process: asyncio.subprocess.Process, task: str) -> bytes:
    output, _ = await process.communicate(task.encode())
    return output


async def _session(process: asyncio.subprocess.Process, prompts: Sequence[str], granted: bool) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    request = {"subtype": "initialize", "hooks": None}
    _write(process.stdin, {"type": "control_request", "request_id": "init", "request": request})
    left = list(prompts)
    output = b""
    while line := await process.stdout.readline():
        output += line
        native = json.loads(line)
        if native["type"] == "control_request":
            _write(process.stdin, _answer(native, granted))
        elif native["type"] == "result" or native.get("response", {}).get("request_id") == "init":
            if not left:
                break
            _write(process.stdin, {"type": "user", "message": {"role": "user", "content": left.pop(0)}})
    return output


def _answer(native: Json, granted: bool) -> Json:
    allow = {"behavior": "allow", "updatedInput": native["request"].get("input", {})}
    answer = allow if granted else {"behavior": "deny", "message": "User declined"}
    response = {"subtype": "success", "request_id": native["request_id"], "response": answer}
    return {"type": "control_response", "response": response}


def _write(stdin: asyncio.StreamWriter, value: Json) -> None:
    stdin.write(json.dumps(value).encode() + b"\n")


async def main(names: Sequence[str], folder: Path) -> None:
    """Record these, or all, into this folder."""
    for name in names or RECORDINGS:
        async with model_server() as server:
            recorded = await record(RECORDINGS[name], server.url)
        (folder / f"{name}.jsonl").write_bytes(recorded)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.names, given.to))
