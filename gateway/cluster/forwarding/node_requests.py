"""ASGI middleware of a node: checks requests that other nodes forward, and forwards those whose session another node has.

A request is forwarded once its handler has raised SessionElsewhere, which it does before anything has changed. Its body is kept
until the response begins. A node never forwards a request that was forwarded to it: it responds with 421, and the sender looks
again for the node of the session.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import Gateway
from gateway.cluster.forwarding.followed_updates import FollowedUpdates
from gateway.cluster.forwarding.forwarded_response import NOT_VERIFIED, ForwardedResponse, Outcome
from gateway.cluster.forwarding.kept_body import KeptBody
from gateway.cluster.forwarding.node_client import NodeClient
from gateway.cluster.forwarding.node_request import (
    NODE_REQUEST,
    OTHER_NODES,
    ForwardedRequest,
    NodeRequest,
)
from gateway.cluster.forwarding.wire import CALLER, MOVED, PROOF, REFUSED, SIGNATURE, target
from gateway.cluster.node_keys import NodeKeys, ReceivedSignature
from gateway.errors import Unauthorized
from gateway.security.authentication import FORWARDED_BY, FORWARDED_CALLER, FORWARDED_TO, Caller, request_is_forwarded

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Times that a request is forwarded while its session moves from node to node."""
RETRY_SECONDS = 10
"""Seconds after which the sessions of a node that is gone are at another one."""
_SIGNED = (SIGNATURE, CALLER)


class NodeRequests:
    """The middleware. `gateway.node_keys` are there before the first request."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway
        self._client = NodeClient()
        self._open: defaultdict[str, set[ForwardedResponse]] = defaultdict(set)
        """The forwarded requests at each other node."""
        self._count = gateway.metrics.forwarded_requests()
        gateway.close_last.append(self.close)
        gateway.on_node_lost.append(self.end_requests_to)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif any(name in _SIGNED for name, _ in scope["headers"]):
            await self._forwarded(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._from_client(scope, receive, send)

    async def close(self) -> None:
        """End the requests at other nodes, because the gateway shuts down. Their runs continue."""
        for node_id in list(self._open):
            self.end_requests_to(node_id)
        await self._client.close()

    def end_requests_to(self, node_id: str) -> None:
        """End the requests at a node that has lost its sessions, as if it had ended."""
        for response in list(self._open.get(node_id, ())):
            response.end()

    @property
    def _keys(self) -> NodeKeys:
        keys = self._gateway.node_keys
        assert keys is not None
        return keys

    # -- requests of other nodes ------------------------------------------------------------------------------------------

    async def _forwarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        replay = receive
        try:
            received = self._received(scope)
            if scope["type"] == "http":
                body = KeptBody(receive)
                if hashlib.sha256(await body.whole()).hexdigest() != received.digest:
                    raise Unauthorized("Portico-Node: the body is not the one that was signed")
                body.rewind()
                replay = body.receive
        except Unauthorized as error:
            log.warning("refused: %s", error)
            return await _refuse(str(error), scope, receive, send)
        except HTTPException as error:
            return await _respond_to(error, scope, receive, send)
        except ClientDisconnect:
            return
        request = NodeRequest()
        scope["headers"] = [header for header in scope["headers"] if header[0] not in _SIGNED]
        scope[FORWARDED_CALLER], scope[FORWARDED_BY], scope[NODE_REQUEST] = received.caller, received.node, request
        proving = _proving(send, self._keys, received, body if scope["type"] == "http" else None)
        token = request_is_forwarded.set(True)
        try:
            await self._app(scope, replay, proving)
        finally:
            request_is_forwarded.reset(token)
        if (forwarded := request.take()) is not None:
            forwarded.quotas.release()
            text = f"another node has it by now: {forwarded.node_id}"
            await JSONResponse({"error": text}, MOVED)(scope, receive, proving)

    def _received(self, scope: Scope) -> ReceivedSignature:
        given = [[value.decode("latin-1") for name, value in scope["headers"] if name == wanted] for wanted in _SIGNED]
        if [len(values) for values in given] != [1, 1]:
            raise Unauthorized("Portico-Node, Portico-Caller: only nodes of this cluster send these headers, each of them once")
        method = scope["method"] if scope["type"] == "http" else "GET"
        return self._keys.check(method, target(scope), given[0][0], given[1][0])

    # -- requests of clients ----------------------------------------------------------------------------------------------

    async def _from_client(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, request = KeptBody(receive), NodeRequest()
        scope[NODE_REQUEST], scope[OTHER_NODES] = request, self._with_updates
        before = dict(scope)

        async def begun(message: Message) -> None:
            body.drop()
            await send(message)

        unreachable: tuple[str, str] | None = None
        outcome: Outcome | None = None
        for _ in range(MAX_ATTEMPTS):
            await self._app(scope, body.receive, begun)
            forwarded = request.take()
            if forwarded is None:
                return
            node = forwarded.node_id
            try:
                if (node, forwarded.address) == unreachable:
                    break
                scope[FORWARDED_TO] = node
                outcome = await self._forward(forwarded, body, scope, receive, begun)
            except HTTPException as error:
                return await _respond_to(error, scope, receive, begun)
            except ClientDisconnect:
                return
            finally:
                forwarded.quotas.release()
            if outcome == "unreachable" and self._client.closed:
                return await _respond_unavailable("this node shuts down; send the request again", 1, scope, receive, begun)
            await self._note(node, outcome)
            if outcome not in ("moved", "unreachable", "refused"):
                return
            unreachable = (node, forwarded.address) if outcome != "moved" else None
            # The handler looks again for the node.
            scope.clear()
            scope.update(before)
            body.rewind()
        await _respond_failed(outcome, scope, receive, begun)

    def _with_updates(self, scope: Scope, caller: Caller, own: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        gateway = self._gateway
        if gateway.node is None:
            return own
        followed = FollowedUpdates(self._client, self._keys, gateway.node.directory, gateway.clock, target(scope), caller)
        return followed.merged(own)

    async def _note(self, node: str, outcome: Outcome) -> None:
        if self._gateway.node is None:
            return
        if outcome in ("unreachable", "refused", "unproven"):
            # A node that gets nothing has no load: it would be chosen for what is new again and again.
            self._gateway.node.directory.unreachable(node)
        elif outcome == "moved":
            # It may be drained since the last heartbeat.
            await self._gateway.node.directory.look_again()

    async def _forward(self, forwarded: ForwardedRequest, body: KeptBody, scope: Scope, receive: Receive, send: Send) -> Outcome:
        response = ForwardedResponse(self._client, self._keys, forwarded, body, scope, receive, send)
        responses = self._open[forwarded.node_id]
        responses.add(response)
        outcome: Outcome = "disconnected"
        try:
            outcome = await response.relay()
            return outcome
        finally:
            self._count(outcome)
            responses.discard(response)


def _proving(send: Send, keys: NodeKeys, received: ReceivedSignature, body: KeptBody | None) -> Send:
    """Add the proof of this node to the head of a response, or to that of a WebSocket. The body is not kept from then on."""

    async def proving(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            proof = keys.proof(received, message.get("status", 101))
            message = {**message, "headers": [*message.get("headers", ()), (PROOF, proof.encode())]}
            if body is not None:
                body.drop()
        await send(message)

    return proving


async def _refuse(text: str, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse({"error": text}, REFUSED)
    if scope["type"] == "websocket":
        start = {"type": "websocket.http.response.start", "status": REFUSED, "headers": response.raw_headers}
        await send(start)
        return await send({"type": "websocket.http.response.body", "body": response.body})
    await response(scope, receive, send)


async def _respond_to(error: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a body that is too large or too slow."""
    await JSONResponse({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))(scope, receive, send)


async def _respond_failed(outcome: Outcome | None, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a request that no node has begun. `outcome` is that of the last attempt."""
    if outcome == "refused":
        return await JSONResponse({"error": NOT_VERIFIED}, 502)(scope, receive, send)
    if outcome == "unreachable":
        text, seconds = "its node cannot be reached, and another one has its sessions soon; send the request again", RETRY_SECONDS
    else:
        text, seconds = "it moves from node to node; send the request again", 1
    await _respond_unavailable(text, seconds, scope, receive, send)


async def _respond_unavailable(text: str, seconds: int, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({"error": text}, 503, {"Retry-After": str(seconds)})(scope, receive, send)
