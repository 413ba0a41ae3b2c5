"""`initialize` without the models of the `acp` package means and contains the same as with them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from acp import PROTOCOL_VERSION
from acp.schema import AuthMethodAgent, InitializeRequest, InitializeResponse
from pydantic import ValidationError

from drivers.codecs.json_rpc import as_json
from drivers.contract.client_services import READ, TERMINAL_METHODS, WRITE
from gateway.agents.configured_agents import Agents
from gateway.config import Settings
from gateway.protocols.acp import connection as connections
from gateway.protocols.acp import initialization
from gateway.protocols.acp.client_files import MODELS
from gateway.protocols.acp.initialization import client_features, initialize_response
from gateway.protocols.acp.requests import Requests
from tests.support.acp_client import connect
from tests.support.daemon import RunningGateway


def with_capabilities(**capabilities: Any) -> dict[str, Any]:
    return {"protocolVersion": 1, "clientCapabilities": capabilities}


def test_features_and_errors_are_those_of_the_schema() -> None:
    # Features are those of the schema.
    for params in (
        {"protocolVersion": 1},
        {"protocol_version": 1, "client_capabilities": {"fs": {"read_text_file": True}}},
        {"protocolVersion": "2024-11-05", "clientCapabilities": None},
        {"protocolVersion": 1, "clientCapabilities": 3, "clientInfo": 4, "_meta": 5},
        with_capabilities(fs={"readTextFile": True, "writeTextFile": "no such flag"}, terminal="true"),
        with_capabilities(fs={"readTextFile": None, "writeTextFile": 1}, terminal=None, auth=7, positionEncodings=[8]),
        with_capabilities(fs=[], terminal=[], session={"compaction": {}}, elicitation=9),
        with_capabilities(fs={"_meta": 1, "writeTextFile": True}, other=1),
    ):
        request = InitializeRequest.model_validate(params)
        capabilities = request.model_dump(by_alias=True, warnings=False)["clientCapabilities"] or {}
        fs = capabilities.get("fs", {})
        supported = {READ: fs.get("readTextFile"), WRITE: fs.get("writeTextFile")}
        terminals = TERMINAL_METHODS if capabilities.get("terminal") else ()
        assert client_features(params).methods == {*(method for method, flag in supported.items() if flag), *terminals}, params
    # Output as that of a terminal.
    for meta, member in (
        ({"terminal_output": True}, "terminal_output"),
        ({"terminal_output": True, "terminal_output_delta": True}, "terminal_output_delta"),
        ({"terminal_output_delta": True}, "terminal_output_delta"),
        ({"terminal_output": False, "other": 1}, None),
        ({"terminal_output": []}, None),
        ("text", None),
        (None, None),
    ):
        assert client_features(with_capabilities(_meta=meta)).terminal_output == member, (meta, member)
    # Errors are those of the schema.
    for params in ([], {}, {"protocolVersion": -1}, {"protocolVersion": 65536}, "text"):
        with pytest.raises(ValidationError) as expected:
            InitializeRequest.model_validate(params)
        with pytest.raises(ValidationError) as error:
            client_features(params)
        assert error.value.errors(include_url=False) == expected.value.errors(include_url=False), params
    # Terminal methods are those that clients serve.
    assert frozenset(MODELS) == {READ, WRITE, *TERMINAL_METHODS}


def test_the_answer_is_complete_by_the_schema() -> None:
    assert initialization.PROTOCOL_VERSION == PROTOCOL_VERSION
    for agent in Agents(Settings(), environ={}):
        answer = initialize_response(agent, "1.0")
        declared = answer["agentCapabilities"]["sessionCapabilities"]
        # These are unstable, and the package (0.12.1) lacks them.
        assert [declared.pop("title"), declared.pop("status")] == [{}, {}]
        assert declared.pop("systemPrompt", None) == ({"mode": {"override": {}}} if agent.info.capabilities.system else None)
        assert as_json(InitializeResponse.model_validate(answer)) == answer
        assert all(AuthMethodAgent.model_validate(method).id == initialization.LOGIN_ID for method in answer["authMethods"])
    # A version that is not known is not a number.
    answer = initialize_response(Agents(Settings(), environ={}).get("claude"), None)
    assert answer["agentInfo"]["version"] == "unknown"
    InitializeResponse.model_validate(answer)


async def test_messages_are_handled_in_order_also_when_the_import_of_their_handlers_ends(
    portico: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = threading.Event()

    def wait_for_import() -> type[Requests]:
        assert imported.wait(60)
        return Requests

    monkeypatch.setattr(connections, "_import_requests", wait_for_import)
    handled: list[str] = []

    async def notify(requests: Requests, method: str, params: Any) -> None:
        handled.append(method)

    monkeypatch.setattr(Requests, "notify", notify)
    _, connection = connect(portico.gateway, "script")
    await connection.receive({"jsonrpc": "2.0", "method": "0"})
    await connection.receive({"jsonrpc": "2.0", "method": "1"})
    await asyncio.sleep(0)
    imported.set()
    for n in range(2, 10):
        await connection.receive({"jsonrpc": "2.0", "method": str(n)})
        await asyncio.sleep(0)
    await connection.drain(60)
    assert handled == [str(n) for n in range(10)]
    await connection.close()
