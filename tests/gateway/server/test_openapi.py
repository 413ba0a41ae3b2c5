"""`/openapi.json`: descriptions, examples and errors of all operations, and a generated client."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.aap_client import BASE_URLS
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session

Document = dict[str, Any]
SECRET_FREE = {"get /healthz", "get /readyz", "post /v1/sign-ins", *(f"get {base.url}/meta" for base in BASE_URLS)}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    async def read() -> Document:
        async with run_gateway(gateway_config(tmp_path_factory.mktemp("openapi"))) as portico:
            return dict((await portico.client.get("/openapi.json")).json())

    return asyncio.run(read())


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (method, path, operation) of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def examples(document: Document, content: dict[str, Any]) -> list[Any]:
    """Return the example of a body, or the examples of its schema."""
    if "example" in content:
        return [content["example"]]
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    schema = document["components"]["schemas"][name] if name else content["schema"]
    return list(schema.get("examples", ()))


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


async def test_schemas_that_are_named_exist(document: Document) -> None:
    def names(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            for value in part.values():
                yield from names(value)
        elif isinstance(part, list):
            for value in part:
                yield from names(value)

    missing = set(names(document)) - {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert not missing


async def test_every_operation_has_a_description_and_examples(document: Document) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}: give the model `examples` in its `json_schema_extra`, or the response an example"
        assert operation["description"], where
        if "requestBody" in operation:
            assert examples(document, operation["requestBody"]["content"]["application/json"]), where
        good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        assert good, where
        for answer in good:
            assert answer["description"], where
            assert all(examples(document, content) for content in answer.get("content", {}).values()), where


async def test_examples_are_valid_against_their_schemas(document: Document) -> None:
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            check(document, {"$ref": f"#/components/schemas/{name}"}, example)
    for _, _, operation in operations(document):
        for answer in (operation.get("requestBody", {}), *operation["responses"].values()):
            content = answer.get("content", {}).get("application/json")
            if content is not None:
                for example in examples(document, content):
                    check(document, content["schema"], example)


async def test_events_in_examples_of_streams_match_one_event_of_the_schema(document: Document) -> None:
    for method, path, operation in operations(document):
        for answer in operation["responses"].values():
            content = answer.get("content", {}).get("text/event-stream")
            for event in events(content["example"]) if content else ():
                check(document, content["itemSchema"], event)
                [data] = [one["properties"]["data"] for one in content["itemSchema"]["oneOf"] if matches(one, event)]
                if "contentSchema" in data:
                    check(document, data["contentSchema"], json.loads(event["data"]))
                    # What a generated client yields.
                    check(document, content["schema"], json.loads(event["data"]))
                else:
                    assert event["data"] == "[DONE]", (method, path)


async def test_turns_have_an_operation_that_streams(document: Document) -> None:
    turns = {
        f"{base.url}/session{'s' * (base.version == 3)}/{{session_id}}{'/turns' * (base.version == 3)}" for base in BASE_URLS
    }
    assert {path for path in document["paths"] if "#" in path} == {f"{path}#stream" for path in turns}
    for path in turns:
        either, stream = (document["paths"][name]["post"] for name in (path, f"{path}#stream"))
        assert stream["operationId"] == f"{either['operationId']}_stream"
        content = either["responses"]["200"]["content"]
        assert stream["responses"]["200"]["content"] == {"text/event-stream": content["text/event-stream"]}
        assert {*content} == {"application/json", "text/event-stream"}
        schema = stream["requestBody"]["content"]["application/json"]["schema"]
        check(document, schema, {"stream": "delta", "messages": [{"role": "user", "content": "hi"}]})
        for refused in ({}, {"stream": "none"}):
            with pytest.raises(jsonschema.ValidationError):
                check(document, schema, {**refused, "messages": [{"role": "user", "content": "hi"}]})


def events(stream: str) -> list[dict[str, str]]:
    """Return the names and the data of server-sent events."""
    fields = (dict(line.split(": ", 1) for line in block.splitlines()) for block in stream.split("\n\n") if block)
    return [{name: value for name, value in event.items() if name != "id"} for event in fields]


def matches(schema: dict[str, Any], event: dict[str, str]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(event)


async def test_example_requests_are_accepted(portico: RunningGateway, document: Document) -> None:
    """Replies to tool calls are rejected, because no call is pending."""
    session = (await create_session(portico.client, "echo"))["sessionId"]
    conversation = (await portico.client.post("/v1/conversations", json={})).json()["id"]
    names = {"session_id": session, "agent": "echo", "conversation_id": conversation}
    for method, path, operation in operations(document):
        if "requestBody" not in operation or "/queue" in path:
            continue
        for body in examples(document, operation["requestBody"]["content"]["application/json"]):
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


async def test_example_requests_of_the_queue_are_accepted(portico: RunningGateway, document: Document) -> None:
    """User messages are queued. Nothing else is, and the ids of the examples are no queued messages."""
    session = (await create_session(portico.client, "echo"))["sessionId"]
    requests = [
        (method, path, body)
        for method, path, operation in operations(document)
        if "/queue" in path and "requestBody" in operation
        for body in examples(document, operation["requestBody"]["content"]["application/json"])
    ]
    found = set[tuple[str, int]]()
    for method, path, body in requests:
        answer = await portico.client.request(method, path.format(session_id=session, message_id="x"), json=body)
        found.add((method, answer.status_code))
    assert found == {("post", 201), ("post", 400), ("put", 409), ("patch", 404)}


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
                    message_id="x",
                ),
                json=content,
            )
            key_required = answer.status_code == 401
            assert key_required == bool(operation.get("security")), (method, path)
            # Its body may have a key that is not valid.
            assert ("401" in operation["responses"]) == (key_required or path == "/v1/sign-ins"), (method, path)
            assert key_required == (f"{method} {path}" not in SECRET_FREE)


async def test_errors_are_documented_with_the_error_schema(document: Document) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for method, path, operation in operations(document):
        answers = operation["responses"]
        assert "422" not in answers, (method, path)
        if "requestBody" in operation:
            assert {"400", "413", "503"} <= answers.keys(), (method, path)
        if "{" in path:
            assert "404" in answers, (method, path)
        for status in {status for status in answers if not status.startswith("2")}:
            if (path, status) == ("/readyz", "503"):
                continue
            assert answers[status]["description"], (method, path, status)
            assert _is_error(path, answers[status]["content"]["application/json"]["schema"]), (method, path, status)


def _is_error(path: str, schema: dict[str, Any]) -> bool:
    """Whether a schema is that of the errors of the API that a path belongs to."""
    names = {one["$ref"].rpartition("/")[2] for one in schema.get("oneOf", [schema])}
    if path.startswith("/v1/models"):
        return names == {"OpenAIErrorResponse", "AnthropicErrorResponse"}
    if path.startswith("/v1/messages"):
        return names == {"AnthropicErrorResponse"}
    vendors = ("/v1/chat/", "/v1/responses", "/v1/conversations")
    return names == {"OpenAIErrorResponse" if path.startswith(vendors) else "ErrorResponse"}


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
    create_turn_stream = importlib.import_module("portico_client.api.aap_v_3.aap_v3_create_turn_stream")
    execute = importlib.import_module("portico_client.api.output_event_gateway.outputevent_gateway_execute")
    request = models.CreateSessionRequest.from_dict(
        {"agent": {"name": "echo"}, "stream": "none", "messages": [{"role": "user", "content": "by a generated client"}]}
    )
    async with client:
        answer = await create_session.asyncio(client=client, body=request)
        assert answer.stop_reason == "end_turn"
        found = await get_session.asyncio(session_id=answer.session_id, client=client)
        assert [message.content for message in found.history.full] == ["by a generated client"] * 2
        streamed = models.PostSessionTurnRequestStreaming.from_dict(
            {"stream": "delta", "messages": [{"role": "user", "content": "again"}]}
        )
        turn = await create_turn_stream.asyncio(session_id=answer.session_id, client=client, body=streamed)
        assert isinstance(turn, str) and turn.startswith("event: turn_start") and "event: turn_stop" in turn
        task = await execute.asyncio(client=client, body=models.ExecuteRequest(driver="echo", task="hello"))
        assert isinstance(task, str) and '"kind":"session_end"' in task
        refused = await get_session.asyncio(session_id="none", client=client)
        assert isinstance(refused, models.ErrorResponse) and "no session" in refused.error
