"""Whether the request at work was forwarded by another node: such a request is never forwarded again."""

from __future__ import annotations

from contextvars import ContextVar

request_is_forwarded: ContextVar[bool] = ContextVar("request_is_forwarded", default=False)
