"""The soak of `make bench`, small: clients that drop off and come back, and a daemon that is killed twice."""

from __future__ import annotations

import pytest

from benchmarks.soak import soak_of


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    figures = {figure.name: figure for figure in await soak_of(8, seed=7)}
    assert all(figure.ok for figure in figures.values()), figures
    assert figures["turns that ended"].value == 16
    assert figures["kills"].value == 2
    assert figures["drops by the clients"].value >= 4
