"""Every test of the store runs on each kind of database, unless it is marked `sqlite_only` or `one_store`."""

from __future__ import annotations

import pytest

from tests.stores import KINDS


@pytest.fixture(autouse=True)
def on_each_store(store_kind: str) -> None:
    """Every test uses `store_kind`."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the kinds of databases that it is for."""
    if not any(metafunc.definition.get_closest_marker(name) for name in ("sqlite_only", "one_store")):
        metafunc.parametrize("store_kind", KINDS, indirect=True)
