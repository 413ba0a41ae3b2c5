"""Golden messages: all messages that a client receives in one conversation, in `golden/*.jsonl`.

`python -m tests.gateway.protocols.acp.test_golden` writes the files again; review the difference before you commit it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.protocols.acp.requirements import load
from tests.support.acp_client import Client, config, connected, prompt
from tests.support.daemon import run_gateway

GOLDEN = Path(__file__).parent / "golden"
Conversation = Callable[[Client], Awaitable[None]]


async def work(client: Client) -> None:
    """A plan, an edit and a command, both allowed; then the same session is loaded again."""
    client.choose = lambda params: "allow_once" if params["toolCall"]["kind"] == "edit" else "allow_always"
    session = await client.new()
    await client.prompt(session, "do the work")
    await client.request("session/load", load(session))


async def refusal(client: Client) -> None:
    """Both calls are rejected, and a prompt is cancelled."""
    client.choose = lambda params: "reject_once"
    session = await client.new()
    await client.prompt(session, "do the work")
    slow = await client.begin("session/prompt", prompt(session, "slow"))
    await client.until(lambda _: client.text(session).endswith("One moment."))
    await client.notify("session/cancel", {"sessionId": session})
    await slow


async def settings(client: Client) -> None:
    """Modes and options."""
    session = await client.new()
    await client.request("session/set_mode", {"sessionId": session, "modeId": "edit"})
    await client.request("session/set_config_option", {"sessionId": session, "configId": "permissions", "value": "auto"})
    await client.request("session/resume", load(session))


CONVERSATIONS: dict[str, Conversation] = {"work": work, "refusal": refusal, "settings": settings}


async def messages(conversation: Conversation, folder: Path) -> list[str]:
    """The messages that the client receives, with placeholders for values that differ between runs."""
    async with run_gateway(config(folder)) as running, connected(running.gateway) as client:
        await conversation(client)
    return [_normalized(message, folder) for message in client.received]


def _normalized(message: dict[str, Any], folder: Path) -> str:
    line = json.dumps(message, ensure_ascii=False).replace(str(folder), "/folder")
    line = re.sub(r"sess_[0-9a-f]{32}", "SESSION", line)
    line = re.sub(r'"messageId": "[0-9a-f]{8}-(\d+)"', r'"messageId": "m-\1"', line)
    return re.sub(r'"updatedAt": "[^"]+"', '"updatedAt": "TIME"', line)


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_golden_messages(tmp_path: Path, name: str) -> None:
    found = await messages(CONVERSATIONS[name], tmp_path)
    assert found == (GOLDEN / f"{name}.jsonl").read_text().splitlines()


def write() -> None:
    """Write the golden files again."""
    for name, conversation in CONVERSATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(messages(conversation, Path(folder)))
        (GOLDEN / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in found))
        sys.stdout.write(f"{name}: {len(found)} messages\n")


if __name__ == "__main__":
    write()
