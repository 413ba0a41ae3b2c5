"""Every test of the store runs on each kind of database, unless it is marked `sqlite_only`: it is about a file then."""

from __future__ import annotations

import pytest

from tests.stores import KINDS


@pytest.fixture(autouse=True)
def on_each_store(store_kind: str) -> None:
    """Every test uses `store_kind`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the kinds of databases that it is for."""
    if metafunc.definition.get_closest_marker("sqlite_only") is None:
        metafunc.parametrize("store_kind", KINDS, indirect=True)
