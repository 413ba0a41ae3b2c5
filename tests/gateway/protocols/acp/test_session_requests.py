"""The requests that open a session are read as the `acp` package reads them, without it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from acp import schema
from pydantic import BaseModel, ValidationError

from gateway.protocols.acp import session_requests

STDIO = {"name": "files", "command": "/bin/files", "args": ["-v"], "env": [{"name": "A", "value": "b", "_meta": {"x": 1}}]}
HTTP = {"type": "http", "name": "web", "url": "http://127.0.0.1:1", "headers": [{"name": "A", "value": "b"}]}
SSE = {**HTTP, "type": "sse"}
OVER_CLIENT = {"type": "acp", "name": "own", "serverId": "1"}
REQUIRED: dict[str, Any] = {"cwd": "/tmp", "sessionId": "sess_1", "mcpServers": []}
PARAMS: list[Any] = [
    REQUIRED,
    {"cwd": "/tmp"},
    {"cwd": "/tmp", "mcpServers": []},
    {"sessionId": "sess_1", "mcpServers": []},
    {**REQUIRED, "cwd": 1},
    {**REQUIRED, "sessionId": None},
    {**REQUIRED, "mcpServers": None},
    {**REQUIRED, "mcpServers": {}},
    {**REQUIRED, "mcpServers": [STDIO, HTTP, SSE, OVER_CLIENT]},
    {**REQUIRED, "mcpServers": [{**STDIO, "_meta": {"x": 1}}, {**HTTP, "_meta": {"x": 1}}]},
    {
        **REQUIRED,
        "mcpServers": [{**STDIO, "type": "stdio"}, {**STDIO, "type": "http"}, {**HTTP, **STDIO}, {**OVER_CLIENT, **STDIO}],
    },
    {**REQUIRED, "mcpServers": [{**HTTP, "type": "ftp"}, 1, {"name": "x"}, {**STDIO, "env": {}}, {**STDIO, "args": [1]}, HTTP]},
    {**REQUIRED, "mcpServers": [{**HTTP, "headers": [{"name": "A"}]}, {**OVER_CLIENT, "serverId": 1}, STDIO]},
    {**REQUIRED, "additionalDirectories": ["/a", 1, None, "/b"]},
    {**REQUIRED, "additionalDirectories": None},
    {**REQUIRED, "additionalDirectories": "/a"},
    {**REQUIRED, "_meta": {"systemPrompt": "x"}},
    {**REQUIRED, "_meta": "x"},
    {**REQUIRED, "_meta": None},
    {"cwd": "/tmp", "session_id": "sess_1", "mcp_servers": [STDIO], "additional_directories": ["/a"], "field_meta": {"x": 1}},
    [],
    "x",
]
NAMES = ["NewSessionRequest", "LoadSessionRequest", "ResumeSessionRequest", "ForkSessionRequest"]


def read(model: type[BaseModel], params: Any) -> Any:
    """Return what a model reads, or its errors."""
    try:
        return model.model_validate(params).model_dump(exclude_none=True)
    except ValidationError as error:
        return sorted((item["loc"], item["type"]) for item in error.errors())


def test_an_item_that_is_left_out_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    malformed = {**STDIO, "args": ["s3cret"], "env": {"TOKEN": "s3cret"}}
    session_requests.NewSessionRequest.model_validate({"cwd": "/tmp", "mcpServers": [STDIO, malformed]})
    [text] = caplog.messages
    assert (
        text.startswith("mcp_servers[1] of a client is malformed and left out: ") and "env: Input should be a valid list" in text
    )
    assert "s3cret" not in text


def test_requests_are_read_as_the_acp_package_reads_them() -> None:
    for name in NAMES:
        for params in PARAMS:
            assert read(getattr(session_requests, name), params) == read(getattr(schema, name), params), (name, params)


def test_a_session_is_created_without_the_acp_package() -> None:
    code = "import sys, gateway.protocols.acp.session_creation; sys.exit('acp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
