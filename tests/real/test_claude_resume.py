"""Sessions are continued after the end of their process or daemon, or the loss of their native file."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from tests.real.aap_client import create_session, read_until_event, text_of, user
from tests.real.conftest import Home
from tests.real.models import Model
from tests.real.processes import cli_of, wait_for_exit
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until

PLAIN = "Hello from the model, this is plain text."
RECALLED = "I see 2 user texts. Before this one: [[plain]] one"
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


async def test_a_stopped_daemon_resumes_the_native_session(home: Home, model: Model) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
    first = cli_of(home.path)
    flag, session = native_id(first)
    assert flag == "--session-id"
    assert await daemon.stop() == 0
    await wait_for_exit(first.pid)
    await daemon.start()
    async with daemon.client() as client:
        assert await aap.with_client(client).send_turn("[[recall]]") == RECALLED
        assert native_id(cli_of(home.path)) == ("--resume", session)
        assert [message["role"] for message in await aap.with_client(client).history()] == ["user", "assistant"] * 2
    assert len(home.session_files()) == 1


async def test_a_killed_daemon_resumes_the_native_session(home: Home, model: Model) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
    first = cli_of(home.path)
    _, session = native_id(first)
    await daemon.kill()
    await daemon.start()
    await wait_for_exit(first.pid)
    async with daemon.client() as client:
        assert await aap.with_client(client).send_turn("[[recall]]") == RECALLED
        assert native_id(cli_of(home.path)) == ("--resume", session)


async def test_a_daemon_killed_in_mid_turn_ends_that_turn_when_it_is_back(home: Home, model: Model) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
        first = cli_of(home.path)
        async with aap.open_stream("[[slowtext]] two") as frames:
            await read_until_event(frames, "text_delta")
            await daemon.kill()
    await daemon.start()
    await wait_for_exit(first.pid)
    async with daemon.client() as client:
        aap = aap.with_client(client)
        info = await aap.info()
        assert (info["state"], info["stopReason"]) == ("idle", "error")
        history = info["history"]["full"]
        assert [message["content"] for message in history if message["role"] == "user"] == ["[[plain]] one", "[[slowtext]] two"]
        assert await aap.send_turn("[[recall]] three") == "I see 3 user texts. Before this one: [[plain]] one | [[slowtext]] two"


@pytest.mark.parametrize("directory", [False, True])
async def test_a_lost_native_session_is_seeded_with_the_history(home: Home, model: Model, directory: bool) -> None:
    async with home.gateway(limits={"sleep_after": 1.5}) as portico:
        aap = await create_session(portico.client, *SEED, "[[think]] first")
        cli = cli_of(home.path)
        _, session = native_id(cli)
        await wait_for_exit(cli.pid)
        (file,) = home.session_files()
        assert file.stem == session
        file.unlink()
        if directory:
            # The CLI refuses with EISDIR then.
            file.mkdir()
        assert (await aap.send_turn("[[recall]] second")).startswith("I see 4 user texts.")
        # Thinking is not seeded: the gateway does not store the signature of the vendor.
        new = [("user", "[[think]] first"), ("assistant", "The answer is 42."), ("user", "[[recall]] second")]
        assert conversation_of(model.last_request()) == [*NATIVE_SEED, *new]
        flag, fresh = native_id(cli_of(home.path))
        assert flag == "--resume" and fresh != session


async def test_a_new_session_is_seeded_with_the_messages_of_its_creation(portico: RunningGateway, model: Model) -> None:
    aap = await create_session(portico.client, {"role": "system", "content": "Speak like a sailor."}, *SEED, "[[recall]] now")
    assert conversation_of(model.last_request()) == [*NATIVE_SEED, ("user", "[[recall]] now")]
    assert len(model.bodies()) == 1
    assert (await aap.history())[1:-1] == [*SEED, user("[[recall]] now")]


async def test_a_seeded_session_is_resumed_like_any_other(home: Home, model: Model) -> None:
    async with home.gateway(limits={"sleep_after": 1.5}) as portico:
        aap = await create_session(portico.client, *SEED, "[[plain]] first")
        cli = cli_of(home.path)
        _, session = native_id(cli)
        await wait_for_exit(cli.pid)
        await aap.send_turn("[[plain]] second")
        assert conversation_of(model.last_request())[: len(NATIVE_SEED)] == NATIVE_SEED
        assert native_id(cli_of(home.path)) == ("--resume", session)
        assert len(home.session_files()) == 1


async def test_sleep_and_wake_keep_the_context(home: Home, model: Model) -> None:
    async with home.gateway(limits={"sleep_after": 1.5}) as portico:
        aap = await create_session(portico.client, "[[plain]] one")
        first = cli_of(home.path)
        _, session = native_id(first)
        await wait_for_exit(first.pid)
        assert (await aap.info())["state"] == "idle"
        assert await aap.send_turn("[[recall]]") == RECALLED
        assert native_id(cli_of(home.path)) == ("--resume", session)


async def test_a_cli_killed_between_two_turns_is_resumed(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    first = cli_of(home.path)
    _, session = native_id(first)
    first.kill()
    await wait_until(lambda: not psutil.pid_exists(first.pid), "its parent has reaped it")
    assert (await aap.info())["state"] == "idle"
    assert await aap.send_turn("[[recall]]") == RECALLED
    assert native_id(cli_of(home.path)) == ("--resume", session)


async def test_a_cli_killed_in_mid_turn_ends_the_turn_with_an_error(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    async with aap.open_stream("[[slowtext]] two") as frames:
        await read_until_event(frames, "text_delta")
        cli_of(home.path).kill()
        name, data = [frame async for frame in frames][-1]
    assert (name, data["stopReason"]) == ("turn_stop", "error")
    assert "claude ended in the middle of the run" in data["x-portico"]["error"]
    # The model receives the same conversation, whatever the CLI had stored of that turn.
    assert await aap.send_turn("[[recall]] three") == "I see 3 user texts. Before this one: [[plain]] one | [[slowtext]] two"
    history = await aap.history()
    assert [message["role"] for message in history] == ["user", "assistant"] * 3
    assert text_of(history[3:4]).startswith("word ")


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
