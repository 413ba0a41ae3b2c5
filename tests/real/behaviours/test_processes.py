"""The processes of the real CLIs: a turn is cancelled or steered, the CLI or the daemon ends, and the session goes on."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.real.aap_client import deny, grant, read_until_event, result
from tests.real.processes import processes_of, running_process, wait_for_exit
from tests.real.real_cli import CLOCK, PLAIN, WEATHER, RealCli

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLEEPER = "python3 -c 'import time; time.sleep(97)'"
CANCEL_SECONDS = 15.0
"""It takes a second where the machine is not busy."""


async def test_a_cancelled_text(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before")
    process = cli.process()
    async with session.stream(cli.long_text) as frames:
        await read_until_event(frames, "text_delta")
        assert await session.cancel() == {"sessionId": session.id, "cancelled": True, "state": "idle"}
        name, data = [frame async for frame in frames][-1]
        assert (name, data["stopReason"]) == ("turn_stop", "end_turn")
    assert await session.say("[[echo:again]]") == "again"
    assert cli.process() == process, "it was interrupted, and not killed"


async def test_turns_that_are_cancelled_at_once(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before")
    process = cli.process()
    for _ in range(3):
        async with session.stream(cli.long_text) as frames:
            await anext(frames)
            assert (await session.cancel())["cancelled"]
            assert [name async for name, _ in frames][-1] == "turn_stop"
    assert await session.say("[[plain]]") == PLAIN
    assert cli.process() == process


async def test_a_cancelled_command(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before", own=cli.trust)
    turn = session.begin(cli.runs(f"trap '' TERM INT HUP; {SLEEPER}; sleep 98"))
    sleeper = await running_process(cli.home, "python")
    began = time.monotonic()
    assert await session.cancel() == {"sessionId": session.id, "cancelled": True, "state": "idle"}
    assert time.monotonic() - began < CANCEL_SECONDS
    assert (await turn).stop == "end_turn"
    await wait_for_exit(sleeper.pid)
    assert await session.say("[[echo:again]]") == "again"
    [cancelled] = [message for message in await session.history() if message["role"] == "tool"]
    assert cancelled["content"]


async def test_a_message_that_is_steered_into_a_turn(cli: RealCli) -> None:
    if not cli.steers:
        pytest.skip("its messages wait for the next turn")
    session = await cli.create("[[plain]] before")
    process = cli.process()
    async with session.stream("[[midtext]]") as frames:
        await read_until_event(frames, "text_delta")
        steered = session.begin("[[echo:steered]]", when_busy="steer")
        assert [name async for name, _ in frames].count("turn_stop") == 1
    assert (await steered).stop == "end_turn"
    assert [message["content"] for message in await session.history()][-2:] == ["[[echo:steered]]", "steered"]
    assert await session.say("[[echo:next]]") == "next"
    assert cli.process() == process


async def test_a_turn_goes_on_without_its_client(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before")
    async with session.stream(cli.long_text) as frames:
        await read_until_event(frames, "text_delta")
    assert (await session.send("too soon")).status == 409
    assert (await session.info())["state"] == "running" and cli.process().is_running()


async def test_a_deleted_session_leaves_nothing(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before")
    process = cli.process()
    async with session.stream(cli.long_text) as frames:
        await read_until_event(frames, "text_delta")
        assert (await cli.client.delete(f"/session/{session.id}")).status_code == 204
        last = [frame async for frame in frames][-1]
    assert last == ("turn_stop", {"stopReason": "error", "x-portico": {"error": "the session was deleted"}})
    await wait_for_exit(process.pid)
    assert processes_of(cli.home) == []
    assert not (cli.base / "data" / "state" / session.id).exists()


async def test_the_cli_is_killed_in_mid_turn(cli: RealCli) -> None:
    session = await cli.create("[[plain]] one", own=cli.trust)
    async with session.stream(f"{cli.long_text} two") as frames:
        await read_until_event(frames, "text_delta")
        cli.process().kill()
        name, data = [frame async for frame in frames][-1]
    assert (name, data["stopReason"]) == ("turn_stop", "error")
    assert f"{cli.name} ended in the middle of the run" in data["x-portico"]["error"]
    recalled = await session.say("[[recall]] three")
    assert recalled == f"I see 3 user texts. Before this one: [[plain]] one | {cli.long_text} two"
    turn = session.begin(cli.runs(SLEEPER))
    sleeper = await running_process(cli.home, "python")
    cli.process().kill()
    assert (await turn).stop == "error"
    await wait_for_exit(sleeper.pid)


async def test_resumption(cli: RealCli) -> None:
    """A session goes on when its CLI was killed between two turns, and when the daemon was restarted: in its own file."""
    before = cli.native_ids()
    session = await cli.create("[[plain]] one")
    for end in (cli.end_process, cli.restart):
        await end()
        assert (await session.info())["state"] == "idle"
        assert await session.say("[[plain]] again") == PLAIN
    assert len(cli.native_ids() - before) == 1 or not cli.one_file, "it was resumed, and not seeded"
    assert [message["role"] for message in await session.history()] == ["user", "assistant"] * 3


async def test_no_turn_is_lost(cli: RealCli) -> None:
    """After `kill -9` of the daemon, and after the end of the CLI, the model has every former turn, once."""
    session = await cli.create("loss-one [[plain]]")
    await session.say("? loss-two [[think]]")
    await cli.restart(kill=True)
    recalled = await session.say("loss-three [[recall]]")
    assert recalled == "I see 3 user texts. Before this one: loss-one [[plain]] | ? loss-two [[think]]"
    request = cli.request_text("recall")
    for part in ("loss-one", PLAIN, "? loss-two", "The answer is 42.", "loss-three"):
        assert request.count(part) == 1, part
    await cli.end_process()
    recalled = await session.say("loss-four [[recall]]")
    assert recalled.startswith("I see 4 user texts. Before this one: loss-one [[plain]] | ? loss-two [[think]] | loss-three")


async def test_a_lost_native_session_is_seeded_with_the_history(cli: RealCli) -> None:
    call = {"type": "tool_use", "toolCallId": "toolu_given_1", "name": "get_weather", "input": {"location": "Bergen"}}
    seed = [
        {"role": "user", "content": "How is it there?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I shall look."}, call]},
        {"role": "tool", "toolCallId": "toolu_given_1", "content": "Rain and 7 degrees"},
        {"role": "assistant", "content": "It rains."},
    ]
    session = await cli.create(*seed, "[[think]] first")
    await cli.end_process()
    before = cli.native_ids()
    for file in cli.native_files():
        file.unlink()
    recalled = await session.say("[[recall]] second")
    assert recalled == "I see 3 user texts. Before this one: How is it there? | [[think]] first"
    request = cli.request_text("recall")
    parts = (
        "How is it there?",
        "I shall look.",
        "get_weather",
        "Rain and 7",
        "It rains.",
        "[[think]] first",
        "The answer is 42.",
    )
    places = [request.index(part) for part in parts]
    assert places == sorted(places)
    assert cli.native_ids() and cli.native_ids().isdisjoint(before)


async def test_the_daemon_is_killed_in_mid_turn(cli: RealCli) -> None:
    session = await cli.create("[[plain]] one")
    async with session.stream(f"{cli.long_text} two") as frames:
        await read_until_event(frames, "text_delta")
        await cli.restart(kill=True)
    info = await session.info()
    assert (info["state"], info["stopReason"]) == ("idle", "error")
    users = [message["content"] for message in info["history"]["full"] if message["role"] == "user"]
    assert users == ["[[plain]] one", f"{cli.long_text} two"]
    recalled = await session.say("[[recall]] three")
    assert recalled == f"I see 3 user texts. Before this one: [[plain]] one | {cli.long_text} two"


@pytest.mark.parametrize("killed", ["daemon", "cli"])
async def test_results_of_calls_whose_asker_was_killed(cli: RealCli, killed: str) -> None:
    """The model has the result that comes after the daemon or the CLI was killed."""
    prompt = cli.calls(cli.app_call(location="Tokyo"), script="sticky")
    session = await cli.create(prompt, app=[WEATHER])
    [call] = session.first.pending
    await (cli.restart(kill=True) if killed == "daemon" else cli.end_process())
    assert ((await session.info())["state"], (await session.info())["stopReason"]) == ("waiting", "tool_use")
    turn = await session.send(result(call, "18 degrees"))
    assert turn.stop == "end_turn" and "18 degrees" in cli.request_text("sticky")
    again = await session.send(result(call, "again"))
    assert again.status == 400
    # Later calls work too.
    [call] = (await session.send(cli.calls(cli.app_call("get_time")), tools=[CLOCK])).pending
    assert (await session.send(result(call, "19 o'clock"))).stop == "end_turn" and "19 o'clock" in cli.request_text("calls")


@pytest.mark.parametrize("killed", ["daemon", "cli"])
async def test_permissions_whose_asker_was_killed(cli: RealCli, killed: str) -> None:
    """A denied command does not run. A granted one runs once at most, and is not asked about for ever."""
    denied = await cli.create(cli.calls(cli.command("touch denied"), script="sticky"), own=cli.ask)
    await (cli.restart(kill=True) if killed == "daemon" else cli.end_process())
    turn = await denied.send(deny(denied.first.pending[0], "too risky"))
    assert turn.stop == "end_turn" and "too risky" in str(await denied.history())
    granted = await cli.create(cli.calls(cli.command("echo x >> granted"), script="sticky"), own=cli.ask)
    await (cli.restart(kill=True) if killed == "daemon" else cli.end_process())
    assert cli.made() == []
    turn = await granted.send(grant(granted.first.pending[0]))
    while turn.stop == "tool_use":
        turn = await granted.send(*(grant(call) for call in turn.pending))
    assert "denied" not in cli.made() and (not cli.made() or (cli.work / "granted").read_text() == "x\n")


async def test_a_pending_call_is_cancelled_by_a_message_after_the_end_of_the_cli(cli: RealCli) -> None:
    session = await cli.create(cli.runs("touch made"), own=cli.ask)
    await cli.end_process()
    assert await session.say("[[plain]] never mind") == PLAIN
    assert [message["content"] for message in await session.history() if message["role"] == "tool"] == ["Tool call cancelled"]
    assert cli.made() == []


async def test_two_clients_answer_at_once(cli: RealCli) -> None:
    session = await cli.create(cli.runs("echo x >> log"), own=cli.ask)
    [call] = session.first.pending
    one, two = await asyncio.gather(*(session.send(grant(call)) for _ in range(2)))
    assert sorted([one.status, two.status]) == [200, 400] and "already" in one.error + two.error
    assert (cli.work / "log").read_text() == "x\n"
