"""A compressed request body, decoded while it arrives: the app reads it as if its client had sent it so."""

from __future__ import annotations

import zlib

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

ENCODINGS = ("gzip", "deflate")
"""The values of `Content-Encoding` that are decoded."""
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def decoded(scope: Scope, receive: Receive, limit: int, name: str) -> Receive:
    """Return how the app receives a request's body; removes from the headers what says that it is compressed.

    To receive raises HTTPException for a body of more than `limit` decoded bytes (413, with the `name` of the limit), for one of
    another encoding (415), and for one that is damaged (400).
    """
    encoding = Headers(scope=scope).get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return receive
    if encoding not in (*ENCODINGS, "x-gzip"):
        return _Refused(encoding).receive
    # The length is that of the compressed body.
    given = [(key, value) for key, value in scope["headers"] if key not in (b"content-encoding", b"content-length")]
    scope["headers"] = [*(pair for pair in given if pair[0] != b"transfer-encoding"), (b"transfer-encoding", b"chunked")]
    return _Decoder(receive, limit, name).receive


class _Refused:
    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    async def receive(self) -> Message:
        raise HTTPException(
            415,
            f"Content-Encoding: a body that is encoded as {self._encoding[:50]!r} cannot be read here; send it without, or as "
            f"{' or '.join(ENCODINGS)}",
            {"Accept-Encoding": ", ".join(ENCODINGS)},
        )


class _Decoder:
    def __init__(self, receive: Receive, limit: int, name: str) -> None:
        self._receive, self._limit, self._name = receive, limit, name
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._size, self._over = 0, False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or self._over:
            return message
        try:
            data = self._decode(message.get("body", b""))
        except zlib.error as error:
            raise HTTPException(400, f"the body is not what its Content-Encoding says: {error}") from None
        more = message.get("more_body", False)
        self._over = not more
        if self._zlib.unused_data:
            raise HTTPException(400, "the body is not what its Content-Encoding says: it goes on behind its end")
        if not more and not self._zlib.eof and (data or self._size):
            raise HTTPException(400, "the body is not what its Content-Encoding says: it ends too early")
        self._size += len(data)
        return {"type": "http.request", "body": data, "more_body": more}

    def _decode(self, data: bytes) -> bytes:
        left = self._limit - self._size
        found = self._zlib.decompress(data, left + 1)
        if len(found) > left:
            raise HTTPException(413, f"the decoded body is larger than {self._limit} bytes ({self._name}); send less at a time")
        return found
