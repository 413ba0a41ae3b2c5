"""The checks of a release: each is a coroutine that uses the gateway as a client does, and raises what is wrong.

A check may return a word about how the CLI behaves, which the results keep.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.matrix.clis import ANSWER
from tests.matrix.rig import Json, Rig, expect
from tests.real.codex.aap_client import deny, grant, result
from tests.real.processes import clis_of

PLAIN = "Hello from the model, this is plain text."
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
SEED: list[Json] = [
    {"role": "user", "content": "How is the weather in Bergen?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I shall look."},
            {"type": "tool_use", "toolCallId": "toolu_given_1", "name": "get_weather", "input": {"location": "Bergen"}},
        ],
    },
    {"role": "tool", "toolCallId": "toolu_given_1", "content": "Rain and 7 degrees"},
    {"role": "assistant", "content": "It rains there."},
]


async def task(rig: Rig) -> None:
    """A task of `POST /v1/execute` ends with the model's text."""
    events = await rig.execute("task-one [[plain]]")
    end = events[-1]
    errors = [event["message"] for event in events if event["kind"] == "error"]
    expect((end["kind"], end.get("exit_code")) == ("session_end", 0), f"the task ended with {end} {errors or ''}")
    text = "".join(event["text"] for event in events if event["kind"] == "agent_token")
    expect(text == PLAIN, f"the text is {text!r}")


async def session(rig: Rig) -> None:
    """A session is created with a prompt, and has the model's answer."""
    created = await rig.create("session-one [[plain]]")
    expect(created.text() == PLAIN, f"the text is {created.text()!r}")
    await created.delete()


async def warm_turn(rig: Rig) -> None:
    """The second turn runs in the process of the first, and the model has both."""
    created = await rig.create("warm-one [[plain]]")
    created.text()
    before = {process.pid for process in clis_of(rig.home)}
    await created.send("warm-two [[recall]]")
    created.text()
    expect({process.pid for process in clis_of(rig.home)} == before, "the second turn started another process")
    _expect_once(rig.request_text("recall"), "warm-one", PLAIN, "warm-two")
    await created.delete()


async def resume(rig: Rig) -> None:
    """A session goes on when its CLI was killed between two turns, and then when the daemon was restarted."""
    created = await rig.create("resume-one [[plain]]")
    created.text()
    await rig.end_clis()
    await created.send("resume-two [[plain]]")
    expect(created.text() == PLAIN, f"after the end of the CLI the text is {created.text()!r}")
    await rig.restart()
    await created.send("resume-three [[plain]]")
    expect(created.text() == PLAIN, f"after the restart of the daemon the text is {created.text()!r}")
    await created.delete()


async def seed(rig: Rig) -> None:
    """The model has the history that a session was created with, with its call and the result."""
    created = await rig.create(*SEED, "seed-now [[recall]]")
    created.text()
    parts = ("How is the weather in Bergen?", "I shall look.", "get_weather", "Rain and 7 degrees", "It rains there.", "seed-now")
    _expect_order(rig.request_text("recall"), *parts)
    await created.delete()


async def silent_loss(rig: Rig) -> None:
    """After a restart of the daemon, and after the end of the CLI, the model has every former turn, once."""
    created = await rig.create("loss-one [[plain]]")
    await created.send("loss-two [[think]]")
    await rig.restart()
    await created.send("loss-three [[recall]]")
    created.text()
    _expect_once(rig.request_text("recall"), "loss-one", PLAIN, "loss-two", "The answer is 42.", "loss-three")
    await rig.end_clis()
    await created.send("loss-four [[recall]]")
    created.text()
    _expect_order(rig.request_text("recall"), "loss-one", PLAIN, "loss-two", "The answer is 42.", "loss-three", "loss-four")
    await created.delete()


async def application_tools(rig: Rig) -> str:
    """Two calls of the application's tool in one message of the model; the word says if they come `parallel` or `serial`."""
    created = await rig.create("tools-one [[cities]]", app=[WEATHER])
    first = created.open_calls()
    calls = first
    answered = 0
    while calls:
        answered += len(calls)
        expect(answered <= 2, f"the application was asked {answered} times for two calls")
        await created.send(*(result(call, f"{call['input']['location']} has 18 degrees") for call in calls))
        calls = created.open_calls() if created.last["stopReason"] == "tool_use" else []
    expect(created.text() == ANSWER, f"the text is {created.text()!r}")
    for city in ("Tokyo", "Oslo"):
        # The results of parallel calls have any order.
        _expect_order(rig.request_text("cities"), "tools-one", f"{city} has 18 degrees")
    await created.delete()
    return "parallel" if len(first) == 2 else "serial"


async def permission(rig: Rig) -> None:
    """A command waits for the client: allowed, it runs; refused, it does not, and the turn goes on to its end."""
    allowed, refused = rig.work / "allowed.txt", rig.work / "refused.txt"
    created = await rig.create("permission-one [[run:touch allowed.txt]]", own=rig.cli.ask)
    (call,) = created.open_calls()
    expect(not allowed.exists(), "the command ran before it was allowed")
    await created.send(grant(call))
    created.text()
    expect(allowed.exists(), "the command was allowed and did not run")
    await created.send("permission-two [[run:touch refused.txt]]")
    (call,) = created.open_calls()
    await created.send(deny(call, "too risky"))
    created.text()
    expect(not refused.exists(), "the command was refused and ran")
    await created.delete()


async def killed_daemon(rig: Rig) -> None:
    """The daemon is killed (SIGKILL) while it waits for a result; the model has the result that comes after its restart."""
    created = await rig.create("kill-one [[cities]]", app=[WEATHER])
    calls = created.open_calls()
    await rig.restart(kill=True)
    # A CLI that calls one tool after the other has told the daemon of the first only; the other is asked for afterwards.
    while calls:
        await created.send(*(result(call, f"{call['input']['location']} has 18 degrees") for call in calls))
        calls = created.open_calls() if created.last["stopReason"] == "tool_use" else []
    created.text()
    _expect_order(rig.request_text("cities"), "kill-one", "Tokyo has 18 degrees")
    await created.delete()


Check = Callable[[Rig], Awaitable[str | None]]
CHECKS: dict[str, Check] = {
    "task": task,
    "session": session,
    "warm turn": warm_turn,
    "resume": resume,
    "seed": seed,
    "silent loss": silent_loss,
    "application tools": application_tools,
    "permission": permission,
    "kill -9": killed_daemon,
}
"""By the name in the results."""


def _expect_order(request: str, *parts: str) -> None:
    """These texts are in the request, in this order."""
    position = 0
    for part in parts:
        found = request.find(part, position)
        expect(found >= 0, f"the model's request lacks {part!r}" if part not in request else f"{part!r} is out of order")
        position = found


def _expect_once(request: str, *parts: str) -> None:
    """These texts are in the request, in this order, each of them once."""
    _expect_order(request, *parts)
    for part in parts:
        expect(request.count(part) == 1, f"the model's request has {part!r} {request.count(part)} times")
