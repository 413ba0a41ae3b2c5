"""The command line of the codex CLI, the mapping of grants, and the handshake."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.codex.driver import CodexDriver, native_program
from drivers.codex.grants import Grants
from drivers.codex.handshake import SessionRequest
from drivers.codex.mcp_servers import GRANULAR_POLICY
from drivers.codex.probe import CodexProbe
from drivers.contract.agent import GO_ON, PermissionReply, Prompt
from drivers.contract.agent_specs import SessionSeed, SessionSpec, TaskSpec
from drivers.contract.codec import Codec
from drivers.contract.driver_info import ModelName, ToolGrant, ToolSpec
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.events import Awaiting
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import AssistantMessage, ToolMessage, ToolUseBlock, UserMessage

WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object"})
FOLDER = Path("/nowhere/work")
SPEC = SessionSpec("codex", FOLDER, {"HOME": "/nowhere"})


def written(codec: Codec) -> list[dict[str, Any]]:
    """The lines that the codec has written; clears its outbox."""
    lines = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    codec.outbox.clear()
    return lines


def opened(spec: SessionSpec, config: dict[str, Any] | None = None) -> tuple[Codec, dict[str, Any]]:
    """A codec that has requested its thread, and that request."""
    codec = CodexDriver().session(spec).codec
    codec.receive(b'{"id":1,"result":{}}')
    written(codec)
    codec.receive(json.dumps({"id": 2, "result": {"config": config or {}}}).encode())
    (asked,) = written(codec)
    return codec, asked


def test_a_task_goes_in_by_standard_input_alone() -> None:
    spec = TaskSpec("codex", FOLDER, {"X": "1"}, args=("-c", "a=1"), task="-do it", model="-m", options={"api_key": "sk-1"})
    command = CodexDriver().task(spec).command
    assert command.argv[:6] == ("codex", "-c", "a=1", "exec", "--json", "--skip-git-repo-check")
    assert command.argv[-2:] == ("--model=-m", "-")
    assert command.stdin == b"-do it"
    assert command.env == {"X": "1", "CODEX_API_KEY": "sk-1"}
    assert "--sandbox" not in str(command.argv)


def test_the_options_of_a_task() -> None:
    options = {"model": "gpt-5.5", "effort": 'hi"gh', "sandbox": "workspace-write"}
    argv = CodexDriver().task(TaskSpec("codex", FOLDER, {}, options=options, task="x")).command.argv
    assert argv[-5:] == ("--model=gpt-5.5", "-c", 'model_reasoning_effort="hi\\"gh"', "--sandbox=workspace-write", "-")


@pytest.mark.parametrize(("fast", "tier"), [("on", "fast"), ("off", "default"), ("", None), (None, None)])
def test_the_fast_mode_is_the_service_tier(fast: str | None, tier: str | None) -> None:
    options = {} if fast is None else {"fast": fast}
    _, asked = opened(replace(SPEC, options=options))
    assert asked["params"].get("serviceTier") == tier
    argv = CodexDriver().task(TaskSpec("codex", FOLDER, {}, options=options, task="x")).command.argv
    assert [part for part in argv if "service_tier" in part] == ([f'service_tier="{tier}"'] if tier else [])


def test_a_thread_is_started_with_the_settings_of_the_session() -> None:
    options = {"model": "gpt-5.5", "effort": "high"}
    codec, asked = opened(replace(SPEC, seed=SessionSeed(system="You are P."), options=options, app_tools=(WEATHER,)))
    params = asked["params"]
    assert (asked["method"], params["model"], params["developerInstructions"]) == ("thread/start", "gpt-5.5", "You are P.")
    assert params["config"]["model_reasoning_effort"] == "high"
    assert [tool["name"] for tool in params["dynamicTools"]] == ["get_weather"]
    codec.receive(b'{"id":3,"result":{"thread":{"id":"T"},"model":"gpt-5.5"}}')
    assert (codec.phase, str(codec.native_id).partition(":")[0]) == ("ready", "T")


WIDE, OWN, NARROW = "dangerFullAccess", "workspaceWrite", "readOnly"


@pytest.mark.parametrize(
    ("own", "policy", "sandbox", "refused"),
    [
        ({"shell": False}, "untrusted", OWN, False),
        ({"shell": False}, "untrusted", NARROW, False),
        ({"shell": False}, "on-request", OWN, True),
        ({"shell": False}, "untrusted", WIDE, True),
        ({"shell": False}, "untrusted", "externalSandbox", True),
        ({"shell": True, "apply_patch": True}, "on-request", OWN, False),
        ({"shell": True, "apply_patch": False}, "on-request", NARROW, False),
        ({"shell": True, "apply_patch": False}, "on-request", OWN, True),
        ({"apply_patch": True}, "on-request", OWN, True),
        ({"apply_patch": True}, "untrusted", WIDE, True),
    ],
)
def test_a_thread_that_the_cli_opens_with_fewer_limits_is_refused(
    own: dict[str, bool], policy: str, sandbox: str, refused: bool
) -> None:
    spec = replace(SPEC, tools=tuple(ToolGrant(name, trust) for name, trust in own.items()))
    for resume in (None, "T"):
        codec, asked = opened(replace(spec, seed=SessionSeed(resume)))
        result = {"thread": {"id": "T"}, "approvalPolicy": policy, "sandbox": {"type": sandbox}}
        codec.receive(json.dumps({"id": asked["id"], "result": result}).encode())
        assert (codec.phase, codec.start_error is None) == (("starting", False) if refused else ("ready", True))
        assert not refused or isinstance(codec.start_error, AgentUnavailable)


def test_a_key_is_sent_in_the_handshake_and_kept_in_memory() -> None:
    for spec in (replace(SPEC, options={"api_key": "sk-1"}), replace(SPEC, env={**SPEC.env, "CODEX_API_KEY": "sk-1"})):
        launch = CodexDriver().session(spec)
        assert 'cli_auth_credentials_store="ephemeral"' in launch.command.argv
        assert not any("sk-1" in argument for argument in launch.command.argv)
        written(launch.codec)
        launch.codec.receive(b'{"id":1,"result":{}}')
        assert written(launch.codec)[-1]["params"] == {"type": "apiKey", "apiKey": "sk-1"}


def test_the_user_settings_are_kept_and_the_users_servers_do_not_start() -> None:
    config = {
        "mcp_servers": {"mine": {"command": "x"}},
        "model_provider": "own",
        "model_providers": {"own": {"request_max_retries": 9, "stream_max_retries": None}},
    }
    _, asked = opened(SPEC, config)
    assert asked["params"]["config"]["mcp_servers"] == {"mine": {"enabled": False}}
    assert asked["params"]["config"]["model_providers"] == {"own": {"stream_max_retries": 3}}
    _, asked = opened(SPEC, {"model_provider": "openai", "model_providers": {}})
    assert "model_providers" not in asked["params"]["config"]


def test_the_additional_directories_are_roots_of_the_workspace() -> None:
    more = (Path("/more"), Path("/and/more"))
    users = {"sandbox_workspace_write": {"writable_roots": ["/users", "/more"]}}
    _, asked = opened(replace(SPEC, additional_directories=more), users)
    assert asked["params"]["runtimeWorkspaceRoots"] == [str(FOLDER), "/more", "/and/more", "/users"]
    _, asked = opened(SPEC, users)
    assert "runtimeWorkspaceRoots" not in asked["params"]
    # A thread keeps its former folders unless the request has others.
    _, asked = opened(replace(SPEC, seed=SessionSeed("T")), {"sandbox_workspace_write": None})
    assert asked["params"]["runtimeWorkspaceRoots"] == [str(FOLDER)]


def test_a_history_is_injected_and_reasoning_left_out() -> None:
    call = ToolUseBlock(tool_call_id="c1", name="shell", input={"command": "ls"})
    history = (UserMessage(content="hi"), AssistantMessage(content=(call,)), ToolMessage(tool_call_id="c1", content="a b"))
    codec, _ = opened(replace(SPEC, seed=SessionSeed(history=history)))
    codec.receive(b'{"id":3,"result":{"thread":{"id":"T"}}}')
    (seed,) = written(codec)
    assert (codec.phase, seed["method"]) == ("starting", "thread/inject_items")
    assert [item["type"] for item in seed["params"]["items"]] == ["message", "function_call", "function_call_output"]
    codec.receive(b'{"id":4,"result":{}}')
    assert codec.phase == "ready"


def test_a_deleted_thread() -> None:
    codec, asked = opened(replace(SPEC, seed=SessionSeed("T")))
    assert (asked["method"], asked["params"]["threadId"]) == ("thread/resume", "T")
    codec.receive(b'{"id":3,"error":{"code":-32600,"message":"no rollout found for thread id T"}}')
    assert isinstance(codec.start_error, ResumeFailed) and "no rollout found" in str(codec.start_error)


def test_a_thread_with_other_tools_is_not_resumed() -> None:
    codec, _ = opened(replace(SPEC, app_tools=(WEATHER,)))
    codec.receive(b'{"id":3,"result":{"thread":{"id":"T"}}}')
    again, asked = opened(replace(SPEC, seed=SessionSeed(codec.native_id), app_tools=(WEATHER,)))
    assert asked["params"]["threadId"] == "T" and again.start_error is None
    for tools in ((), (replace(WEATHER, name="other"),)):
        other = CodexDriver().session(replace(SPEC, seed=SessionSeed(codec.native_id), app_tools=tools)).codec
        assert isinstance(other.start_error, ResumeFailed)


def test_continuing_from_results_sends_no_user_message() -> None:
    codec, _ = opened(SPEC)
    codec.receive(b'{"id":3,"result":{"thread":{"id":"T"}}}')
    codec.prompt(GO_ON)
    assert written(codec)[0]["params"]["input"] == []


def test_a_session_that_is_refused() -> None:
    codec, _ = opened(SPEC)
    codec.receive(b'{"id":3,"error":{"code":-32600,"message":"Model provider `x` not found"}}')
    assert isinstance(codec.start_error, AgentUnavailable) and "Model provider" in str(codec.start_error)


GRANTS = [
    # own tools with their trust, option sandbox: the CLI's policy and sandbox
    ({}, "default", "untrusted", "workspace-write"),
    ({"shell": False, "apply_patch": False}, "default", "untrusted", "workspace-write"),
    ({"shell": True, "apply_patch": True}, "default", "never", "workspace-write"),
    ({"shell": True, "apply_patch": True}, "read-only", "never", "read-only"),
    ({"shell": True, "apply_patch": True}, "danger-full-access", "never", "danger-full-access"),
    ({"shell": True}, "default", "on-request", "read-only"),
    ({"shell": True, "apply_patch": False}, "workspace-write", "on-request", "read-only"),
    ({"shell": True}, "danger-full-access", "untrusted", "danger-full-access"),
    ({"shell": False, "apply_patch": True}, "default", "untrusted", "workspace-write"),
    ({"apply_patch": True}, "default", "untrusted", "workspace-write"),
    ({"apply_patch": True}, "read-only", "untrusted", "read-only"),
    ({"apply_patch": True}, "danger-full-access", "untrusted", "danger-full-access"),
]
CONFINED = [
    # the same in the gateway's sandbox, where the CLI cannot make its own
    ({}, "default", "untrusted", "danger-full-access"),
    ({"shell": True, "apply_patch": True}, "default", "never", "danger-full-access"),
    ({"shell": True, "apply_patch": True}, "read-only", "never", "read-only"),
    ({"shell": True}, "workspace-write", "untrusted", "danger-full-access"),
    ({"shell": False, "apply_patch": True}, "default", "untrusted", "danger-full-access"),
    ({"apply_patch": True}, "default", "untrusted", "danger-full-access"),
]


@pytest.mark.parametrize(
    ("own", "sandbox", "policy", "mode", "confined"), [*((*row, False) for row in GRANTS), *((*row, True) for row in CONFINED)]
)
def test_grants_are_one_of_the_presets(own: dict[str, bool], sandbox: str, policy: str, mode: str, confined: bool) -> None:
    tools = [ToolGrant(name, trust) for name, trust in own.items()]
    grants = Grants.of(tools, sandbox, ("/w", "/more"), confined=confined)
    assert grants.preset == (policy, mode)
    assert grants.config()["features"]["shell_tool"] == ("shell" in own)
    assert grants.config()["web_search"] == "disabled"


PATCHES = {"shell": False, "apply_patch": True}


@pytest.mark.parametrize(
    ("own", "sandbox", "name", "params", "path", "verdict"),
    [
        ({}, "default", "shell", {}, "", "decline"),
        ({"shell": True}, "danger-full-access", "apply_patch", {}, "/w/a", "decline"),
        ({"shell": False}, "default", "shell", {}, "", "ask"),
        ({"shell": False}, "default", "shell", {"kind": "writeStdin"}, "", "decline"),
        ({"shell": True}, "danger-full-access", "shell", {}, "", "accept"),
        ({"shell": True}, "default", "shell", {}, "", "decline"),
        (PATCHES, "default", "apply_patch", {}, "/w/a", "check"),
        (PATCHES, "default", "apply_patch", {}, "/w/../a", "ask"),
        (PATCHES, "default", "apply_patch", {}, "a/b", "check"),
        (PATCHES, "default", "apply_patch", {}, "/more/a", "check"),
        (PATCHES, "default", "apply_patch", {}, "/w/../more/a", "check"),
        (PATCHES, "default", "apply_patch", {}, "/more/../a", "ask"),
        (PATCHES, "default", "apply_patch", {}, "/more-of/a", "ask"),
        ({"apply_patch": True}, "read-only", "apply_patch", {}, "/more/a", "ask"),
        (PATCHES, "default", "apply_patch", {}, "/wide/a", "ask"),
        ({"apply_patch": True}, "default", "apply_patch", {}, "", "ask"),
        ({"apply_patch": True}, "read-only", "apply_patch", {}, "/w/a", "ask"),
        ({"apply_patch": True}, "danger-full-access", "apply_patch", {}, "/etc/a", "accept"),
        ({"apply_patch": True}, "default", "apply_patch", {}, "/w/a", "check"),
        ({"apply_patch": True}, "default", "apply_patch", {}, "/etc/a", "ask"),
        ({"shell": True, "apply_patch": True}, "default", "apply_patch", {}, "/w/a", "ask"),
    ],
)
def test_the_verdict_of_the_grants(
    own: dict[str, bool], sandbox: str, name: str, params: dict[str, Any], path: str, verdict: str
) -> None:
    grants = Grants.of([ToolGrant(tool, trust) for tool, trust in own.items()], sandbox, ("/w", "/more"))
    assert grants.verdict(name, params, [{"path": path}] if path else []) == verdict


def test_a_task_in_the_gateways_sandbox_has_none_of_the_cli() -> None:
    for option, confined, mode in (
        ("workspace-write", True, "danger-full-access"),
        ("workspace-write", False, "workspace-write"),
        ("read-only", True, "read-only"),
    ):
        spec = TaskSpec("codex", SPEC.cwd, {}, options={"sandbox": option}, confined=confined, task="go")
        assert CodexDriver().task(spec).command.argv[-2] == f"--sandbox={mode}"


def test_rules_files_are_rejected_if_tools_need_permission(tmp_path: Path) -> None:
    rules = tmp_path / ".codex" / "rules"
    rules.mkdir(parents=True)
    (rules / "default.rules").write_text("")
    untrusted = replace(SPEC, env={"HOME": str(tmp_path)}, tools=(ToolGrant("shell"),))
    with pytest.raises(AgentUnavailable, match=r"default\.rules"):
        CodexDriver().session(untrusted)
    with pytest.raises(AgentUnavailable, match=r"default\.rules"):
        CodexDriver().session(replace(untrusted, env={"HOME": "/nowhere", "CODEX_HOME": str(tmp_path / ".codex")}))
    CodexDriver().session(replace(untrusted, options={"rules": "apply"}))
    CodexDriver().session(replace(untrusted, tools=(ToolGrant("shell", trust=True),)))
    CodexDriver().session(replace(untrusted, tools=()))


def test_the_native_binary_behind_the_wrapper(tmp_path: Path) -> None:
    scope = tmp_path / "node_modules" / "@openai"
    wrapper = scope / "codex" / "bin" / "codex.js"
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wrapper.parent.mkdir(parents=True)
    wrapper.touch()
    link = tmp_path / "codex"
    link.symlink_to(wrapper)
    assert native_program(str(link)) == str(link)
    for parent in (scope / "codex" / "node_modules" / "@openai", scope):
        binary = parent / f"codex-{sys.platform}-{machine}" / "vendor" / "some-triple" / "bin" / "codex"
        binary.parent.mkdir(parents=True)
        binary.touch()
        assert native_program(str(link)) != str(binary)
        binary.chmod(0o755)
        assert native_program(str(link)) == str(binary)
    other = tmp_path / "other"
    other.touch()
    assert native_program(str(other)) == str(other)


DETAILS = {
    "displayName": "A",
    "description": "Best.",
    "additionalSpeedTiers": ["fast"],
    "supportedReasoningEfforts": [{"reasoningEffort": level, "description": ""} for level in ("low", "high")],
}


def test_the_probe() -> None:
    probe = CodexProbe(FOLDER)
    for answer in (
        {"id": 1, "result": {}},
        {"method": "configWarning", "params": {}},
        {"id": 2, "result": {"config": {}}},
        {"id": 3, "result": {"account": None, "requiresOpenaiAuth": True}},
        {"id": 4, "result": {"data": [{"model": "a", "hidden": False, **DETAILS}, {"model": "b", "hidden": True}]}},
        {"id": 5, "result": {"data": [{"skills": [{"name": "greet", "description": "Greets."}]}]}},
    ):
        probe.receive(json.dumps(answer).encode())
    assert (probe.phase, probe.logged_in, probe.models) == ("ready", False, ("a",))
    assert (probe.model_names, probe.efforts) == ((ModelName("a", "A", "Best."),), ("low", "high"))
    assert probe.fast_models == ("a",)
    assert [command.name for command in probe.commands] == ["compact", "$greet"]
    own = CodexProbe(FOLDER)
    own.receive(b'{"id":1,"result":{}}')
    own.receive(b'{"id":2,"result":{}}')
    own.receive(b'{"id":3,"result":{"account":null,"requiresOpenaiAuth":false}}')
    assert own.logged_in is True


def test_the_probe_of_a_cli_with_other_members() -> None:
    odd = CodexProbe(FOLDER)
    results: tuple[object, ...] = ({}, {}, "odd", {"items": [{"model": "a"}]}, {"data": [{}]})
    for number, result in enumerate(results, 1):
        odd.receive(json.dumps({"id": number, "result": result}).encode())
    assert (odd.phase, odd.start_error, odd.logged_in, odd.models) == ("ready", None, None, ())


def test_the_probe_of_a_cli_that_opens_no_sessions() -> None:
    old = CodexProbe(FOLDER)
    old.receive(b'{"id":1,"result":{}}')
    old.receive(b'{"error":{"code":-32600,"message":"Invalid request"},"id":2}')
    assert isinstance(old.start_error, AgentUnavailable)
    assert str(old.start_error) == "it opens no sessions: config/read: Invalid request (code -32600)"


def codec_with_turn() -> Codec:
    """A codec with a running turn."""
    codec, asked = opened(SPEC)
    feed(codec, {"id": asked["id"], "result": {"thread": {"id": "th"}, "model": "m"}})
    assert codec.phase == "ready"
    codec.prompt(Prompt("x"))
    (start,) = written(codec)
    feed(codec, {"id": start["id"], "result": {"turn": {"id": "t1"}}})
    feed(codec, {"method": "turn/started", "params": {"threadId": "th", "turn": {"id": "t1"}}})
    return codec


def feed(codec: Codec, native: dict[str, Any]) -> list[str]:
    return [event.kind for event in codec.receive(json.dumps(native).encode())]


def completed(turn: str) -> dict[str, Any]:
    return {"method": "turn/completed", "params": {"threadId": "th", "turn": {"id": turn, "status": "completed"}}}


def test_steering_in_mid_turn() -> None:
    codec = codec_with_turn()
    assert codec.steer(Prompt("y"))
    (steer,) = written(codec)
    assert steer["method"] == "turn/steer"
    assert (steer["params"]["expectedTurnId"], steer["params"]["input"][0]["text"]) == ("t1", "y")
    assert feed(codec, {"id": steer["id"], "result": {}}) == []
    assert feed(codec, completed("t1")) == ["session_end"]
    assert not codec.steer(Prompt("z"))


@pytest.mark.parametrize("end_first", [False, True])
def test_a_late_steered_message_begins_another_turn_of_the_same_run(end_first: bool) -> None:
    codec = codec_with_turn()
    codec.steer(Prompt("y"))
    (steer,) = written(codec)
    refused = {"id": steer["id"], "error": {"message": "no active turn to steer"}}
    for line in (completed("t1"), refused) if end_first else (refused, completed("t1")):
        assert "session_end" not in feed(codec, line)
    (start,) = written(codec)
    assert (start["method"], start["params"]["input"][0]["text"]) == ("turn/start", "y")
    feed(codec, {"id": start["id"], "result": {"turn": {"id": "t2"}}})
    feed(codec, {"method": "turn/started", "params": {"threadId": "th", "turn": {"id": "t2"}}})
    assert feed(codec, completed("t2")) == ["session_end"]


SERVERS = (
    McpServer("my server", command="serve", args=("-v",), env={"TOKEN": "t0p"}),
    McpServer("far", "http", url="https://far.example", headers={"Authorization": "t0p"}),
)


def test_client_servers_are_settings_of_the_thread_apart_from_those_of_the_user() -> None:
    launch = CodexDriver().session(replace(SPEC, mcp_servers=SERVERS))
    assert "t0p" not in str(launch.command)
    for spec in (replace(SPEC, mcp_servers=SERVERS), replace(SPEC, mcp_servers=SERVERS, seed=SessionSeed("T"))):
        _, asked = opened(spec, {"mcp_servers": {"my_server": {"tools": {"x": {"approval_mode": "approve"}}}}})
        settings = asked["params"]["config"]["mcp_servers"]
        assert settings["my_server"] == {"enabled": False}
        assert {name: settings["my_server-2"][name] for name in ("command", "args", "env")} == {
            "command": "serve",
            "args": ["-v"],
            "env": {"TOKEN": "t0p"},
        }
        assert (settings["far"]["url"], settings["far"]["http_headers"]) == ("https://far.example", {"Authorization": "t0p"})
        assert {settings[name]["default_tools_approval_mode"] for name in ("my_server-2", "far")} == {"prompt"}


def test_calls_of_client_servers_need_permission_if_all_other_tools_are_trusted() -> None:
    trusted = (ToolGrant("shell", trust=True), ToolGrant("apply_patch", trust=True))
    _, asked = opened(replace(SPEC, tools=trusted))
    assert asked["params"]["approvalPolicy"] == "never"
    _, asked = opened(replace(SPEC, tools=trusted, mcp_servers=SERVERS))
    assert asked["params"]["approvalPolicy"] == GRANULAR_POLICY


def codec_with_call(*tools: ToolGrant) -> Codec:
    """A codec with a running turn in which a call of an MCP server's tool has begun."""
    codec, _ = opened(replace(SPEC, mcp_servers=SERVERS, tools=tools))
    codec.receive(b'{"id":3,"result":{"thread":{"id":"T"}}}')
    codec.prompt(Prompt("go"))
    codec.receive(b'{"id":4,"result":{"turn":{"id":"U"}}}')
    codec.receive(b'{"method":"turn/started","params":{"threadId":"T","turn":{"id":"U"}}}')
    item = {"type": "mcpToolCall", "id": "c1", "server": "far", "tool": "get", "status": "inProgress", "arguments": {"x": 1}}
    codec.receive(json.dumps({"method": "item/started", "params": {"item": item, "threadId": "T", "turnId": "U"}}).encode())
    written(codec)
    return codec


def elicit(codec: Codec, request_id: int = 0, **about: Any) -> list[dict[str, Any]]:
    """Send an elicitation of an MCP server to the codec; return the lines that it writes."""
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_name": "get", "tool_params": {"x": 1}, **about}
    params = {"threadId": "T", "turnId": "U", "serverName": "far", "mode": "form", "_meta": meta, "message": "Allow?"}
    codec.receive(json.dumps({"method": "mcpServer/elicitation/request", "id": request_id, "params": params}).encode())
    return written(codec)


@pytest.mark.parametrize(("granted", "action"), [(True, "accept"), (False, "decline")])
def test_the_client_decides_about_a_call_of_its_server(granted: bool, action: str) -> None:
    codec = codec_with_call()
    assert elicit(codec) == []
    (awaiting,) = codec.debounced_events()
    assert isinstance(awaiting, Awaiting)
    assert [(call.id, call.wants) for call in awaiting.calls] == [("c1", "permission")]
    codec.reply(PermissionReply("c1", "allow" if granted else "deny"))
    (answer,) = written(codec)
    assert (answer["id"], answer["result"]["action"]) == (0, action)


def test_a_trusted_tool_of_a_server_is_accepted_and_a_repeated_elicitation_is_declined() -> None:
    codec = codec_with_call(ToolGrant("mcp__far__get", trust=True))
    (answer,) = elicit(codec)
    assert answer["result"]["action"] == "accept"
    # A repeated elicitation with the same text comes from the server itself.
    (answer,) = elicit(codec, 1)
    assert answer["result"]["action"] == "decline"


@pytest.mark.parametrize("about", [{"codex_approval_kind": "x"}, {"tool_name": "put"}, {"tool_params": {"x": 2}}])
def test_an_elicitation_without_a_pending_call_is_declined(about: dict[str, Any]) -> None:
    (answer,) = elicit(codec_with_call(), **about)
    assert answer["result"]["action"] == "decline"


@pytest.mark.parametrize(("asked", "trusted", "reports"), [((), ("shell",), True), (("shell",), (), False), ((), (), False)])
def test_items_of_the_models_api_are_reported_where_commands_run_unasked(
    asked: Sequence[str], trusted: Sequence[str], reports: bool
) -> None:
    tools = [*(ToolGrant(name) for name in asked), *(ToolGrant(name, trust=True) for name in (*trusted, "apply_patch"))]
    session = SessionRequest(Grants.of(tools, "", ("/work",)), {"cwd": "/work", "config": {}})
    method, params = session.thread_request({})
    assert (method, params.get("experimentalRawEvents", False)) == ("thread/start", reports)
