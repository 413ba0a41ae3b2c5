"""The Agent Client Protocol's HTTP transport for `/openapi.json`. The messages themselves are the protocol's own."""

from __future__ import annotations

from typing import Any

from gateway.protocols.openapi import EventStreamMetadata, openapi_extra

MESSAGE = {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}}, "required": ["jsonrpc"]}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}}
INITIALIZED = {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}


def _header(name: str, words: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}


HEADERS = {
    "parameters": [
        _header("Acp-Connection-Id", "Of the answer to `initialize`; needed for all else."),
        _header("Acp-Session-Id", "The session that the message or the stream is about."),
    ]
}
NOT_TAKEN: dict[int | str, dict[str, Any]] = {501: {"description": "A batch of messages, which the protocol has not."}}
NO_STREAM: dict[int | str, dict[str, Any]] = {406: {"description": "The client does not accept server-sent events."}}
SEND: dict[str, Any] = {**openapi_extra({"The first message": INITIALIZE}, {200: INITIALIZED}), **HEADERS}
SEND["requestBody"]["required"] = True
SEND["requestBody"]["content"]["application/json"]["schema"] = MESSAGE
SEND["responses"]["200"]["description"] = "The answer to `initialize`; its header Acp-Connection-Id names the connection."
SEND["responses"]["200"]["content"]["application/json"]["schema"] = MESSAGE
LISTEN = {
    **openapi_extra(
        stream=EventStreamMetadata(
            "Server-sent events without names, whose data are messages of the agent's side.",
            'data: {"jsonrpc":"2.0","id":1,"result":{"sessionId":"sess_x"}}\n\n',
            {"": MESSAGE},
        )
    ),
    **HEADERS,
}
