"""Sessions of the real claude are continued when its native file is damaged, or lacks the last prompt."""

from __future__ import annotations

from typing import Any

import psutil

from tests.real.aap_client import create_session, read_until_event
from tests.real.conftest import Home
from tests.real.models import Model
from tests.real.processes import cli_of, wait_for_exit
from tests.support.daemon import RunningGateway

PLAIN = "Hello from the model, this is plain text."
WEATHER = {"type": "tool_use", "toolCallId": "toolu_given_1", "name": "get_weather", "input": {"city": "Oslo", "days": [1, 2]}}
SEED: list[dict[str, Any]] = [
    {"role": "user", "content": "-How is the weather?"},
    {"role": "assistant", "content": [{"type": "text", "text": "I shall look."}, WEATHER]},
    {"role": "tool", "toolCallId": "toolu_given_1", "content": "Rain\n\tand 7 °C"},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "/Really?"},
    {"role": "assistant", "content": "Yes."},
]
NATIVE_SEED = [
    ("user", "-How is the weather?"),
    ("assistant", "I shall look."),
    ("assistant", ("toolu_given_1", "get_weather", {"city": "Oslo", "days": [1, 2]})),
    ("user", ("toolu_given_1", "Rain\n\tand 7 °C")),
    ("assistant", "It rains."),
    ("user", "/Really?"),
    ("assistant", "Yes."),
]


def native_id(cli: psutil.Process) -> tuple[str, str]:
    """The flag and the id of the session in the arguments of the CLI."""
    flag, session = cli.cmdline()[-2:]
    return flag, session


def conversation_of(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """A model request's conversation, block by block."""
    found: list[tuple[str, Any]] = []
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if message["role"] != "system" and not block.get("text", "").startswith("<system-reminder>"):
                found.append((message["role"], _plain(block)))
    return found


def _plain(block: dict[str, Any]) -> Any:
    if block["type"] == "tool_use":
        return block["id"], block["name"], block["input"]
    if block["type"] == "tool_result":
        return block["tool_use_id"], block["content"]
    return block["text"]


async def test_a_folder_in_place_of_the_native_session_is_seeded_with_the_history(home: Home, model: Model) -> None:
    async with home.gateway(limits={"sleep_after": 1.5}) as portico:
        aap = await create_session(portico.client, *SEED, "[[think]] first")
        cli = cli_of(home.path)
        _, session = native_id(cli)
        await wait_for_exit(cli.pid)
        (file,) = home.session_files()
        assert file.stem == session
        file.unlink()
        # The CLI refuses with EISDIR then.
        file.mkdir()
        assert (await aap.send_turn("[[recall]] second")).startswith("I see 4 user texts.")
        # Thinking is not seeded: the gateway does not store the signature of the vendor.
        new = [("user", "[[think]] first"), ("assistant", "The answer is 42."), ("user", "[[recall]] second")]
        assert conversation_of(model.last_request()) == [*NATIVE_SEED, *new]
        flag, fresh = native_id(cli_of(home.path))
        assert flag == "--resume" and fresh != session


async def test_a_cli_killed_before_it_has_stored_the_prompt(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    cli = cli_of(home.path)
    cli.suspend()
    async with aap.open_stream("[[plain]] two") as frames:
        await read_until_event(frames, "turn_start")
        cli.kill()
        name, data = [frame async for frame in frames][-1]
    assert (name, data["stopReason"]) == ("turn_stop", "error")
    history = [message["content"] for message in await aap.history()]
    assert history == ["[[plain]] one", PLAIN, "[[plain]] two", data["x-portico"]["error"]]
    assert await aap.send_turn("[[recall]] three") == "I see 3 user texts. Before this one: [[plain]] one | [[plain]] two"
