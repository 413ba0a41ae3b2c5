"""The gemini driver without the CLI: task output, home folder, policy file, and chat files."""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.acp.permissions import Grants
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.errors import AgentUnavailable
from drivers.contract.events import AgentToken, Error, OutputEvent, SessionEnd, Stderr, Stdout, ToolCall
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import AssistantMessage, ImageBlock, TextBlock, ToolMessage, ToolUseBlock, UserMessage
from drivers.gemini.acp_profile import agent_profile
from drivers.gemini.driver import MAX_TASK, GeminiDriver
from drivers.gemini.history import CHANGED_LAST, OLD_TIME, ZERO_WIDTH_SPACE, chat_file, chat_file_name, records_of
from drivers.gemini.home import (
    MAX_PROJECT_SETTINGS,
    prepare_home,
    project_names,
    rename_chats,
    require_own_servers,
    session_settings,
    task_settings,
    user_folder,
)
from drivers.gemini.modes import USER_POLICY
from drivers.gemini.one_shot_codec import GeminiTaskCodec
from drivers.gemini.policy import policy_file
from drivers.gemini.tools import NAMES, TOOLS, app_tool_name, tool_of_call
from drivers.runtime.confined_files import ConfinedFolders
from drivers.runtime.process import Spawner
from tests.support.swapped_folders import swapped

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def run(*lines: Any, code: int = 0, stderr: tuple[str, ...] = ()) -> list[OutputEvent]:
    codec = GeminiTaskCodec()
    events = [event for line in lines for event in codec.receive(json.dumps(line).encode())]
    return [*events, *codec.exited(code, stderr)]


def test_the_older_format_of_a_task() -> None:
    events = run({"text": "one "}, {"candidates": [{"content": {"parts": [{"text": "two"}]}}]})
    assert events == [AgentToken(text="one "), AgentToken(text="two"), SessionEnd(exit_code=0)]


def test_a_task_without_its_result_line_has_failed() -> None:
    events = run({"type": "init", "session_id": "s"}, {"type": "message", "role": "assistant", "content": "half"})
    assert isinstance(events[-2], Error)
    assert "before it wrote its result" in events[-2].message
    assert events[-1] == SessionEnd(exit_code=1, stop_reason="error")


def test_a_call_that_runs_when_a_task_breaks_off_has_failed() -> None:
    events = run({"type": "tool_use", "tool_id": "c", "tool_name": "read_file", "parameters": {}}, code=1)
    ends = [event for event in events if isinstance(event, ToolCall) and event.status != "started"]
    assert ends == [ToolCall(id="c", name="read_file", status="failed")]
    assert isinstance(events[-1], SessionEnd)


@pytest.mark.parametrize(("code", "message"), [(41, "run `gemini` once"), (55, "not trusted"), (7, "exit code 7")])
def test_exit_codes_are_explained(code: int, message: str) -> None:
    events = run(code=code, stderr=("why",))
    assert events[0] == Stderr(line="why")
    assert message in events[1].message  # type: ignore[union-attr]
    assert events[2] == SessionEnd(exit_code=code, stop_reason="error")


def test_a_failed_result_keeps_the_exit_code() -> None:
    events = run({"type": "result", "status": "error", "error": {"message": "[API Error: no]"}}, code=145)
    assert events == [Error(message="gemini: [API Error: no]"), SessionEnd(exit_code=145, stop_reason="error")]


def test_unknown_lines_become_stdout() -> None:
    codec = GeminiTaskCodec()
    for line in (b"plain text", b'{"type":"new"}', b'{"type":"error","severity":"warning","message":"m"}', b'{"odd":1}', b"[1]"):
        assert codec.receive(line) == [Stdout(line=line.decode())]


def test_the_policy_denies_what_is_not_listed() -> None:
    rules = tomllib.loads(
        policy_file([ToolGrant("read_file"), ToolGrant("run_shell_command", trust=True), ToolGrant("nonsense")])
    )["rule"]
    assert [(rule["toolName"], rule["decision"]) for rule in rules] == [
        ("*", "deny"), ("read_file", "ask_user"), ("run_shell_command", "allow"),
    ]  # fmt: skip
    assert rules[0]["priority"] < rules[1]["priority"]
    assert rules[2]["argsPattern"] == "."


def test_the_tool_of_a_call_is_read_from_its_id() -> None:
    assert tool_of_call("read_file__run_shell_command__1", "execute") == "read_file"
    assert tool_of_call("something_else__1", "other") == "other"
    assert len({tool.name for tool in TOOLS}) == len(TOOLS) == len(NAMES)


def test_prompts_that_would_be_commands_are_text() -> None:
    prompt = agent_profile(verbatim=True).prompt
    assert prompt(Prompt("hello"))[0].text == "hello"
    assert prompt(Prompt("  /help"))[0].text == ZERO_WIDTH_SPACE + "  /help"
    assert prompt(Prompt((TextBlock(text=" "), TextBlock(text="$x"))))[1].text == ZERO_WIDTH_SPACE + "$x"
    # A byte order mark is a space for the CLI.
    assert prompt(Prompt("\ufeff/help"))[0].text == ZERO_WIDTH_SPACE + "\ufeff/help"
    assert prompt(Prompt((TextBlock(text="\ufeff"), TextBlock(text="/help"))))[1].text == ZERO_WIDTH_SPACE + "/help"
    assert agent_profile(verbatim=False).prompt(Prompt("/help"))[0].text == "/help"


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (("/about",), "/about"),
        ((" \ufeff$memory show",), " \ufeff$memory show"),
        (("/init",), ZERO_WIDTH_SPACE + "/init"),
        ((" /\ufeffinit",), ZERO_WIDTH_SPACE + " /\ufeffinit"),
        (("/about\ufeffx",), "/about\ufeffx"),
        (("/", "init"), ZERO_WIDTH_SPACE + "/"),
        (("/init", "a file"), ZERO_WIDTH_SPACE + "/init"),
        (("a file", "/init"), "a file"),
    ],
)
def test_only_commands_that_report_are_commands(texts: tuple[str, ...], first: str) -> None:
    found = agent_profile(verbatim=False).prompt(Prompt(tuple(TextBlock(text=text) for text in texts)))
    assert [block.text for block in found] == [first, *texts[1:]]


@pytest.mark.parametrize("texts", [("/help", "a file"), ("a file", "/help"), ("a file", "a path")])
def test_a_command_with_a_file_is_moved_to_the_front(texts: tuple[str, str]) -> None:
    found = agent_profile(verbatim=False).prompt(Prompt(tuple(TextBlock(text=text) for text in texts)))
    assert [block.text for block in found] == (["/help\n", "a file"] if "/help" in texts else list(texts))


def test_a_history_as_a_chat_file() -> None:
    call = ToolUseBlock(tool_call_id="c1", name="get_weather", input={"location": "Tokyo"})
    cut = ToolUseBlock(tool_call_id="c2", name="get_time", input={})
    history = (
        UserMessage(content=(TextBlock(text="Look"), ImageBlock(url=PIXEL))),
        AssistantMessage(content=(TextBlock(text="Looking."), call, cut)),
        ToolMessage(tool_call_id="c1", content="18C"),
        AssistantMessage(content="It is mild."),
    )
    user, called, answered = records_of(history)
    assert user["content"][1] == {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    results = [call["result"][0]["functionResponse"]["response"]["output"] for call in called["toolCalls"]]
    assert results == ["18C", "Tool call cancelled"]
    assert answered == {"type": "gemini", "content": [{"text": "It is mild."}]}
    lines = chat_file(history, "0123456789", "/work", ["a", "b", "c", "d"], "2026-11-20T00:00:00.000Z").splitlines()
    about = json.loads(lines[0])
    assert (about["sessionId"], len(about["projectHash"]), len(lines)) == ("0123456789", 64, 4)
    assert chat_file_name("0123456789") == f"session-{OLD_TIME}-01234567.jsonl"


@pytest.mark.parametrize("text", ["/Really?", "?", " ?why", "<session_context>x", "<hook_context>x"])
def test_no_message_of_the_user_is_skipped_when_a_session_is_loaded(text: str) -> None:
    """The CLI takes such messages of a chat file for its own: it has written them, or they were seeded."""
    [seeded] = records_of([UserMessage(content=(ImageBlock(url=PIXEL), TextBlock(text=text)))])
    assert seeded["content"][1] == {"text": ZERO_WIDTH_SPACE + text}
    assert agent_profile(verbatim=True).prompt(Prompt(text))[0].text == ZERO_WIDTH_SPACE + text


def test_a_home_whose_folder_leads_elsewhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    chat = tmp_path / "other" / "session-2026-11-20T20-22-aaaaaaaa.jsonl"
    chat.write_text("of another session")
    for name in (".gemini", ".gemini/tmp", ".gemini/tmp/work", ".gemini/tmp/work/chats", "tmp"):
        state = tmp_path / name.replace("/", "-")
        (state / name).parent.mkdir(parents=True)
        (state / name).symlink_to(tmp_path / "other")
        with pytest.raises(AgentUnavailable, match="leads out of it"):
            prepare_home(tmp_path / "user", state, link_all=False)
    assert list((tmp_path / "other").iterdir()) == [chat]


def test_settings_of_a_project_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """A FIFO would block, and without the names the CLI could start a server of the project."""
    settings = tmp_path / ".gemini" / "settings.json"
    settings.parent.mkdir()
    assert project_names(tmp_path) == frozenset()
    settings.write_text('{"mcpServers": {"theirs": {}}}')
    assert "theirs" in project_names(tmp_path)
    settings.write_text(" " * (MAX_PROJECT_SETTINGS + 1))
    with pytest.raises(AgentUnavailable, match="regular file of at most 1024 KiB"):
        project_names(tmp_path)
    settings.unlink()
    os.mkfifo(settings)
    with pytest.raises(AgentUnavailable, match="regular file"):
        project_names(tmp_path)


def test_the_folder_of_a_session_is_not_resolved_again(tmp_path: Path) -> None:
    """It is real when it is checked: a link in it has been created since, and may lead outside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").symlink_to("outside")
    launch = GeminiDriver().session(SessionSpec("gemini", tmp_path / "work", {}, state=tmp_path / "state"))
    launch.codec.outbox.clear()
    launch.codec.receive(b'{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}}')
    assert json.loads(launch.codec.outbox)["params"]["cwd"] == str(tmp_path / "work")


def test_chat_files_are_renamed_so_that_a_load_of_this_minute_keeps_them(tmp_path: Path) -> None:
    (tmp_path / f"session-{OLD_TIME}-aaaaaaaa.jsonl").write_text("the conversation so far")
    (tmp_path / "session-2026-11-20T20-22-aaaaaaaa.jsonl").write_text("begun")
    (tmp_path / "session-2026-11-20T20-22-bbbbbbbb.jsonl").write_text("another")
    newest = CHANGED_LAST.decode()
    for _ in range(2):
        rename_chats(ConfinedFolders((tmp_path,)), tmp_path)
        found = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert found == {
            f"session-{OLD_TIME}-aaaaaaaa.jsonl": f"the conversation so far\n{newest}",
            f"session-{OLD_TIME}-bbbbbbbb.jsonl": f"another\n{newest}",
        }


def test_chat_file_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "chats").mkdir()
    (tmp_path / "outside").write_text("of the user")
    (tmp_path / "chats" / "session-2026-11-20T20-22-aaaaaaaa.jsonl").symlink_to(tmp_path / "outside")
    rename_chats(ConfinedFolders((tmp_path,)), tmp_path / "chats")
    assert (tmp_path / "outside").read_text() == "of the user"


def test_chats_are_renamed_in_no_folder_that_becomes_a_link_meanwhile(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    chats = state / ".gemini" / "tmp" / "work" / "chats"
    name = "session-2026-11-20T20-22-aaaaaaaa.jsonl"
    for folder in (chats, other):
        folder.mkdir(parents=True)
        (folder / name).write_text("begun\n")
    renamed = 0
    with swapped(chats, other):
        while renamed < 20:
            with suppress(AgentUnavailable):
                prepare_home(tmp_path / "user", state, link_all=False)
                renamed += 1
        assert [path.name for path in other.iterdir()] == [name] and (other / name).read_text() == "begun\n"


@pytest.mark.parametrize("file", ["settings.json", "GEMINI.md", "policies/x.toml"])
@pytest.mark.parametrize("confined", [True, False])
def test_an_agent_in_the_sandbox_gets_no_file_to_which_it_has_made_a_link(
    tmp_path: Path, user: Path, file: str, confined: bool
) -> None:
    """The driver reads the user's files, and writes them where the agent reads."""
    secret = tmp_path / "secret"
    secret.write_text('[[rule]]\ntoolName = "glob"\ndecision = "allow"\ncommandPrefix = "sesame"\n')
    if file == "settings.json":
        secret.write_text('{"token": "sesame"}')
    (user / file).unlink(missing_ok=True)
    (user / file).parent.mkdir(exist_ok=True)
    (user / file).symlink_to(secret)
    grants = (ToolGrant("glob", trust=True),)
    spec = replace(spec_of(tmp_path, mode="default"), confined=confined, tools=grants)
    if confined:
        with pytest.raises(AgentUnavailable, match=r"leads? out of|is not in"):
            GeminiDriver().session(spec)
    else:
        assert any(b"sesame" in content for content in GeminiDriver().session(spec).command.files.values())
    # A link to another file of the user's is followed.
    secret.rename(user / "elsewhere")
    (user / file).unlink()
    (user / file).symlink_to(user / "elsewhere")
    assert any(b"sesame" in content for content in GeminiDriver().session(spec).command.files.values())


@pytest.mark.parametrize("file", ["settings.json", "GEMINI.md"])
def test_a_fifo_or_device_in_place_of_the_users_files_blocks_nothing(tmp_path: Path, user: Path, file: str) -> None:
    (user / file).unlink(missing_ok=True)
    os.mkfifo(user / file)
    GeminiDriver().session(spec_of(tmp_path))
    (user / file).unlink()
    (user / file).symlink_to("/dev/zero")
    GeminiDriver().session(spec_of(tmp_path))


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's own ~/.gemini, logged in."""
    own = tmp_path / "home" / ".gemini"
    own.mkdir(parents=True)
    (own / "oauth_creds.json").write_text("{}")
    (own / "commands").mkdir()
    settings = '{\n// mine\n"ui": {"theme": "x"}, "mcpServers": {"m": {}}, "tools": {"allowed": ["glob"]},'
    (own / "settings.json").write_text(settings + '"security": {"auth": {"selectedType": "oauth-personal"}}}')
    return own


def spec_of(tmp_path: Path, env: dict[str, str] | None = None, **options: str) -> SessionSpec:
    return SessionSpec("gemini", tmp_path, {"HOME": str(tmp_path / "home"), **(env or {})}, (), options, tmp_path / "state")


def test_the_login_is_linked_in_a_private_home(tmp_path: Path, user: Path) -> None:
    assert user_folder(spec_of(tmp_path)) == user
    for link_all in (False, True, True):
        prepare_home(user, tmp_path / "state", link_all=link_all)
        own = tmp_path / "state" / ".gemini"
        assert (own / "oauth_creds.json").resolve() == user / "oauth_creds.json"
        assert (own / "commands").exists() is link_all
        assert not (own / "settings.json").exists()


def test_the_settings_of_a_session_add_no_tools(tmp_path: Path, user: Path) -> None:
    found = session_settings(spec_of(tmp_path), user, ["read_file"])
    assert found["tools"]["core"] == ["read_file"]
    assert "allowed" not in found["tools"]
    assert found["mcpServers"] == {}
    assert found["ui"] == {"theme": "x"}
    assert found["security"]["auth"] == {"selectedType": "oauth-personal"}
    assert found["general"]["maxAttempts"] == 3
    bare = session_settings(spec_of(tmp_path, settings="none"), user, [])
    assert "ui" not in bare
    assert bare["security"]["auth"] == {"selectedType": "oauth-personal"}


def test_the_additional_directories_are_in_the_settings(tmp_path: Path, user: Path) -> None:
    (user / "settings.json").write_text('{"context": {"fileName": "X.md", "includeDirectories": ["~/mine"]}}')
    more = (tmp_path / "a, b", tmp_path / "c")
    spec = replace(spec_of(tmp_path), additional_directories=more)
    context = session_settings(spec, user, [])["context"]
    assert context == {"fileName": "X.md", "includeDirectories": [*map(str, more), "~/mine"]}
    bare = session_settings(replace(spec, options={"settings": "none"}), user, [])
    assert bare["context"] == {"includeDirectories": [*map(str, more)]}
    assert session_settings(spec_of(tmp_path), user, [])["context"]["includeDirectories"] == ["~/mine"]
    (user / "settings.json").write_text('{"context": "not an object"}')
    assert session_settings(spec, user, [])["context"] == {"includeDirectories": [*map(str, more)]}


@pytest.mark.parametrize("name", ["$HOME", "${X:-..", "a$b"])
def test_a_directory_with_a_variable_in_its_name_is_rejected(tmp_path: Path, user: Path, name: str) -> None:
    spec = replace(spec_of(tmp_path), additional_directories=(tmp_path / name,))
    with pytest.raises(AgentUnavailable, match=r"has a \$ in its name"):
        session_settings(spec, user, [])


def test_the_application_side_tools_are_allowed_and_no_others() -> None:
    names = ["get_weather", "n" * 80, "größe"]
    rules = tomllib.loads(policy_file([], [ToolSpec(name, "", {}) for name in names]))["rule"]
    allowed = ["mcp_portico_get_weather", f"mcp_portico_{'n' * 18}...{'n' * 30}", "mcp_portico_gr__e"]
    assert [(rule["toolName"], rule["decision"]) for rule in rules] == [("*", "deny"), *((name, "allow") for name in allowed)]
    assert [rule["priority"] for rule in rules] == [900, 999, 999, 999]
    assert max(map(len, map(app_tool_name, names))) == 63


def test_a_seeded_call_has_the_clis_name_of_the_tool() -> None:
    called = AssistantMessage(content=(ToolUseBlock(tool_call_id="c1", name="get_weather", input={}),))
    done = ToolMessage(tool_call_id="c1", content="18")
    (record,) = records_of([called, done], {"get_weather": "mcp_portico_get_weather"})
    call = record["toolCalls"][0]
    assert (call["name"], call["result"][0]["functionResponse"]["name"]) == ("mcp_portico_get_weather",) * 2


def test_the_settings_of_a_task_are_the_users(tmp_path: Path, user: Path) -> None:
    found = task_settings(spec_of(tmp_path), user)
    assert found["mcpServers"] == {"m": {}}
    assert found["tools"] == {"allowed": ["glob"]}


def test_the_authentication_type_is_set(tmp_path: Path, user: Path) -> None:
    def chosen(env: dict[str, str], **options: str) -> Any:
        return task_settings(spec_of(tmp_path, env, **options), user)["security"].get("auth", {}).get("selectedType")

    assert chosen({"GEMINI_API_KEY": "k"}) == "oauth-personal"
    assert chosen({}, api_key="k") == "gemini-api-key"
    (user / "settings.json").write_text("not JSON")
    assert chosen({"GEMINI_API_KEY": "k"}) == "gemini-api-key"
    assert chosen({"GOOGLE_GENAI_USE_VERTEXAI": "true"}) == "vertex-ai"
    assert chosen({}) == "oauth-personal"
    (user / "oauth_creds.json").unlink()
    assert chosen({}) is None


def test_no_prompt_or_secret_is_in_the_arguments(tmp_path: Path) -> None:
    driver, options = GeminiDriver(), {"api_key": "s3cret", "model": "m"}
    task = driver.task(TaskSpec("gemini", tmp_path, {}, (), options, tmp_path / "state", task="/do")).command
    assert task.argv == ("gemini", "--output-format", "stream-json", "--model=m")
    assert task.stdin == b"\n/do"
    session = driver.session(
        SessionSpec("gemini", tmp_path, {}, (), options, tmp_path / "state", seed=SessionSeed(system="be kind"))
    ).command
    assert "s3cret" not in str(session.argv)
    assert "be kind" not in str(session.argv)
    # A session takes policies from its home only.
    assert session.argv[2:4] == ("--policy=~/.gemini/policies", "--admin-policy=")
    assert session.env["GEMINI_API_KEY"] == "s3cret"
    assert session.env["TMPDIR"] == str(tmp_path / "state" / "tmp")
    assert session.files[tmp_path / "state" / ".gemini" / "GEMINI.md"] == b"be kind"


async def test_a_task_that_would_be_cut_is_rejected(tmp_path: Path) -> None:
    spec = TaskSpec("/bin/true", tmp_path, {"HOME": str(tmp_path)}, state=tmp_path / "state", task="x" * (MAX_TASK + 1))
    with pytest.raises(AgentUnavailable, match="8 MiB"):
        await GeminiDriver().execute(spec, Spawner(), Limits())


def test_servers_of_a_client_are_allowed_by_name_and_their_tools_ask(tmp_path: Path) -> None:
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").write_text('{"mcpServers": {/* mine */ "mine": {"command": "x"}}}')
    servers = tuple(McpServer(name, command="serve", env={"TOKEN": "t0p"}) for name in ("Portico", "mine", "my_ser ver"))
    trusted = (ToolGrant("mcp__mine-2__get_it", trust=True), ToolGrant("mcp__portico__x", trust=True))
    spec = SessionSpec("gemini", tmp_path, {"HOME": "/nowhere"}, state=tmp_path, mcp_servers=servers, tools=trusted)
    launch = GeminiDriver().session(spec)
    names = ["portico-2", "mine-2", "my-ser-ver"]
    assert [arg for arg in launch.command.argv if "mcp" in arg] == [f"--allowed-mcp-server-names={name}" for name in names]
    assert "t0p" not in str(launch.command.argv) + str(launch.command.files)
    rules = tomllib.loads(launch.command.files[tmp_path / ".gemini" / "policies" / "portico.toml"].decode())["rule"]
    assert {rule["toolName"]: (rule["decision"], rule["priority"]) for rule in rules} == {
        "*": ("deny", 900),
        "mcp_*": ("ask_user", 950),
        "mcp_mine-2_get_it": ("allow", 999),
    }


def test_a_call_of_a_clients_server_is_named_by_server_and_tool() -> None:
    assert tool_of_call("mcp_my-server_get_it__mcp_my-server_get_it_17_0", "other") == "mcp__my-server__get_it"
    assert tool_of_call("17_0", "other") == "other"
    grants = Grants([ToolGrant("glob")], ask_prefixes=("mcp__my-server__",))
    names = ("mcp__my-server__get", "mcp__other__get", "glob", "x")
    assert [grants.verdict(name) for name in names] == ["ask", "deny", "ask", "deny"]
    assert Grants([]).verdict("x") == "deny"


def test_policies_are_removed_in_the_home_only(tmp_path: Path) -> None:
    user, state, other = tmp_path / "user", tmp_path / "state", tmp_path / "other"
    own = state / ".gemini" / "policies"
    for folder in (other, own):
        folder.mkdir(parents=True)
        (folder / f"{USER_POLICY}a.toml").write_text("")
        (folder / "b.txt").write_text("")
    prepare_home(user, state, link_all=False)
    assert [path.name for path in own.iterdir()] == ["b.txt"]
    # As a tool of the CLI can have done it.
    own.rename(tmp_path / "moved")
    own.symlink_to(other)
    with pytest.raises(AgentUnavailable, match="a symbolic link"):
        prepare_home(user, state, link_all=False)
    assert len(list(other.iterdir())) == 2


def test_a_task_removes_no_policy_of_the_user(tmp_path: Path) -> None:
    policy = tmp_path / "user" / "policies" / f"{USER_POLICY}a.toml"
    policy.parent.mkdir(parents=True)
    policy.write_text("")
    prepare_home(tmp_path / "user", tmp_path / "state", link_all=True)
    assert policy.exists()


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{"mcpServers": {"portico": {"command": "x"}}}', True),
        ('{"mcpServers": {"\\u0070ortico": {"command": "x"}}}', True),
        ('{"mcpServers": {"github": {"command": "x"}}}', True),
        (" " * (1024 * 1024) + "{}", True),
        ('{"mcpServers": {"mine": {"command": "x"}}}', False),
        (None, False),
    ],
)
def test_no_server_of_a_project_has_the_name_of_one_of_the_session(tmp_path: Path, text: str | None, refused: bool) -> None:
    (tmp_path / ".gemini").mkdir()
    if text is not None:
        (tmp_path / ".gemini" / "settings.json").write_text(text)
    if not refused:
        return require_own_servers(tmp_path, ["github", "portico"])
    with pytest.raises(AgentUnavailable, match=r"may have an MCP server named '(github|portico)'"):
        require_own_servers(tmp_path, ["github", "portico"])
