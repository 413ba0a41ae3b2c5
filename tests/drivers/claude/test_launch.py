"""The command line, files and environment with which the claude driver starts its CLI."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from drivers.claude.control_messages import HOOKS
from drivers.claude.driver import ENVIRONMENT, OPTIONS, ClaudeDriver
from drivers.contract.agent_specs import SessionPermissions, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.codec import Launch
from drivers.contract.driver_info import ToolGrant
from drivers.contract.messages import AssistantMessage, Message, SystemMessage, ThinkingBlock, UserMessage

TASK_ARGUMENTS = ("--print", "--output-format", "stream-json", "--verbose", "--include-partial-messages")
SECRET = "s3cr3t-of-the-user"
HISTORY: tuple[Message, ...] = (UserMessage(content="one"), AssistantMessage(content="two"))


def task(task_text: str = SECRET, **fields: Any) -> TaskSpec:
    return TaskSpec("claude", fields.pop("cwd", Path("/work")), fields.pop("env", {}), task=task_text, **fields)


def session(**fields: Any) -> SessionSpec:
    return SessionSpec("claude", fields.pop("cwd", Path("/work")), fields.pop("env", {}), **fields)


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def initialize_request(spec: SessionSpec) -> dict[str, Any]:
    """The request that opens the session."""
    (line,) = bytes(ClaudeDriver().session(spec).codec.outbox).splitlines()
    request: dict[str, Any] = json.loads(line)["request"]
    return request


# One task


def test_the_command_line_of_a_task() -> None:
    command = ClaudeDriver().task(task()).command
    assert command.argv == ("claude", *TASK_ARGUMENTS, "--include-hook-events")
    assert command.stdin == SECRET.encode()
    assert command.cwd == Path("/work")
    assert command.files == {}


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model": "opus"}, "opus"),
        ({"options": {"model": "haiku"}}, "haiku"),
        ({"model": "opus", "options": {"model": "haiku"}}, "opus"),
    ],
)
def test_the_model_of_a_task(fields: Mapping[str, Any], model: str) -> None:
    argv = ClaudeDriver().task(task(**fields)).command.argv
    assert argv == ("claude", *TASK_ARGUMENTS, "--include-hook-events", f"--model={model}")


def test_the_agents_own_arguments_come_first() -> None:
    assert ClaudeDriver().task(task(args=("--settings", "x.json"))).command.argv[:4] == (
        "claude",
        "--settings",
        "x.json",
        "--print",
    )
    assert ClaudeDriver().session(session(args=("--settings", "x.json"))).command.argv[:4] == (
        "claude",
        "--settings",
        "x.json",
        "--print",
    )


@pytest.mark.parametrize(
    ("text", "options", "stdin"),
    [
        ("/clear", {}, b"\n/clear"),
        ("/clear", {"slash_commands": "off"}, b"\n/clear"),
        ("/clear", {"slash_commands": "on"}, b"/clear"),
        ("/config\ufeffa=b", {"slash_commands": "on"}, "\n/config\ufeffa=b".encode()),
        ("/list-agents", {"slash_commands": "on"}, b"\n/list-agents"),
        ("-p \u00e9", {}, "-p \u00e9".encode()),
        ("a /b", {}, b"a /b"),
    ],
)
def test_a_task_is_kept_literal(text: str, options: dict[str, str], stdin: bytes) -> None:
    assert ClaudeDriver().task(task(text, options=options)).command.stdin == stdin


# A session


def test_the_arguments_of_a_session() -> None:
    argv = ClaudeDriver().session(session()).command.argv
    session_id = value_of(argv, "--session-id")
    assert argv == (
        "claude", "--print", "--input-format", "stream-json", *TASK_ARGUMENTS[1:], "--include-hook-events",
        "--replay-user-messages", "--permission-prompt-tool", "stdio", "--tools", "", "--strict-mcp-config",
        "--permission-mode", "default", "--setting-sources", "user,project,local", "--session-id", session_id,
    )  # fmt: skip
    assert str(uuid.UUID(session_id)) == session_id


@pytest.mark.parametrize(("modes", "tools"), [({"plan"}, "Bash"), ({"plan", "default"}, "Bash,ExitPlanMode")])
def test_a_locked_plan_mode_has_no_tool_that_leaves_it(modes: set[str], tools: str) -> None:
    granted = (ToolGrant("Bash"), ToolGrant("ExitPlanMode", trust=True))
    launch = ClaudeDriver().session(
        session(options={"mode": "plan"}, tools=granted, permissions=SessionPermissions(frozenset(modes)))
    )
    assert argument(launch, "--tools") == tools


def test_two_sessions_have_two_ids() -> None:
    ids = {value_of(ClaudeDriver().session(session()).command.argv, "--session-id") for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("given", "sources"), [({}, "user,project,local"), ({"settings": "user"}, "user"), ({"settings": "none"}, "")]
)
def test_settings(given: dict[str, str], sources: str) -> None:
    assert value_of(ClaudeDriver().session(session(options=given)).command.argv, "--setting-sources") == sources


def test_the_model_of_a_session() -> None:
    assert ClaudeDriver().session(session(options={"model": "opus"})).command.argv.count("--model=opus") == 1
    assert "--model" not in str(ClaudeDriver().session(session(options={"model": ""})).command.argv)


def test_nothing_private_is_in_the_arguments() -> None:
    history = (UserMessage(content=SECRET), AssistantMessage(content=SECRET))
    spec = session(
        seed=SessionSeed(system=SECRET, history=history), options={"api_key": SECRET, "model": "opus"}, env={"HOME": "/home/user"}
    )
    command = ClaudeDriver().session(spec).command
    assert SECRET not in " ".join(command.argv)
    assert command.stdin is None
    assert SECRET not in " ".join(ClaudeDriver().task(task(options={"api_key": SECRET})).command.argv)


def test_the_system_prompt_is_in_the_initialize_request() -> None:
    assert initialize_request(session()) == {"subtype": "initialize", "hooks": HOOKS}
    assert initialize_request(session(seed=SessionSeed(system="Be kind.")))["appendSystemPrompt"] == "Be kind."
    replaced = initialize_request(session(seed=SessionSeed(system="Be kind."), options={"system_prompt": "replace"}))
    assert replaced["systemPrompt"] == "Be kind."
    assert "appendSystemPrompt" not in replaced
    assert initialize_request(session(seed=SessionSeed(system="")))["appendSystemPrompt"] == ""


# Which native session


def test_a_native_session_is_resumed_and_not_seeded() -> None:
    launch = ClaudeDriver().session(session(seed=SessionSeed("native-1", HISTORY)))
    assert launch.command.argv[-2:] == ("--resume", "native-1")
    assert launch.command.files == {}
    assert launch.codec.native_id == "native-1"


def test_a_history_is_seeded_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    launch = ClaudeDriver().session(
        session(cwd=tmp_path / "link", env={"CLAUDE_CONFIG_DIR": "/config"}, seed=SessionSeed(history=HISTORY))
    )
    session_id = value_of(launch.command.argv, "--resume")
    ((path, content),) = launch.command.files.items()
    folder = re.sub("[^A-Za-z0-9]", "-", str((tmp_path / "real").resolve()))
    assert path == Path("/config/projects") / folder / f"{session_id}.jsonl"
    records = [json.loads(line) for line in content.splitlines()]
    assert [record["message"]["role"] for record in records] == ["user", "assistant"]
    assert len({record["uuid"] for record in records}) == 2
    assert datetime.fromisoformat(records[0]["timestamp"]).tzinfo is not None
    assert launch.codec.native_id == session_id


@pytest.mark.parametrize(
    ("env", "home"),
    [
        ({"HOME": "/home/user"}, "/home/user/.claude"),
        ({"HOME": "/home/user", "CLAUDE_CONFIG_DIR": "/config"}, "/config"),
        ({"HOME": "/home/user", "CLAUDE_CONFIG_DIR": ""}, "/home/user/.claude"),
    ],
)
def test_where_the_cli_keeps_its_sessions(env: dict[str, str], home: str) -> None:
    (path,) = ClaudeDriver().session(session(env=env, seed=SessionSeed(history=HISTORY))).command.files
    assert path.parent.parent == Path(home) / "projects"


@pytest.mark.parametrize(
    "history",
    [(), (SystemMessage(content="s"),), (UserMessage(content=""),), (AssistantMessage(content=(ThinkingBlock(thinking="hm"),)),)],
)
def test_a_history_without_visible_messages_starts_a_fresh_session(history: tuple[Message, ...]) -> None:
    launch = ClaudeDriver().session(session(seed=SessionSeed(history=history)))
    assert launch.command.argv[-2] == "--session-id"
    assert launch.command.files == {}


# Its environment


@pytest.mark.parametrize("kind", ["task", "session"])
def test_the_environment(kind: str) -> None:
    def environment(**fields: Any) -> Mapping[str, str]:
        driver = ClaudeDriver()
        launch = driver.task(task(**fields)) if kind == "task" else driver.session(session(**fields))
        return launch.command.env

    assert environment(env={"HOME": "/home/user"}) == {**ENVIRONMENT, "HOME": "/home/user"}
    name = next(iter(ENVIRONMENT))
    assert environment(env={name: "of the user"})[name] == "of the user"
    keys = {"env": {"ANTHROPIC_API_KEY": "the gateway's"}}
    assert environment(**keys)["ANTHROPIC_API_KEY"] == "the gateway's"
    assert environment(**keys, options={"api_key": ""})["ANTHROPIC_API_KEY"] == "the gateway's"
    assert environment(**keys, options={"api_key": SECRET})["ANTHROPIC_API_KEY"] == SECRET


def test_the_key_is_a_secret_option() -> None:
    assert {option.name for option in OPTIONS if option.secret} == {"api_key"}
    for option in OPTIONS:
        assert not option.choices or option.default in option.choices


def test_additional_directories_are_arguments_of_a_session() -> None:
    argv = ClaudeDriver().session(session(additional_directories=(Path("/one"), Path("/two, three")))).command.argv
    where = argv.index("--add-dir")
    # The flag takes all arguments up to the next flag.
    assert argv[where : where + 4] == ("--add-dir", "/one", "/two, three", "--print")
    assert "--add-dir" not in ClaudeDriver().session(session()).command.argv


def test_the_effort_is_an_argument_of_sessions_and_tasks() -> None:
    options = {"effort": "high"}
    for launch in (ClaudeDriver().session(session(options=options)), ClaudeDriver().task(task(options=options))):
        assert "--effort=high" in launch.command.argv


def test_the_fast_mode_is_a_setting_of_sessions_and_tasks() -> None:
    on = {"fast": "on"}
    for launch in (ClaudeDriver().session(session(options=on)), ClaudeDriver().task(task(options=on))):
        assert json.loads(argument(launch, "--settings")) == {"fastMode": True}
    asking = ClaudeDriver().session(session(options=on, tools=(ToolGrant("Bash"),)))
    assert json.loads(argument(asking, "--settings")) == {"permissions": {"ask": ["Bash"]}, "fastMode": True}
    for launch in (ClaudeDriver().session(session()), ClaudeDriver().task(task(options={"fast": "off"}))):
        assert "--settings" not in launch.command.argv


def argument(launch: Launch, flag: str) -> str:
    return launch.command.argv[launch.command.argv.index(flag) + 1]


def test_the_schema_of_answers_is_in_the_initialize_request() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert initialize_request(session(output_schema=schema))["jsonSchema"] == schema
    assert "jsonSchema" not in initialize_request(session())


def test_which_schemas_the_cli_takes() -> None:
    takes = ClaudeDriver().takes_schema
    assert takes({"type": "object"}) == "with_session"
    # The model's API refuses these as the input of a tool.
    assert takes({"type": "array"}) is None and takes({}) is None and takes({"type": "object", "anyOf": []}) is None
