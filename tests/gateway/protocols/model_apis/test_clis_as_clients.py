"""What the codex CLI and Claude Code send by default: tools that are no functions, and content that agents do not take."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import RunningGateway
from tests.support.requests import get_history

WriteScenario = Callable[..., str]
EXEC = {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [{**EXEC, "name": "spawn_agent"}]}
HOSTED = {"type": "web_search", "external_web_access": False}
CODEX = {"tools": [EXEC, PATCH, AGENTS, HOSTED], "store": False, "include": ["reasoning.encrypted_content"]}
PDF = base64.b64encode(b"%PDF-1.4\n").decode()


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"app_tool": {"id": f"c_{name}", "name": name, "input": given}}


async def respond(portico: RunningGateway, items: Any, **fields: Any) -> Any:
    answer = await portico.client.post("/v1/responses", json={"model": "script", "input": items, **CODEX, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_calls_have_the_form_of_their_tools(portico: RunningGateway, play: Callable[..., None]) -> None:
    for stream in (False, True):
        parallel = {"parallel": [call("apply_patch", input="*** Begin Patch"), call("multi_agent_v1__spawn_agent", task="look")]}
        play([parallel, {"text": "{results.c_apply_patch}, {results.c_multi_agent_v1__spawn_agent}"}])
        answer = await respond(portico, [user("go")], stream=stream)
        assert "tools.web_search" in answer.headers["x-portico-ignored"].split(", "), stream
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")] if stream else []
        response = events[-1]["response"] if stream else answer.json()
        # A tool that only OpenAI's servers run is not among those of the response.
        assert [tool["name"] for tool in response["tools"]] == ["exec_command", "apply_patch", "multi_agent_v1"], stream
        patch, spawn = ({name: value for name, value in item.items() if name != "id"} for item in response["output"])
        assert patch == {
            "type": "custom_tool_call", "call_id": "c_apply_patch", "name": "apply_patch", "input": "*** Begin Patch",
            "status": "completed",
        }, stream  # fmt: skip
        assert spawn == {
            "type": "function_call", "call_id": "c_multi_agent_v1__spawn_agent", "name": "spawn_agent",
            "namespace": "multi_agent_v1", "arguments": '{"task":"look"}', "status": "completed",
        }, stream  # fmt: skip
        if stream:
            typed = [event for event in events if "custom_tool_call_input" in event["type"]]
            assert [(event["type"], event.get("delta", event.get("input"))) for event in typed] == [
                ("response.custom_tool_call_input.delta", "*** Begin Patch"),
                ("response.custom_tool_call_input.done", "*** Begin Patch"),
            ], stream
        outputs = [
            {"type": "custom_tool_call_output", "call_id": "c_apply_patch", "output": "patched"},
            {"type": "function_call_output", "call_id": "c_multi_agent_v1__spawn_agent", "output": "spawned"},
        ]
        after = await respond(portico, [user("go"), *response["output"], *outputs])
        assert after.headers["x-portico-session"] == answer.headers["x-portico-session"], stream
        assert after.json()["output"][-1]["content"][0]["text"] == "patched, spawned", stream
    # The agent gets functions.
    play([{"text": "hi"}])
    answer = await respond(portico, "go")
    session = await portico.gateway.sessions.get(ADMINISTRATOR, answer.headers["x-portico-session"])
    exec_command, patch, spawn = session.config.app_tools or ()
    assert exec_command.input_schema == EXEC["parameters"]
    assert (patch.name, patch.description, patch.input_schema["required"]) == ("apply_patch", "Edit files.", ["input"])
    assert "start: /.+/s" in patch.input_schema["properties"]["input"]["description"]
    assert spawn.name == "multi_agent_v1__spawn_agent"
    # A stored response has the forms too.
    play([call("apply_patch", input="text"), {"text": "ok"}])
    made = (await respond(portico, "go", store=True)).json()
    again = (await portico.client.get(f"/v1/responses/{made['id']}")).json()
    assert again["output"] == made["output"] and again["output"][0]["type"] == "custom_tool_call"
    result = {"type": "custom_tool_call_output", "call_id": "c_apply_patch", "output": "done"}
    after = await respond(portico, [result], store=True, previous_response_id=made["id"])
    assert after.json()["status"] == "completed"
    # A required call of a tool of a namespace.
    play([{"text": "no"}], {"when": "multi_agent_v1__spawn_agent", "steps": [call("multi_agent_v1__spawn_agent"), {"text": "x"}]})
    choice = {"type": "function", "name": "spawn_agent", "namespace": "multi_agent_v1"}
    answer = await respond(portico, "go", tool_choice=choice)
    assert answer.json()["output"][-1]["name"] == "spawn_agent"
    # One that only OpenAI's servers run cannot be required here.
    answer = await respond(portico, "go", tool_choice={"type": "web_search"})
    assert "tool_choice" in answer.headers["x-portico-ignored"]


async def test_a_history_of_other_models_does_not_end_the_conversation(
    portico: RunningGateway, play: Callable[..., None]
) -> None:
    play([{"text": "{prompt}"}])
    items = [
        user("one"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]},
    ]
    answer = await respond(portico, items)
    history = await get_history(portico.client, answer.headers["x-portico-session"])
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert history[1]["content"][0]["input"] == {"input": "*** Begin Patch"}
    assert "input.web_search_call" in answer.headers["x-portico-ignored"]


async def test_tools_that_are_none_are_refused(portico: RunningGateway) -> None:
    for tools, text in (
        ([{"name": "x"}], "tools.0.type: missing"),
        ([{"type": "custom"}], "tools.0.name"),
        ([{"type": "namespace", "name": "a", "tools": {}}], "tools.0.tools: must be a list"),
        ([{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}], "tools.0.tools.0.name"),
        ([EXEC, EXEC], "'exec_command' is taken"),
        ([{**EXEC, "parameters": []}], "tools.0.parameters: must be a JSON schema"),
    ):
        answer = await portico.client.post("/v1/responses", json={"model": "script", "input": "x", "tools": tools})
        assert answer.status_code == 400 and text in answer.json()["error"]["message"], (tools, text)


# -- content that agents do not take --------------------------------------------------------------------------------------


async def messages(portico: RunningGateway, *given: Any, **fields: Any) -> Any:
    body = {"model": "script", "max_tokens": 99, "messages": list(given), **fields}
    answer = await portico.client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "title": "a.txt", "source": source}


DOCUMENTS: list[Any] = [
    (document(type="text", media_type="text/plain", data="hello"), "a.txt:\n\nhello"),
    (document(type="base64", media_type="text/csv", data=base64.b64encode(b"a,b").decode()), "a.txt:\n\na,b"),
    (
        document(type="base64", media_type="application/pdf", data=PDF),
        "[document of the type application/pdf named 'a.txt', which is not shown here]",
    ),
    (
        document(type="url", url="https://example.com/a.pdf"),
        "[document at https://example.com/a.pdf named 'a.txt', which is not shown here]",
    ),
    (document(type="content", content=[{"type": "text", "text": "part"}]), "a.txt:\n\npart"),
    (document(type="file", file_id="f_1"), "[document named 'a.txt', which is not shown here]"),
    (
        {"type": "search_result", "source": "https://e.org", "title": "E", "content": [{"type": "text", "text": "found"}]},
        "E:\n\nfound",
    ),
]


async def test_documents_and_files_are_text(portico: RunningGateway, play: Callable[..., None]) -> None:
    # Documents are text.
    for block, text in DOCUMENTS:
        play([{"text": "{prompt}"}])
        answer = await messages(portico, {"role": "user", "content": [block]})
        assert answer.json()["content"] == [{"type": "text", "text": text}], (block, text)
        assert f"messages.content.{block['type']}" in answer.headers["x-portico-ignored"], (block, text)
    # Files of the OpenAI APIs are text.
    play([{"text": "{prompt}"}])
    data = "data:text/plain;base64," + base64.b64encode(b"hello").decode()
    pdf = f"data:application/pdf;base64,{PDF}"
    shown = "[document of the type application/pdf named 'a.pdf', which is not shown here]"
    for file, text in (
        ({"filename": "a.txt", "file_data": data}, "a.txt:\n\nhello"),
        ({"filename": "a.pdf", "file_data": pdf}, shown),
    ):
        talk = [{"role": "user", "content": [{"type": "file", "file": file}]}]
        answer = await portico.client.post("/v1/chat/completions", json={"model": "script", "messages": talk})
        assert answer.json()["choices"][0]["message"]["content"] == text
        answer = await respond(portico, [{"role": "user", "content": [{"type": "input_file", **file}]}])
        assert answer.json()["output"][-1]["content"][0]["text"] == text
        assert "input.content.input_file" in answer.headers["x-portico-ignored"]
    audio = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]}]
    answer = await portico.client.post("/v1/chat/completions", json={"model": "script", "messages": audio})
    assert answer.json()["choices"][0]["message"]["content"] == "[audio, which is not shown here]"


async def test_a_conversation_with_a_pdf_in_a_result_goes_on(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([call("Read", file_path="a.pdf"), {"text": "{results.c_Read}"}], [{"text": "2"}])
    tools = [{"name": "Read", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}]
    ask = {"role": "user", "content": "summarize a.pdf"}
    first = await messages(portico, ask, tools=tools)
    assert "tools.web_search_20250305" in first.headers["x-portico-ignored"]
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    used = {"role": "assistant", "content": first.json()["content"]}
    content = [{"type": "text", "text": "PDF file read: a.pdf"}, pdf]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c_Read", "content": content}]}
    second = await messages(portico, ask, used, result, tools=tools)
    assert "application/pdf, which is not shown here" in second.json()["content"][0]["text"]
    assert second.headers["x-portico-session"] == first.headers["x-portico-session"]
    server = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    said = {"role": "assistant", "content": [server, found, {"type": "text", "text": "It says hello."}]}
    third = await messages(portico, ask, used, result, said, {"role": "user", "content": "What is 1+1?"}, tools=tools)
    assert third.json()["stop_reason"] == "end_turn"


async def test_a_tool_of_the_servers_cannot_be_required(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "no"}])
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
        answer = await messages(portico, {"role": "user", "content": "x"}, tools=tools, tool_choice=choice)
        assert "tool_choice" in answer.headers["x-portico-ignored"].split(", ")


async def test_reasoning_that_is_sent_back_as_it_came_continues_the_session(
    portico: RunningGateway, play: Callable[..., None]
) -> None:
    play([{"thinking": "Hm."}, {"text": "42"}], [{"text": "again"}])
    ask = {"role": "user", "content": "q"}
    first = await messages(portico, ask, thinking={"type": "adaptive"})
    thought = first.json()["content"][0]
    assert thought["type"] == "thinking" and thought["signature"]
    said = {"role": "assistant", "content": first.json()["content"]}
    second = await messages(portico, ask, said, ask)
    assert second.headers["x-portico-session"] == first.headers["x-portico-session"]
    first = await respond(portico, [user("p")])
    assert first.json()["output"][0]["encrypted_content"]
    second = await respond(portico, [user("p"), *first.json()["output"], user("r")])
    assert second.headers["x-portico-session"] == first.headers["x-portico-session"]
