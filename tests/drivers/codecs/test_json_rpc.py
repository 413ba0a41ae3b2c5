"""The JSON-RPC peer: ids, written lines, and responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from drivers.codecs.json_rpc import JsonRpcPeer, RpcError, as_json
from drivers.contract.events import OutputEvent, Title


class Model(BaseModel):
    session_id: str = Field(serialization_alias="sessionId")
    absent: str | None = None


def received(outbox: bytearray) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bytes(outbox).splitlines()]


def title(result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
    return [Title(text=error.describe() if error else str(result))]


def test_each_message_is_a_line() -> None:
    peer = JsonRpcPeer(outbox := bytearray())
    peer.request("a", Model(session_id="s"), title)
    peer.request("b", {"x": None}, title)
    peer.notify("c")
    peer.notify("d", {})
    peer.respond("e", {"y": 1})
    peer.respond_error(7, -32601, "no such method")
    assert received(outbox) == [
        {"jsonrpc": "2.0", "id": 1, "method": "a", "params": {"sessionId": "s"}},
        {"jsonrpc": "2.0", "id": 2, "method": "b", "params": {"x": None}},
        {"jsonrpc": "2.0", "method": "c"},
        {"jsonrpc": "2.0", "method": "d", "params": {}},
        {"jsonrpc": "2.0", "id": "e", "result": {"y": 1}},
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "no such method"}},
    ]


def test_the_version_can_be_left_out() -> None:
    peer = JsonRpcPeer(outbox := bytearray(), version=None)
    peer.notify("a")
    assert received(outbox) == [{"method": "a"}]


def test_a_response_is_passed_on_once_to_its_request() -> None:
    peer = JsonRpcPeer(bytearray())
    peer.request("a", {}, title)
    peer.request("b", {}, lambda result, error: [])
    assert peer.receive_response({"id": 2, "result": {}}) == []
    assert peer.receive_response({"id": 1, "result": {"x": 1}}) == [Title(text="{'x': 1}")]
    assert peer.receive_response({"id": 1, "result": {"x": 1}}) is None


@pytest.mark.parametrize("request_id", [None, "1", [1], {}, 1.5, 99])
def test_a_response_to_no_request_gives_none(request_id: object) -> None:
    peer = JsonRpcPeer(bytearray())
    peer.request("a", {}, title)
    assert peer.receive_response({"id": request_id, "result": {}}) is None


def test_a_message_without_an_id_is_no_response() -> None:
    with pytest.raises(KeyError):
        JsonRpcPeer(bytearray()).receive_response({"result": {}})


@pytest.mark.parametrize("result", [None, 1, "x", []])
def test_a_result_that_is_no_object_is_empty(result: object) -> None:
    peer = JsonRpcPeer(bytearray())
    peer.request("a", {}, title)
    assert peer.receive_response({"id": 1, "result": result}) == [Title(text="{}")]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"code": -32000, "message": "log in"}, "log in (code -32000)"),
        ({"code": 1, "message": "failed", "data": {"details": "no file"}}, "failed: no file (code 1)"),
        ({"code": 1, "message": "failed", "data": {"message": "no file"}}, "failed: no file (code 1)"),
        ({"code": 1, "message": "failed", "data": "no file"}, "failed: no file (code 1)"),
        ({"code": 1, "message": "failed: no file", "data": "no file"}, "failed: no file (code 1)"),
        ({"code": 1, "message": "failed", "data": [1]}, "failed (code 1)"),
        ({"message": "failed"}, "failed (code -32603)"),
        ({"code": 1}, "{'code': 1} (code -32603)"),
        ("failed", "failed (code -32603)"),
    ],
)
def test_an_error_of_any_shape_has_a_text(error: object, text: str) -> None:
    peer = JsonRpcPeer(bytearray())
    peer.request("a", {}, title)
    assert peer.receive_response({"id": 1, "error": error}) == [Title(text=text)]


def test_a_model_has_the_names_of_the_wire() -> None:
    assert as_json(Model(session_id="s")) == {"sessionId": "s"}
    assert as_json({"absent": None}) == {"absent": None}
