"""OpenAPI metadata of the ACP routes for `/openapi.json`. The messages have the protocol's own schema, which is not repeated."""

from __future__ import annotations

from typing import Any

from gateway.protocols.route_metadata import EventStreamMetadata, openapi_extra

MESSAGE = {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}}, "required": ["jsonrpc"]}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}}
INITIALIZED = {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


HEADERS = {
    "parameters": [
        _header("Acp-Connection-Id", "The header of the answer to `initialize`; required for all other messages."),
        _header("Acp-Session-Id", "The session of the message or of the stream."),
    ]
}
BATCH: dict[int | str, dict[str, Any]] = {501: {"description": "A batch of messages, which the protocol does not support."}}
NO_STREAM: dict[int | str, dict[str, Any]] = {406: {"description": "The client does not accept server-sent events."}}
SEND: dict[str, Any] = {**openapi_extra({"The first message": INITIALIZE}, {200: INITIALIZED}), **HEADERS}
SEND["requestBody"]["required"] = True
SEND["requestBody"]["content"]["application/json"]["schema"] = MESSAGE
SEND["responses"]["200"]["description"] = "The answer to `initialize`; its header Acp-Connection-Id names the connection."
SEND["responses"]["200"]["content"]["application/json"]["schema"] = MESSAGE
LISTEN = {
    **openapi_extra(
        stream=EventStreamMetadata(
            "Server-sent events without names. The data of each is a message of the agent.",
            'data: {"jsonrpc":"2.0","id":1,"result":{"sessionId":"sess_x"}}\n\n',
            {"": MESSAGE},
        )
    ),
    **HEADERS,
}
