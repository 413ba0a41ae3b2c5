"""How checks are run, repeated and reported, and how recorded events are compared, without a CLI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import campaign
from tests.matrix.campaign import Outcome, one_line, run_checks
from tests.matrix.checks import Check
from tests.matrix.clis import CLIS
from tests.matrix.rig import Rig, expect
from tests.matrix.transcripts import comparable, difference


class FakeRigs:
    """Stands for `open_rig`: numbered rigs, of which `open` are not closed yet."""

    def __init__(self, base: Path) -> None:
        self.base, self.opened, self.open = base, 0, 0

    @asynccontextmanager
    async def open_rig(self, *_: Any) -> AsyncIterator[Rig]:
        self.opened += 1
        self.open += 1
        yield Rig(CLIS["claude"], self.base / str(self.opened), None, None)  # type: ignore[arg-type]
        self.open -= 1


@pytest.fixture
def rigs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRigs:
    found = FakeRigs(tmp_path)
    monkeypatch.setattr(campaign, "open_rig", found.open_rig)
    return found


async def passing(rig: Rig) -> None:
    """A check that passes."""


async def serial(rig: Rig) -> str:
    """A check that passes with a word."""
    return "serial"


async def failing(rig: Rig) -> None:
    """A check that fails."""
    expect(False, f"lost in {rig.base}\nat http://127.0.0.1:4711/v1")


async def broken(rig: Rig) -> None:
    """A check with another exception."""
    raise KeyError("data")


async def hanging(rig: Rig) -> None:
    """A check that does not end."""
    await asyncio.Event().wait()


async def run(*checks: Check) -> Outcome:
    return await run_checks(CLIS["claude"], Path("bin"), {check.__name__: check for check in checks})


async def test_checks_that_pass_share_a_gateway(rigs: FakeRigs) -> None:
    outcome = await run(passing, serial)
    assert outcome.results == {"passing": "passed", "serial": "passed"}
    assert (outcome.behaviour, outcome.repeated) == ({"serial": "serial"}, {})
    assert (rigs.opened, rigs.open) == (1, 0)


async def test_a_check_that_fails_is_repeated_alone(rigs: FakeRigs) -> None:
    used: list[str] = []

    async def first_time(rig: Rig) -> None:
        used.append(rig.base.name)
        assert rigs.open == 1, "its gateway is not the only one"
        expect(len(used) > 1, "busy")

    async def after(rig: Rig) -> None:
        used.append(rig.base.name)

    outcome = await run(passing, first_time, after)
    assert outcome.results == {"passing": "passed", "first_time": "passed", "after": "passed"}
    assert outcome.repeated == {"first_time": "failed: busy"}
    assert used == ["1", "2", "3"] and rigs.open == 0


async def test_reasons_are_one_line_without_folders_and_ports(rigs: FakeRigs) -> None:
    outcome = await run(failing)
    assert outcome.results == {"failing": "failed: lost in … at http://127.0.0.1:9/v1"}


async def test_another_exception_has_its_name_and_place(rigs: FakeRigs) -> None:
    outcome = await run(broken, passing)
    assert outcome.results["broken"].startswith("failed: KeyError: 'data', in ")
    assert "broken (line" in outcome.results["broken"] and outcome.results["passing"] == "passed"


async def test_a_check_that_hangs_is_ended(rigs: FakeRigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "CHECK_SECONDS", 0.05)
    outcome = await run(hanging, passing)
    assert outcome.results["hanging"].startswith("failed: not finished after 0.05 s, in ") and rigs.open == 0
    assert "hanging (line" in outcome.results["hanging"] and outcome.results["passing"] == "passed"


def test_long_reasons_are_cut() -> None:
    assert len(one_line(ValueError("x" * 5000))) == campaign.WHY_CHARACTERS


def call(call_id: str, command: str, status: str = "started") -> dict[str, Any]:
    return {"kind": "tool_call", "id": call_id, "name": "shell", "status": status, "input": {"command": command}}


def lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_ids_pieces_and_the_order_of_parallel_calls_do_not_differ() -> None:
    golden = lines(
        {"kind": "native_session", "native_id": "01a1faa0-220d-7700-ada3-656375c3bf3a"},
        {"kind": "agent_token", "text": "One "},
        {"kind": "agent_token", "text": "text."},
        {"kind": "tool_input", "id": "call_0051_0", "name": "shell", "input": {}},
        call("call_0051_0", "ls"),
        call("call_0051_1", "pwd"),
        {"kind": "awaiting", "calls": [{"id": "call_0051_0"}, {"id": "call_0051_1"}]},
        {"kind": "tool_output", "tool_call_id": "call_0051_1", "text": "/"},
        {"kind": "tool_result", "tool_call_id": "call_0051_1", "output": "/"},
        {"kind": "error", "message": "127.0.0.1:4711 refused msg_0051"},
        {"kind": "session_end", "exit_code": 0, "duration_ms": 12},
    )
    recorded = lines(
        {"kind": "native_session", "native_id": "01a20620-ef67-7400-8dfb-daee6aeea30a"},
        {"kind": "agent_token", "text": "One text."},
        call("a", "pwd"),
        {"kind": "tool_input", "id": "b", "name": "shell", "input": {}},
        {"kind": "tool_input", "id": "b", "name": "shell", "input": {"command": "l"}},
        call("b", "ls"),
        {"kind": "awaiting", "calls": [{"id": "a"}, {"id": "b"}]},
        {"kind": "tool_result", "tool_call_id": "a", "output": "/"},
        {"kind": "error", "message": "127.0.0.1:9 refused msg_0001"},
        {"kind": "session_end", "exit_code": 0, "duration_ms": 999},
    )
    assert difference("two_calls", golden, recorded) == ""


@pytest.mark.parametrize(
    ("golden", "recorded"),
    [
        ([{"kind": "agent_token", "text": "One"}], [{"kind": "agent_token", "text": "Two"}]),
        ([call("a", "ls")], [call("a", "pwd")]),
        ([call("a", "ls")], [call("a", "ls"), call("b", "ls")]),
        ([call("a", "ls"), call("a", "ls", "failed")], [call("a", "ls"), call("a", "ls", "completed")]),
        ([{"kind": "session_end", "exit_code": 0}], [{"kind": "session_end", "exit_code": 1}]),
        ([{"kind": "usage", "input_tokens": 1}], []),
        ([{"kind": "tool_input", "id": "a", "name": "shell", "input": {}}, call("a", "ls")], [call("a", "ls")]),
    ],
)
def test_what_differs_is_printed(golden: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> None:
    text = difference("name", lines(*golden), lines(*recorded))
    assert text.startswith("--- name (golden)\n+++ name (recorded)\n")


def test_pieces_of_different_blocks_are_not_joined() -> None:
    events = [{"kind": "agent_token", "text": "a"}, {"kind": "thinking", "text": "b"}, {"kind": "agent_token", "text": "c"}]
    assert len(comparable(events)) == 3


def test_how_far_a_text_came_before_an_interrupt_does_not_differ() -> None:
    golden, recorded = ({"kind": "agent_token", "text": "word " * count} for count in (1, 40))
    assert difference("interrupt", lines(golden), lines(recorded)) == ""
    assert difference("plain", lines(golden), lines(recorded)) != ""


def test_long_differences_are_cut() -> None:
    text = difference("name", "", lines(*({"kind": "usage", "input_tokens": n} for n in range(100))))
    assert text.splitlines()[-1] == "... and 63 more lines"
