"""The modes of gemini: its policy and settings in each, the user's rules, and the codec's questions and changes of the mode."""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.acp import AcpCodec, Grants, SessionRequest
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.agent_specs import SessionPermissions, SessionSpec
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentUnavailable
from drivers.contract.events import Awaiting, ModeChanged, OutputEvent
from drivers.contract.mcp_servers import McpServer
from drivers.gemini.acp_profile import agent_profile
from drivers.gemini.driver import GeminiDriver
from drivers.gemini.home import prepare_home
from drivers.gemini.modes import own_mode, user_policies, user_rules
from drivers.gemini.policy import policy_file
from drivers.gemini.tools import NAMES

Json = dict[str, Any]

RULES = """
[[rule]]
toolName = ["run_shell_command", "activate_skill"]
commandPrefix = ["git status", "ls"]
decision = "allow"
priority = 100

[[rule]]
toolName = "*"
decision = "deny"
argsPattern = "secret\\\\.txt"
priority = 200

[[rule]]
mcpName = "server"
toolName = "*"
decision = "allow"
priority = 300
"""


def spec(base: Path, mode: str, *ruled: str, **options: str) -> SessionSpec:
    tools = tuple(ToolGrant(name) for name in sorted(NAMES))
    env = {"HOME": str(base / "user")}
    return SessionSpec(
        "gemini",
        base,
        env,
        options={"mode": mode, **options},
        state=base / "state",
        tools=tools,
        permissions=SessionPermissions(ruled=lambda name: name in ruled),
    )


def files_of(spec: SessionSpec) -> tuple[Json, set[str]]:
    """The settings of a session, and the names of its policy files."""
    files = GeminiDriver().session(spec).command.files
    assert spec.state is not None
    settings = json.loads(files[spec.state / ".gemini" / "settings.json"])
    return settings, {path.name for path in files if path.parent.name == "policies"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    policies = tmp_path / "user" / ".gemini" / "policies"
    policies.mkdir(parents=True)
    (policies / "mine.toml").write_text(RULES)
    (policies / "others.toml").write_text('[[rule]]\ntoolName = "activate_skill"\ndecision = "allow"\npriority = 900\n')
    os.mkfifo(policies / "pipe.toml")
    tools = {"allowed": ["run_shell_command(git)"], "exclude": ["glob"], "core": ["glob"]}
    (policies.parent / "settings.json").write_text(json.dumps({"tools": tools}))
    return tmp_path


def test_the_users_rules_apply_in_the_clis_own_modes(base: Path) -> None:
    settings, policies = files_of(spec(base, "default"))
    assert settings["tools"] == {
        "allowed": ["run_shell_command(git)"], "exclude": ["glob"], "shell": {"enableInteractiveShell": False},
    }  # fmt: skip
    assert policies == {"portico.toml", "user-mine.toml"}
    assert files_of(spec(base, "default", settings="none"))[1] == {"portico.toml"}


@pytest.mark.parametrize(("mode", "ruled"), [("ask", ()), ("default", ("glob",)), ("yolo", ("run_shell_command",))])
def test_they_do_not_apply_where_the_gateway_asks_or_has_a_rule(base: Path, mode: str, ruled: tuple[str, ...]) -> None:
    session = spec(base, mode, *ruled)
    assert own_mode(session) is None
    settings, policies = files_of(session)
    assert set(settings["tools"]["core"]) == NAMES and "allowed" not in settings["tools"] and policies == {"portico.toml"}


def test_rules_of_a_process_in_another_mode_are_removed(base: Path) -> None:
    folder = base / "state" / ".gemini" / "policies"
    folder.mkdir(parents=True)
    for name in ("user-mine.toml", "auto-saved.toml"):
        (folder / name).write_text("rules")
    prepare_home(base / "user" / ".gemini", base / "state", link_all=False)
    assert list(folder.iterdir()) == []


def test_the_policy_is_the_clis_own_for_listed_tools() -> None:
    grants = [ToolGrant("read_file"), ToolGrant("write_file"), ToolGrant("glob", True), ToolGrant("run_shell_command")]
    server = McpServer("files", "stdio", command="x")
    rules = tomllib.loads(policy_file(grants, (), (server,), own_modes=True))["rule"]
    found = [(rule["toolName"], rule["decision"], rule["priority"], rule.get("modes", [])) for rule in rules]
    assert found == [
        ("*", "deny", 1, []),
        ("read_file", "allow", 2, []),
        ("write_file", "ask_user", 2, ["default", "plan"]),
        ("write_file", "allow", 2, ["autoEdit", "yolo"]),
        ("glob", "allow", 999, []),
        ("run_shell_command", "ask_user", 2, ["default", "autoEdit", "plan"]),
        ("run_shell_command", "allow", 2, ["yolo"]),
        ("mcp_*", "ask_user", 950, []),
        ("mcp_*", "allow", 997, ["yolo"]),
        ("replace", "deny", 999, ["plan"]),
        ("run_shell_command", "deny", 999, ["plan"]),
        ("web_fetch", "deny", 999, ["plan"]),
        ("write_file", "deny", 999, ["plan"]),
    ]
    assert all("argsPattern" not in rule for rule in rules)


@pytest.mark.parametrize("servers", [(), (McpServer("files", "stdio", command="x"),)])
def test_a_rule_about_tools_of_servers_takes_the_mode(base: Path, servers: tuple[McpServer, ...]) -> None:
    session = replace(
        spec(base, "yolo"), mcp_servers=servers, permissions=SessionPermissions(ruled=lambda name: name == "mcp__*")
    )
    assert own_mode(session) == (None if servers else "yolo")


@pytest.mark.parametrize(
    ("text", "trusted"),
    [
        ('{"tools": {"allowed": ["run_shell_command"]}}', "false"),
        ('{"allowedTools": ["run_shell_command"]}', "true"),
        ('{"\\u0074ools": {"allowed": ["run_shell_command"]}}', "false"),
        (" " * (1024 * 1024) + "{}", "false"),
        ('{"ui": {"hideTips": true}}', "true"),
        (None, "true"),
    ],
)
def test_settings_of_a_project_permit_no_tools(base: Path, text: str | None, trusted: str) -> None:
    (base / ".gemini").mkdir()
    if text is not None:
        (base / ".gemini" / "settings.json").write_text(text)
    variable = "GEMINI_CLI_TRUST_WORKSPACE"
    assert GeminiDriver().session(spec(base, "default")).command.env[variable] == trusted
    assert GeminiDriver().session(spec(base, "ask")).command.env[variable] == "true"


@pytest.mark.parametrize(
    ("mode", "settings", "project", "reason"),
    [
        ("ask", "user", "{}", "the option settings leaves out the project"),
        ("default", "none", "{}", "the option settings leaves out the project"),
        ("default", "user,project", '{"tools": {}}', "may permit tools"),
        ("ask", "user,project", '{"tools": {}}', None),
        ("default", "user,project", "{}", None),
    ],
)
def test_no_session_loses_its_servers_in_a_folder_that_is_not_trusted(
    base: Path, mode: str, settings: str, project: str, reason: str | None
) -> None:
    (base / ".gemini").mkdir()
    (base / ".gemini" / "settings.json").write_text(project)
    without = spec(base, mode, settings=settings)
    session = replace(without, mcp_servers=(McpServer("files", "stdio", command="x"),))
    assert GeminiDriver().session(without)
    with nullcontext() if reason is None else pytest.raises(AgentUnavailable, match=reason):
        GeminiDriver().session(session)


def test_settings_and_policies_that_cannot_be_read(tmp_path: Path) -> None:
    assert user_policies(tmp_path, NAMES) == {} and user_rules({"tools": 5}, NAMES) == user_rules({}, NAMES) == {}


@pytest.mark.parametrize(("decision", "kept"), [("allow", False), ("deny", True), ("ask_user", True)])
def test_a_rule_with_a_condition_that_is_not_written_never_allows(tmp_path: Path, decision: str, kept: bool) -> None:
    (tmp_path / "policies").mkdir()
    rule = f'toolName = "glob"\ndecision = "{decision}"\nargsPattern = "gehe\\u00edm\\u007f"\ntoolAnnotations = {{ a = true }}'
    (tmp_path / "policies" / "x.toml").write_text(f"[[rule]]\n{rule}\n")
    found = [tomllib.loads(text.decode())["rule"] for text in user_policies(tmp_path, NAMES).values()]
    expected = {"toolName": ["glob"], "decision": decision, "argsPattern": "gehe\u00edm\x7f"}
    assert found == ([[expected]] if kept else [])


DENY = '[[rule]]\ntoolName = "run_shell_command"\ndecision = "deny"\npriority = 500\n'


@pytest.mark.parametrize("text", [DENY + "#" * (1024 * 1024), DENY + "[[rule", DENY.encode() + b"# \xff"])
def test_a_policy_file_that_cannot_be_read_is_never_skipped(base: Path, text: str | bytes) -> None:
    file = base / "user" / ".gemini" / "policies" / "deny.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(AgentUnavailable, match=r"deny\.toml cannot be read, and may have rules that deny"):
        GeminiDriver().session(spec(base, "default"))
    # Where its rules do not apply, it is not read.
    GeminiDriver().session(spec(base, "ask"))
    GeminiDriver().session(spec(base, "default", settings="none"))


def test_a_folder_of_policies_that_cannot_be_listed_is_never_skipped(tmp_path: Path) -> None:
    assert user_policies(tmp_path, NAMES) == {}
    (tmp_path / "policies").symlink_to("policies")
    with pytest.raises(AgentUnavailable, match="policies cannot be read, and may have rules that deny"):
        user_policies(tmp_path, NAMES)


@pytest.mark.parametrize("about", ['mcpName = "github"\ntoolName = "*"', 'toolName = "mcp_github_*"'])
@pytest.mark.parametrize(("decision", "kept"), [("allow", False), ("ask_user", False), ("deny", True)])
def test_rules_that_deny_tools_of_servers_stay(tmp_path: Path, about: str, decision: str, kept: bool) -> None:
    (tmp_path / "policies").mkdir()
    text = f'[[rule]]\n{about}\ndecision = "{decision}"\npriority = 500\n'
    (tmp_path / "policies" / "x.toml").write_text(text)
    [rule] = tomllib.loads(text)["rule"]
    found = [tomllib.loads(text.decode())["rule"] for text in user_policies(tmp_path, NAMES).values()]
    assert found == ([[{**rule, "toolName": [rule["toolName"]], "priority": 998}]] if kept else [])


def test_rules_that_deny_go_before_the_gateways(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    names = '["search_file_content", "run_shell_command", "mcp_github_*"]'
    text = f'[[rule]]\ntoolName = {names}\ndecision = "deny"\npriority = 0\n'
    (tmp_path / "policies" / "x.toml").write_text(text)
    [found] = (tomllib.loads(text.decode())["rule"] for text in user_policies(tmp_path, ["run_shell_command"]).values())
    # The first name is another one of a tool.
    assert [(rule["toolName"], rule["priority"]) for rule in found] == [
        (["search_file_content", "run_shell_command"], 3),
        (["mcp_github_*"], 998),
    ]
    rules = tomllib.loads(policy_file([ToolGrant(name) for name in sorted(NAMES)], own_modes=True))["rule"]
    assert max(rule["priority"] for rule in rules if rule["decision"] != "deny") < 3


def test_the_users_rules_allow_listed_tools_only(base: Path) -> None:
    [text] = user_policies(base / "user" / ".gemini", ["run_shell_command"]).values()
    assert tomllib.loads(text.decode())["rule"] == [
        {"toolName": ["run_shell_command"], "commandPrefix": ["git status", "ls"], "decision": "allow", "priority": 100},
        {"toolName": ["*"], "decision": "deny", "argsPattern": "secret\\.txt", "priority": 200},
        {"toolName": ["mcp_*"], "decision": "deny", "argsPattern": "secret\\.txt", "priority": 998},
    ]
    [text] = user_policies(base / "user" / ".gemini", []).values()
    assert {rule["decision"] for rule in tomllib.loads(text.decode())["rule"]} == {"deny"}
    allowed = {"tools": {"allowed": ["run_shell_command(git)", "glob"]}}
    assert user_rules(allowed, ["glob"]) == {"tools": {"allowed": ["glob"]}}


def test_a_trusted_tool_is_not_available_in_plan_mode() -> None:
    grants = [ToolGrant("run_shell_command", True), ToolGrant("glob", True), ToolGrant("mcp__files__write", True)]
    server = McpServer("files", "stdio", command="x")
    rules = tomllib.loads(policy_file(grants, (), (server,), own_modes=True))["rule"]
    trusted = {rule["toolName"]: rule.get("modes") for rule in rules if rule["decision"] == "allow" and rule["priority"] == 999}
    elsewhere = ["default", "autoEdit", "yolo"]
    assert trusted == {"run_shell_command": elsewhere, "glob": None, "mcp_files_write": elsewhere}


class Cli:
    """The CLI's side of a codec with an open session in the mode `default`."""

    def __init__(self) -> None:
        grants = Grants([ToolGrant("write_file")], agent_asks=True, left_to_agent=lambda name: True)
        request = SessionRequest(cwd="/work", mode="default")
        self.codec = AcpCodec(request, grants, agent_profile(verbatim=True), changes_modes=True)
        modes = {"currentModeId": "default", "availableModes": [{"id": name} for name in ("default", "autoEdit")]}
        self.answer("initialize", {"protocolVersion": 1, "agentCapabilities": {}})
        self.answer("session/new", {"sessionId": "s", "modes": modes})
        self.answer("session/set_mode", {})
        self.codec.prompt(Prompt("go"))
        self.codec.pending.clear()
        self.written()

    def take(self, message: Json) -> list[OutputEvent]:
        events = self.codec.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())
        pending, self.codec.pending = self.codec.pending, []
        return [*events, *pending]

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return lines

    def answer(self, method: str, result: Json | None = None, error: Json | None = None) -> list[OutputEvent]:
        [request] = [line for line in self.written() if line.get("method") == method]
        return self.take({"id": request["id"], **({"result": result} if error is None else {"error": error})})

    def asks(self) -> list[OutputEvent]:
        call = {"toolCallId": "write_file__1", "title": "Write", "kind": "edit", "status": "pending", "content": []}
        kinds = {
            "proceed_always": "allow_always", "proceed_always_and_save": "allow_always", "proceed_once": "allow_once",
            "cancel": "reject_once",
        }  # fmt: skip
        options = [{"optionId": name, "name": name, "kind": kind} for name, kind in kinds.items()]
        params = {"sessionId": "s", "toolCall": call, "options": options}
        return self.take({"id": "r", "method": "session/request_permission", "params": params})


@pytest.mark.parametrize(
    ("granted", "choice", "option"),
    [(True, None, "proceed_once"), (True, "proceed_always", "proceed_once"), (False, "proceed_always", "cancel")],
)
def test_an_answer_permits_the_call_only(granted: bool, choice: str | None, option: str) -> None:
    cli = Cli()
    awaiting = cli.asks()[-1]
    assert isinstance(awaiting, Awaiting)
    [call] = awaiting.calls
    # What the CLI calls "for this session" is a mode, in which it also fetches pages.
    assert call.choices == ()
    cli.codec.reply(PermissionReply(call.id, "allow" if granted else "deny", choice=choice))
    assert cli.written()[-1]["result"]["outcome"]["optionId"] == option


def test_the_mode_changes_by_request_and_by_itself() -> None:
    cli = Cli()
    assert cli.codec.set_mode("autoEdit") and not cli.codec.set_mode("ask")
    assert cli.answer("session/set_mode", error={"code": -32603, "message": "no"}) == [ModeChanged(mode="default")]
    update = {"sessionUpdate": "current_mode_update", "currentModeId": "autoEdit"}
    notification = {"method": "session/update", "params": {"sessionId": "s", "update": update}}
    assert cli.take(notification) == [ModeChanged(mode="autoEdit")] and cli.take(notification) == []
