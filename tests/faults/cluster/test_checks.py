"""The checks of the soak find what they are for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.cluster.checks import Checks
from tests.support.sse import NumberedEvent as Frame

PROMPT: Frame = ("1", "client_message", {"role": "user", "content": json.dumps({"id": "s0-1", "do": []})})
TEXTS: list[Frame] = [(str(n + 2), "text_delta", {"delta": f"<s0-1:{n}>"}) for n in range(3)]
END: Frame = ("5", "turn_stop", {"stopReason": "end_turn"})
LOG = [PROMPT, *TEXTS, END]
TAKEN_OVER: list[Frame] = [
    PROMPT, TEXTS[0], ("3", "gap", {"from": 3, "to": 1000}), ("1001", "turn_stop", {"stopReason": "error"}),
]  # fmt: skip
GIVEN = {"type": "prompt", "id": "s0-1", "go_on": False}


def violated(checks: Checks) -> set[str]:
    return {what for what, problems in checks.problems.items() if problems}


@pytest.mark.parametrize(
    ("seen", "log", "found"),
    [
        (LOG[1:], LOG, set()),
        ([*LOG[1:3], END], LOG, {"events lost"}),
        ([*LOG[1:3], *LOG[2:]], LOG, {"events doubled or out of order"}),
        ([*LOG[1:], ("6", "text_delta", {"delta": "late"})], LOG, {"events that are neither stored nor in a gap"}),
        ([*LOG[1:3], ("4", "turn_stop", {"stopReason": "error"})], TAKEN_OVER, {"events lost"}),
        (LOG[1:3], TAKEN_OVER, {"events lost"}),
    ],
)
def test_what_a_client_has_seen(seen: list[Frame], log: list[Frame], found: set[str]) -> None:
    checks = Checks()
    checks.seen("s0", seen, log, messages=False)
    assert violated(checks) == found


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (LOG, set()),
        ([PROMPT, *TEXTS[:2], END], {"texts of turns"}),
        ([*LOG, ("6", "text_delta", {"delta": "<s0-1:3>"})], {"texts of turns"}),
        ([*LOG, ("6", "turn_stop", {"stopReason": "error"})], {"texts of turns"}),
        (LOG[:-1], {"turns without an end"}),
        ([*LOG, *LOG], {"prompts sent that are not stored once"}),
    ],
)
def test_turns_of_a_log(log: list[Frame], found: set[str]) -> None:
    checks = Checks()
    checks.turns("s0", ["s0-1"], log, 3)
    assert violated(checks) == found


@pytest.mark.parametrize(
    ("given", "ends", "found"),
    [
        ([GIVEN], {"s0-1": "end_turn"}, set()),
        ([GIVEN, GIVEN], {"s0-1": "end_turn"}, {"prompts given twice"}),
        ([GIVEN], {}, {"prompts given that are not stored"}),
        ([], {"s0-1": "end_turn"}, {"complete turns whose prompt was not given"}),
        ([], {"s0-1": "error"}, set()),
    ],
)
def test_what_the_agents_were_given(given: list[dict[str, Any]], ends: dict[str, str], found: set[str]) -> None:
    checks = Checks()
    checks.given(given, ends)
    assert violated(checks) == found
