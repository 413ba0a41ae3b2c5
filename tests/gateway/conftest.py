"""Fixtures for the tests of the gateway."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.http.request_head import RequestHead
from tests.support import cluster, stores
from tests.support.aap_client import BASE_URLS, AapClient, BaseUrl
from tests.support.daemon import RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.stores import KINDS

LONG = BASE_URLS[:-1]
"""The earlier versions: all have the same turns and differ in paths and shapes, which test_versions.py has in each run."""


@pytest.fixture(params=[pytest.param(one, marks=pytest.mark.long if one in LONG else ()) for one in BASE_URLS], ids=str)
def base(request: pytest.FixtureRequest) -> BaseUrl:
    """Each base URL of AAP, as parameters; `make test` has version 3."""
    found: BaseUrl = request.param
    return found


@pytest.fixture
def aap(portico: RunningGateway) -> AapClient:
    """A client of AAP. What the earlier versions have is in test_versions.py."""
    return AapClient(portico.client)


@pytest.fixture
def play(portico: RunningGateway, write_scenario: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a scenario with these turns that of the agent `script` of `portico`, for sessions and tasks from now on."""

    def choose(*turns: Any) -> None:
        options = portico.gateway.agents.get("script").settings.options
        monkeypatch.setitem(options, "scenario", write_scenario(*turns, name=f"scene-{next(numbers)}.json"))

    numbers = itertools.count()
    return choose


@pytest.fixture
def head_clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the time that clients have for the heads of their requests, which stands still until the test turns it."""
    clock = ManualClock()
    monkeypatch.setattr(RequestHead, "clock", clock)
    return clock


@pytest.fixture(params=KINDS)
def each_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kind of database, as parameters. Tests of several subjects use it, so that a run of all tests has PostgreSQL too."""
    if request.param != "sqlite" and request.node.get_closest_marker("sqlite_only"):
        pytest.skip("is about an SQLite file")
    with stores.use(request.param):
        yield request.param


@pytest.fixture(params=["one daemon", *(pytest.param(name, marks=pytest.mark.long) for name in cluster.PLACEMENTS)])
def also_in_a_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """One gateway, and two nodes with each placement, as parameters. Some tests of each protocol use it.

    The nodes are in `make test-long`: what is forwarded has its own tests, in tests/gateway/nodes.
    """
    with cluster.use(request.param if request.param in cluster.PLACEMENTS else None):
        yield
