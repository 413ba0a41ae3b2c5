"""One request that is forwarded to another node, and its response, which is relayed as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from aiohttp import ClientResponse
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.cluster.forwarding.kept_body import KeptBody
from gateway.cluster.forwarding.node_client import NodeBroken, NodeClient, NodeUnreachable
from gateway.cluster.forwarding.node_request import ForwardedRequest
from gateway.cluster.forwarding.wire import CALLER, MOVED, PROOF, REFUSED, SIGNATURE, target
from gateway.cluster.node_keys import NodeKeys, SentSignature
from gateway.errors import Unauthorized
from gateway.observability.logs import request_id

log = logging.getLogger(__name__)

Outcome = Literal["answered", "moved", "unreachable", "refused", "unproven", "broken", "disconnected", "ended"]
"""`moved`, `unreachable` and `refused` have begun nothing: the request may be handled anew. All others have responded."""
NOT_VERIFIED = "the node that has this session could not be verified; the log of this node has the reason"

_NOT_FORWARDED = frozenset(
    {
        # Of one connection (RFC 9110, 7.6.1), or set anew.
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
        b"host", b"content-length", b"x-request-id",
        # What has authenticated the client. The other node does not need it.
        b"authorization", b"proxy-authorization", b"cookie", b"x-api-key", b"x-portico-sign-in", SIGNATURE, CALLER,
        # Checked by the node that a web page is connected to.
        b"origin", b"referer", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user",
        b"access-control-request-method", b"access-control-request-headers",
    }
)  # fmt: skip
_NOT_RELAYED = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"date",
        b"server", PROOF,
        # Added by the middleware of this node, too.
        b"x-request-id", b"request-id", b"x-content-type-options", b"cross-origin-resource-policy", b"vary",
        b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers",
    }
)  # fmt: skip


class ForwardedResponse:
    """Forwards the request of `scope` to the node of `forwarded`, and sends its response by `send`.

    `end` ends it as if that node had ended.
    """

    def __init__(
        self,
        client: NodeClient,
        keys: NodeKeys,
        forwarded: ForwardedRequest,
        body: KeptBody,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._client, self._keys, self._request, self._body = client, keys, forwarded, body
        self._scope, self._receive, self._send = scope, receive, send
        self._node = forwarded.node_id
        self._begun = self._complete = self._ended = self._cancelled = False
        self._task: asyncio.Task[object] | None = None

    async def relay(self) -> Outcome:
        """Return the outcome once the response is sent, or the client is gone. Raises ClientDisconnect."""
        body = await self._body.whole()
        if self._ended:
            # Nothing was sent to it.
            return "unreachable"
        signed = self._keys.sign(self._node, self._scope["method"], target(self._scope), body, self._request.caller)
        task = self._task = asyncio.current_task()
        assert task is not None
        disconnecting = asyncio.create_task(self._cancel_on_disconnect())
        try:
            forwarding = self._forward(signed, body)
            # A stream may last for hours.
            del body
            return await forwarding
        except asyncio.CancelledError:
            if not self._cancelled or task.uncancel():
                raise
            if not self._ended:
                return "disconnected"
            return await self._broken("it has lost its sessions, or this node shuts down")
        finally:
            self._task = None
            disconnecting.cancel()

    def end(self) -> None:
        """Close the connection to the other node. The client gets what it gets if that node has ended."""
        self._ended = self._ended or not self._cancelled
        self._cancel()

    def _cancel(self) -> None:
        """Close the connection to the other node, which notices then that its client is gone."""
        if self._task is not None and not self._complete and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def _forward(self, signed: SentSignature, body: bytes) -> Outcome:
        address, headers = self._request.address, request_headers(self._scope["headers"], signed)
        requesting = self._client.request(address, self._scope["method"], target(self._scope), headers, body)
        del body
        try:
            async with requesting as response:
                problem = unproven(self._keys, signed, response)
                if problem is None and response.status == MOVED:
                    return "moved"
                if problem is None:
                    last = await self._relay_body(response)
        except NodeUnreachable as error:
            log.warning("the node %s cannot be reached: %s", self._node, error)
            return "unreachable"
        except NodeBroken as error:
            return await self._broken(str(error))
        # The connection to the other node is free for another request by now, however slowly the client reads.
        if problem is not None:
            return await self._refuse(problem, response.status)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        return "answered"

    async def _relay_body(self, response: ClientResponse) -> bytes:
        """Send the response but for its last bytes, which are returned."""
        headers = [header for header in _headers(response) if header[0] not in _NOT_RELAYED]
        is_stream = all(name != b"content-length" for name, _ in headers)
        check = self._request.check if is_stream else None
        self._begun = True
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        with suppress(Unauthorized):
            while chunk := await response.content.readany():
                if check is not None:
                    await check()
                if response.content.at_eof():
                    self._complete = True
                    return chunk
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._complete = True
        return b""

    async def _refuse(self, problem: str, status: int) -> Outcome:
        log.error("the answer of the node %s to a forwarded request is refused: %s", self._node, problem)
        if status == REFUSED:
            # That node has other keys, another id or another time, and has done nothing.
            return "refused"
        await self._respond(NOT_VERIFIED)
        return "unproven"

    async def _broken(self, problem: str) -> Outcome:
        log.warning("a forwarded request has lost the node %s: %s", self._node, problem)
        if not self._begun:
            await self._respond("the node of this session has ended before its answer; look what was done before you repeat it")
        # The guard cuts off an incomplete response, as if this gateway had been killed.
        return "broken"

    async def _respond(self, text: str) -> None:
        self._complete = True
        await JSONResponse({"error": text}, 502)(self._scope, self._receive, self._send)

    async def _cancel_on_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()


def unproven(keys: NodeKeys, signed: SentSignature, response: ClientResponse) -> str | None:
    """Return why a response is not that of a node with the key; None if it is."""
    proofs = [value for name, value in _headers(response) if name == PROOF]
    if len(proofs) != 1:
        return f"it has the status {response.status} and no proof of the node key; compare the keys, addresses and clocks"
    if not keys.is_proof(signed, response.status, proofs[0].decode("latin-1")):
        return f"the proof of its status {response.status} is not made with the node key"
    return None


def _headers(response: ClientResponse) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in response.raw_headers]


def request_headers(given: Iterable[tuple[bytes, bytes]], signed: SentSignature) -> list[tuple[bytes, bytes]]:
    named = {name.strip().lower() for key, value in given if key == b"connection" for name in value.split(b",")}
    # First: the other node admits more headers for it (`NODE_HEADERS`).
    headers = [(SIGNATURE, signed.signature.encode()), (CALLER, signed.caller.encode())]
    headers += [header for header in given if header[0] not in _NOT_FORWARDED and header[0] not in named]
    if (current := request_id.get()) is not None:
        headers.append((b"x-request-id", current.encode()))
    return headers
