"""The transports are in tests/support/acp_client.py; these are its names for files that have not changed yet."""

from tests.support.acp_client import config as config
from tests.support.acp_client import on_http as on_http
from tests.support.acp_client import on_stdio as on_stdio
from tests.support.acp_client import on_websocket as on_websocket
