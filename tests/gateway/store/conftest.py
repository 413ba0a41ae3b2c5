"""Every test of the store runs on each kind of database, unless it is marked `sqlite_only` or `one_store`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.store.backend import Backend
from tests.support.stores import KINDS, recorded_commits


@pytest.fixture(autouse=True)
def on_each_store(store_kind: str) -> None:
    """Every test uses `store_kind`."""


@pytest.fixture
def commits() -> Iterator[list[Backend]]:
    """The transactions that are committed from here on."""
    with recorded_commits() as found:
        yield found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the kinds of databases that it is for."""
    if not any(metafunc.definition.get_closest_marker(name) for name in ("sqlite_only", "one_store")):
        metafunc.parametrize("store_kind", KINDS, indirect=True)
