"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest

from tests.daemon import Running
from tests.gateway.aap_client import BASES, Aap, Base


@pytest.fixture(params=BASES, ids=str)
def base(request: pytest.FixtureRequest) -> Base:
    """Each base URL of AAP in turn."""
    found: Base = request.param
    return found


@pytest.fixture
def aap(portico: Running, base: Base) -> Aap:
    """A client at each base URL in turn."""
    return Aap(portico.client, base)
