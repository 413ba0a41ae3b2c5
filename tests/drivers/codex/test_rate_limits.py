"""The usage limits of a codex account: shapes of `account/rateLimits/updated` in the schema of codex 0.169.0."""

from __future__ import annotations

from drivers.codex.turn_result import RateLimits
from drivers.contract.events import Error, RateLimit

RESET = 4102444800
PRIMARY = {"usedPercent": 40, "windowDurationMins": 300, "resetsAt": RESET - 1}
FULL = {"usedPercent": 100, "windowDurationMins": 10080, "resetsAt": RESET}
LIMIT_ERROR = {"message": "You've hit your usage limit.", "codexErrorInfo": "usageLimitExceeded"}


def test_the_fullest_window_is_reported_when_it_changes() -> None:
    limits = RateLimits()
    assert limits.read({"primary": None, "secondary": None}) == []
    assert limits.read({"primary": PRIMARY}) == [
        RateLimit(status="allowed", limit="primary", utilization=0.4, resets_at=RESET - 1)
    ]
    # A report may omit what has not changed.
    assert limits.read({"primary": None}) == []
    full = RateLimit(status="rejected", limit="secondary", utilization=1, resets_at=RESET)
    assert limits.read({"secondary": FULL, "rateLimitReachedType": "rate_limit_reached"}) == [full]


def test_the_error_of_a_limit_names_the_time_at_which_it_resets() -> None:
    limits = RateLimits()
    limits.read({"secondary": FULL, "rateLimitReachedType": "rate_limit_reached"})
    [error], end = limits.failure(LIMIT_ERROR)
    text = "codex: You've hit your usage limit. (the limit resets at 2100-01-01 00:00:00 UTC)"
    assert error == Error(message=text, resets_at=RESET)
    assert end.stop_reason == "error"
    [other], _ = limits.failure({"message": "away", "codexErrorInfo": "serverOverloaded"})
    assert other == Error(message="codex: away")
