"""The soak test of `make bench`, with fewer sessions: clients disconnect and reconnect, and the daemon is killed twice."""

from __future__ import annotations

import pytest

from benchmarks.soak import run_soak


@pytest.mark.long
@pytest.mark.slow
async def test_no_event_is_lost_or_duplicated() -> None:
    figures = {figure.name: figure for figure in await run_soak(8, seed=7)}
    assert all(figure.ok for figure in figures.values()), figures
    assert figures["turns that ended"].value == 16
    assert figures["kills"].value == 2
    assert figures["disconnects by clients"].value >= 4
