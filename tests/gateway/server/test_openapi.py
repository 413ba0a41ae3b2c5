"""`/openapi.json`: descriptions, examples and errors of all operations, and a generated client."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.daemon import KEY, RunningGateway
from tests.gateway.aap_client import BASE_URLS
from tests.gateway.requests import create_session

Document = dict[str, Any]
SECRET_FREE = {"get /healthz", "get /readyz", "post /v1/sign-ins", *(f"get {base.url}/meta" for base in BASE_URLS)}


@pytest.fixture
async def document(portico: RunningGateway) -> Document:
    return dict((await portico.client.get("/openapi.json")).json())


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (method, path, operation) of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def check(document: Document, schema: dict[str, Any], value: Any) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


async def test_version_is_3_1_and_names_are_unique(document: Document) -> None:
    assert document["openapi"].startswith("3.1")
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names) >= 11
    assert all(name.isidentifier() for name in names)
    used = {tag for _, _, operation in operations(document) for tag in operation["tags"]}
    assert {tag["name"] for tag in document["tags"]} == used
    assert all(tag["description"] != tag["name"] for tag in document["tags"]), (
        "gateway/server/openapi.py: describe the new tag in TAGS"
    )


async def test_every_operation_has_a_description_and_examples(document: Document) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}: declare examples with `openapi_extra` (gateway/protocols/route_metadata.py)"
        assert operation["description"], where
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["examples"], where
        good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        assert good, where
        for answer in good:
            assert answer["description"], where
            assert all("example" in content for content in answer.get("content", {}).values()), where


async def test_examples_are_valid_against_their_schemas(document: Document) -> None:
    checked = 0
    for _, _, operation in operations(document):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for example in content["examples"].values():
                check(document, content["schema"], example["value"])
                checked += 1
        for answer in operation["responses"].values():
            for kind, content in answer.get("content", {}).items():
                if kind == "application/json":
                    check(document, content["schema"], content["example"])
                    checked += 1
    assert checked >= 15


async def test_example_requests_are_accepted(portico: RunningGateway, document: Document) -> None:
    """Replies to tool calls are rejected, because no call is pending."""
    session = (await create_session(portico.client, "echo"))["sessionId"]
    conversation = (await portico.client.post("/v1/conversations", json={})).json()["id"]
    names = {"session_id": session, "agent": "echo", "conversation_id": conversation}
    for method, path, operation in operations(document):
        for example in (
            operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples", {}).values()
        ):
            body = example["value"]
            answer = await portico.client.request(method, path.format(**names), json=body)
            messages = body.get("messages")
            if isinstance(messages, list) and any(message["role"].startswith("tool") for message in messages):
                assert (answer.status_code, "no tool call is pending" in answer.text) == (400, True), (method, path, answer.text)
                continue
            if path == "/v1/sign-ins":
                assert answer.status_code == 401, "its examples have neither a code nor a key that is valid"
                continue
            if "/worktrees/" in path:
                assert (answer.status_code, "no worktree" in answer.text) == (404, True), "the session has none"
                continue
            assert answer.status_code in (200, 201), (method, path, answer.text)
            documented = operation["responses"][str(answer.status_code)]["content"]
            assert answer.headers["content-type"].split(";")[0] in documented, (method, path)


async def test_security_requirement_is_documented_where_a_key_is_required(portico: RunningGateway, document: Document) -> None:
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    async with httpx.AsyncClient(base_url=portico.url, timeout=60) as anybody:
        for method, path, operation in operations(document):
            content = {"driver": "echo", "task": "x"} if path == "/v1/execute" else None
            answer = await anybody.request(
                method,
                path.format(
                    id="x",
                    name="x",
                    session_id="x",
                    agent="echo",
                    model_id="echo",
                    response_id="x",
                    conversation_id="x",
                    call_id="x",
                ),
                json=content,
            )
            key_required = answer.status_code == 401
            assert key_required == bool(operation.get("security")), (method, path)
            # Its body may have a key that is not valid.
            assert ("401" in operation["responses"]) == (key_required or path == "/v1/sign-ins"), (method, path)
            assert key_required == (f"{method} {path}" not in SECRET_FREE)


async def test_errors_are_documented_with_the_error_schema(document: Document) -> None:
    schemas = document["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    for method, path, operation in operations(document):
        assert "422" not in operation["responses"], (method, path)
        if "requestBody" in operation:
            assert {"400", "413", "503"} <= operation["responses"].keys()
    for status, answer in document["components"]["responses"].items():
        content = answer["content"]["application/json"]
        if status.isdigit():
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}
        check(document, content["schema"], content["example"])
        assert answer["description"] and int(status.partition("_")[0]) >= 400


@pytest.mark.long
async def test_generated_client_creates_and_reads_a_session(
    portico: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openapi.json").write_text((await portico.client.get("/openapi.json")).text)
    command = ("generate", "--path", str(tmp_path / "openapi.json"), "--output-path", str(tmp_path / "portico_client"))
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []\n")
    generator = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "openapi_python_client", *command, "--meta", "none", "--config", str(config), "--fail-on-warning",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(generator.communicate(), 60)
    assert generator.returncode == 0, output.decode()
    monkeypatch.syspath_prepend(str(tmp_path))
    client = importlib.import_module("portico_client").AuthenticatedClient(base_url=portico.url, token=KEY)
    models = importlib.import_module("portico_client.models")
    calls = importlib.import_module("portico_client.api.aap_v_1")
    create_session = importlib.import_module(f"{calls.__name__}.aap_v1_create_session")
    get_session = importlib.import_module(f"{calls.__name__}.aap_v1_get_session")
    request = models.CreateSessionRequest.from_dict(
        {"agent": {"name": "echo"}, "stream": "none", "messages": [{"role": "user", "content": "by a generated client"}]}
    )
    async with client:
        answer = await create_session.asyncio(client=client, body=request)
        assert answer.stop_reason == "end_turn"
        found = await get_session.asyncio(session_id=answer.session_id, client=client)
        assert [message.content for message in found.history.full] == ["by a generated client"] * 2
        refused = await get_session.asyncio(session_id="none", client=client)
        assert isinstance(refused, models.ErrorResponse) and "no session" in refused.error
