"""The verdict about a measured figure."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Results, median_ratio


@pytest.mark.parametrize(
    ("figure", "ok", "verdict"),
    [
        (Figure("x", 1.4, "", at_most=1.5), True, "ok"),
        (Figure("x", 1.6, "", at_most=1.5), False, "MISSED"),
        (Figure("x", 0.6, "", at_least=0.5), True, "ok"),
        (Figure("x", 0.4, "", at_least=0.5), False, "MISSED"),
        (Figure("x", 0.4, ""), True, ""),
    ],
)
def test_a_bound_is_met_or_missed(figure: Figure, ok: bool, verdict: str) -> None:
    results = Results({}, {"first": [figure]})
    assert (results.ok, figure.to_json()["ok"]) == (ok, ok)
    assert results.table().splitlines()[-1].endswith(verdict)


def test_without_goals_only_what_must_be_exactly_so_can_be_missed() -> None:
    slow, lost = Figure("slow", 9.0, "ms", at_most=3.0), Figure("delivered", 9.0, "events", at_least=10, at_most=10)
    results = Results({}, {"first": [slow]})
    results.drop_goals()
    assert results.ok
    results.figures["second"] = [lost]
    results.drop_goals()
    assert not results.ok


def test_a_machine_that_is_slow_for_a_while_does_not_change_a_ratio() -> None:
    """Both sides of most pairs are slow here, and one side of two pairs."""
    assert median_ratio([2.0, 20.0, 22.0, 20.0, 2.0, 9.0, 2.0], [1.0, 10.0, 11.0, 10.0, 1.0, 1.0, 9.0]) == 2.0
