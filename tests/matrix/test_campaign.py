"""How the results of checks are read and repeated, and how recorded events are compared, without a CLI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import campaign
from tests.matrix.campaign import Outcome, one_line, read_report, run_checks
from tests.matrix.checks import CHECKS, Check
from tests.matrix.results import ROOT
from tests.matrix.transcripts import comparable, difference

REPORT = """<testsuites><testsuite>
<testcase name="test_a[codex]"/>
<testcase name="test_b[codex]"><properties><property name="behaviour" value="serial"/></properties></testcase>
<testcase name="test_c[codex-daemon]"><failure message="AssertionError: assert 'x' == 'y'
 at http://127.0.0.1:4711/v1 in /var/tmp/portico-test-x1/codex0/home">trace</failure></testcase>
<testcase name="test_d[codex]"/>
<testcase name="test_d[codex]"><error message="failed on teardown: left behind"/></testcase>
<testcase name="test_e[codex]"><skipped message="codex is not installed"/></testcase>
</testsuite></testsuites>"""


def test_the_report_of_pytest_is_read() -> None:
    checks = {name: Check("", f"test_x.py::test_{name}", "daemon" if name == "c" else "") for name in "abcdef"}
    assert read_report(REPORT, "codex", checks) == Outcome(
        {
            "a": "passed",
            "b": "passed",
            "c": "failed: AssertionError: assert 'x' == 'y' at http://127.0.0.1:9/v1 in …/codex0/home",
            "d": "failed: failed on teardown: left behind",
            "e": "failed: codex is not installed",
            "f": "failed: it did not run",
        },
        {"b": "serial"},
    )


async def test_a_check_that_fails_is_repeated() -> None:
    runs: list[list[str]] = []

    async def run(cli: str, installation: Path, checks: Mapping[str, Check]) -> Outcome:
        runs.append(list(checks))
        first = len(runs) == 1
        return Outcome({name: "failed: busy" if first and name == "seed" else "passed" for name in checks})

    outcome = await run_checks("claude", Path("release"), run)
    assert outcome.results == dict.fromkeys(CHECKS, "passed") and outcome.repeated == {"seed": "failed: busy"}
    assert runs == [list(CHECKS), ["seed"]]


def test_each_check_is_a_test_of_the_table() -> None:
    for check in CHECKS.values():
        file, _, name = check.node_id("claude").partition("[")[0].partition("::")
        assert f"async def {name}(" in (ROOT / file).read_text()


def test_long_reasons_are_cut() -> None:
    assert len(one_line("x" * 5000)) == campaign.WHY_CHARACTERS


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
