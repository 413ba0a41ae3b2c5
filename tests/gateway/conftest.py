"""Fixtures for the tests of the gateway."""

from __future__ import annotations

import pytest

from tests.daemon import RunningGateway
from tests.gateway.aap_client import BASE_URLS, AapClient, BaseUrl


@pytest.fixture(params=BASE_URLS, ids=str)
def base(request: pytest.FixtureRequest) -> BaseUrl:
    """Each base URL of AAP, as parameters."""
    found: BaseUrl = request.param
    return found


@pytest.fixture
def aap(portico: RunningGateway, base: BaseUrl) -> AapClient:
    """An AAP client for each base URL."""
    return AapClient(portico.client, base)
