"""Pending calls of the real claude after the end of the daemon or the CLI."""

from __future__ import annotations

import json

from tests.model_server.scenarios import Step, ToolUse, text_step
from tests.real.tool_bench import WEATHER, Bench, bash, daemon_of, grant, result, weather

OWN = {"Bash": False, "Read": True}


def four_calls(bench: Bench, again: bool) -> str:
    """Set calls of the model; after the restart it reads their results and, with `again`, repeats the granted call."""
    (bench.work / "file.txt").write_text("a text")
    shell = bash("echo x >> log && echo made")
    first = Step((weather(), ToolUse("Read", {"file_path": f"{bench.work}/file.txt"}), shell), chunk=5000)
    # The CLI adds a reply to a history that ends in results, which counts as the second one.
    second = text_step("(not requested)")
    return bench.model_replies(first, second, *((Step((shell,), chunk=5000),) if again else ()), text_step("On."), name="sticky")


async def start_suspended(bench: Bench, *, again: bool = True) -> tuple[str, list[str]]:
    turn = await bench.start(four_calls(bench, again), own=OWN, app=[WEATHER])
    assert turn.called == ["get_weather", "Read", "Bash"] and turn.stop == "tool_use"
    return turn.session, turn.calls


async def resume_and_check(bench: Bench, session: str, calls: list[str]) -> None:
    app, read, shell = calls
    found = await bench.get(session)
    assert (found["x-portico"]["state"], found["x-portico"]["stopReason"]) == ("waiting", "tool_use")
    turn = await bench.answer(session, result(app, "rain"), grant(shell))
    assert turn.stop == "end_turn" and turn.text == "On.", turn
    [again] = turn.calls
    assert "approved" in turn.results[shell] and turn.results[again] == "made"
    assert (bench.work / "log").read_text() == "x\n"
    sent = bench.results_sent()
    assert sent[app]["content"] == "rain" and "a text" in sent[read]["content"] and "approved" in sent[shell]["content"]
    roles = [m["role"] for m in await bench.history(session)]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "assistant", "tool", "assistant"]
    assert not any("restart" in json.dumps(m) for m in await bench.history(session))
    twice = await bench.answer(session, result(app, "rain"), grant(shell))
    assert twice.status == 400 and app in twice.error and shell in twice.error and "already" in twice.error
    assert (bench.work / "log").read_text() == "x\n"
    assert (await bench.send_turn(session, "And now [[plain]]")).stop == "end_turn"


async def test_the_daemon_is_killed(unstarted_bench: Bench) -> None:
    async with daemon_of(unstarted_bench) as daemon:
        session, calls = await start_suspended(unstarted_bench)
        await daemon.kill()
    async with daemon_of(unstarted_bench):
        await resume_and_check(unstarted_bench, session, calls)


async def test_another_call_after_a_restart_needs_permission(unstarted_bench: Bench) -> None:
    """A grant applies to one call with one input."""
    first, other = Step((bash("touch granted"),), chunk=5000), Step((bash("touch other"),), chunk=5000)
    text = unstarted_bench.model_replies(first, text_step("(not requested)"), other, text_step("On."), name="sticky")
    async with daemon_of(unstarted_bench) as daemon:
        turn = await unstarted_bench.start(text, own={"Bash": False})
        await daemon.kill()
    async with daemon_of(unstarted_bench):
        turn_2 = await unstarted_bench.answer(turn.session, grant(turn.calls[0]))
        assert turn_2.stop == "tool_use" and not (unstarted_bench.work / "other").exists()
        turn_3 = await unstarted_bench.answer(turn.session, grant(turn_2.calls[0]))
        assert turn_3.stop == "end_turn" and [path.name for path in unstarted_bench.work.iterdir()] == ["other"]
