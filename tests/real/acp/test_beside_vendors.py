"""The table "Beside the vendors' adapters" of docs/protocols/acp.md: each row has a test here that shows both of its columns.

One script drives the vendor's adapter and `portico acp` over the same CLI and the same model server (`vendors.py`); each test
compares what was recorded. `tests/docs/test_acp_comparison.py` checks that no row is without a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import pytest

from tests.real.acp.vendors import (
    Recording,
    contents,
    record_both,
    record_claude,
    record_codex,
    terminal_exit,
    terminal_output,
)

pytestmark = pytest.mark.timeout(300)

ROWS: dict[str, str] = {}
"""The rows of the table that have a test, with the test's name."""

Test = TypeVar("Test", bound=Callable[..., None])


class Pair(NamedTuple):
    vendor: Recording
    portico: Recording


def row(name: str) -> Callable[[Test], Test]:
    """Mark a test as the one that shows this row of the table."""

    def mark(test: Test) -> Test:
        assert name not in ROWS and test.__name__.startswith("test_")
        ROWS[name] = test.__name__
        return test

    return mark


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    base = tmp_path_factory.mktemp("claude")
    return Pair(*record_both(base, record_claude))


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    base = tmp_path_factory.mktemp("codex")
    return Pair(*record_both(base, record_codex))


COMMAND = "true\necho two > made"
HUNK = "line 17\nline 18\nline 19\nline 20\nline 21\nline 22\nline 23"


@row("title of a command")
def test_title_of_a_command(claude: Pair, codex: Pair) -> None:
    for pair in (claude, codex):
        [asked], [own] = pair.vendor.asked("command"), pair.portico.asked("command")
        assert asked["toolCall"]["title"] == COMMAND
        assert own["toolCall"]["title"] == "true …"
        assert contents(own["toolCall"])[0] == f"```sh\n{COMMAND}\n```"
    path = codex.vendor.work / "a.txt"
    assert f"Read file '{path}'" in codex.vendor.titles("unasked")
    assert "sed -n 20,22p a.txt" in codex.portico.titles("unasked")


@row("description of a command")
def test_description_of_a_command(claude: Pair, codex: Pair) -> None:
    text = "what it does"
    [rendered], [plain] = claude.vendor.calls("command"), claude.vendor.calls("plain command")
    assert not any(text in str(update.get("content")) for update in rendered["history"])
    assert any(text in str(update.get("content")) for update in plain["history"])
    [asked] = claude.portico.asked("command")
    assert text in contents(asked["toolCall"])
    # codex has its reason for leaving the sandbox instead.
    [vendor], [own] = codex.vendor.asked("command"), codex.portico.asked("command")
    assert "it needs to" not in str(vendor["toolCall"])
    assert "it needs to" in contents(own["toolCall"])


@row("input of an MCP server's tool at approval")
def test_input_of_an_mcp_tool(claude: Pair) -> None:
    for side, shown in ((claude.vendor, False), (claude.portico, True)):
        [asked] = side.asked("mcp")
        assert asked["toolCall"]["rawInput"] == {"name": "a name"}
        assert ("a name" in str(asked["toolCall"].get("content"))) == shown


@row("title of a search")
def test_title_of_a_search(claude: Pair, codex: Pair) -> None:
    assert f'grep "line 2" {claude.vendor.work}/sub' in claude.vendor.titles("unasked")
    assert "Grep line 2 in sub" in claude.portico.titles("unasked")
    assert "Search for 'line 2' in a.txt" in codex.vendor.titles("unasked")
    assert "grep -n 'line 2' a.txt" in codex.portico.titles("unasked")


@row("title of a file's call")
def test_title_of_a_file_call(claude: Pair, codex: Pair) -> None:
    for side, read in ((claude.vendor, "Read a.txt (20 - 22)"), (claude.portico, "Read a.txt (20-22)")):
        assert read in side.titles("unasked")
        assert [asked["toolCall"]["title"] for asked in side.asked("edit")] == ["Edit a.txt"]
    assert codex.vendor.titles("edit") == ["Editing files"]
    assert codex.portico.titles("edit") == ["Edit files a.txt"]


@row("result of an edit")
def test_result_of_an_edit(claude: Pair, codex: Pair) -> None:
    for side in claude:
        [call] = side.calls("edit")
        [diff] = call["content"]
        assert (diff["oldText"], diff["newText"]) == (HUNK, HUNK.replace("line 20", "twenty"))
        assert call["locations"] == [{"path": str(side.work / "a.txt"), "line": 17}]
    for side in codex:
        [call] = side.calls("edit")
        assert call["content"][0]["oldText"].rstrip("\n") == "line 19\nline 20\nline 21"
    assert codex.vendor.calls("edit")[0].get("locations") is None
    assert codex.portico.calls("edit")[0]["locations"] == [{"path": str(codex.portico.work / "a.txt"), "line": 19}]


@row("slash commands before the first prompt")
def test_slash_commands_before_the_first_prompt(claude: Pair, codex: Pair) -> None:
    for side in claude:
        assert len(side.commands()) >= 40 and "hello" in side.commands()
    for side, count in ((codex.vendor, 11), (codex.portico, 1)):
        assert len([name for name in side.commands() if not name.startswith("$")]) == count
        assert "$greet" in side.commands()
    assert "compact" in codex.portico.commands()


@row("a review")
def test_a_review(claude: Pair, codex: Pair) -> None:
    for side in claude:
        assert "code-review" in side.commands()
    assert "review" in codex.vendor.commands() and "$review-agent" in codex.portico.commands()
    # A review of the adapter's is another thread, whose commands are not shown, and rejected where they would be asked about.
    assert codex.vendor.asked("review") == [] and codex.vendor.calls("review") == []
    assert "approval policy is Never" in str(codex.vendor.requests["review"])
    # With Portico it is a turn with the CLI's own skill.
    assert "$review-agent" in str(codex.portico.requests["review"])


@row("prompt while one is at work")
def test_prompt_while_one_is_at_work(claude: Pair, codex: Pair) -> None:
    for side in (*claude, *codex):
        assert side.answers["busy"]["stopReason"] == side.answers["held"]["stopReason"] == "end_turn"
        assert side.text("busy").endswith("Second.")


@row("message to the run at work")
def test_message_to_the_run_at_work(claude: Pair, codex: Pair) -> None:
    for side in (*claude, *codex):
        assert side.initialized["_meta"]["steering"] == {"supported": True}
        assert side.steered == {"outcome": "injected"}


@row("modes")
def test_modes(claude: Pair, codex: Pair) -> None:
    assert claude.vendor.modes() == ["default", "acceptEdits", "plan", "auto", "bypassPermissions"]
    assert claude.portico.modes() == ["default", "acceptEdits", "plan", "autoMode", "ask", "edit", "auto"]
    assert claude.vendor.created["modes"]["currentModeId"] == "auto"
    assert claude.portico.created["modes"]["currentModeId"] == "default"
    assert codex.vendor.modes() == ["read-only", "workspace-write", "agent", "agent-full-access"]
    assert codex.vendor.created["modes"]["currentModeId"] == "agent"
    [plan] = codex.vendor.options("collaboration_mode")
    assert [option["value"] for option in plan["options"]] == ["default", "plan"]
    assert codex.portico.modes() == ["workspace", "read-only", "plan", "ask", "edit", "auto"]
    assert codex.portico.created["modes"]["currentModeId"] == "workspace"


@row("allow and deny rules of the user's settings")
def test_rules_of_the_user(claude: Pair, codex: Pair) -> None:
    for side in claude:
        assert (side.work / "allowed").exists(), "the user's settings allow touch"
        assert (side.work / "a.txt").exists(), "the user's settings deny rm"
        [denied] = [call for call in side.calls("unasked") if call["title"] == "rm a.txt"]
        assert denied["status"] == "failed"
    for side in codex:
        assert side.asked("ruled") == [] and (side.work / "ruled").exists()


@row("`ls`, reading, searching and tasks in the folder")
def test_what_is_not_asked(claude: Pair, codex: Pair) -> None:
    for side in (*claude, *codex):
        assert side.asked("unasked") == []
        assert len(side.calls("unasked")) >= 3


@row('"always"')
def test_always(claude: Pair, codex: Pair) -> None:
    def always(side: Recording, step: str) -> list[str]:
        [asked] = side.asked(step)
        return [option["name"] for option in asked["options"] if option["kind"] == "allow_always"]

    assert always(claude.vendor, "push") == ["Yes, and don't ask again for git push * and npm run * commands"]
    assert always(claude.portico, "push") == [
        "Always allow Bash(git push *), Bash(npm run *) in this project",
        "Always allow Bash in this session",
    ]
    assert always(codex.vendor, "edit") == ["Yes, and don't ask again for these files"]
    assert always(codex.portico, "edit") == ["Allow changes of these files in this session"]
    for side in codex:
        [rule] = always(side, "busy")
        assert "commands that" in rule and "touch" in rule


@row("approval of a plan")
def test_approval_of_a_plan(claude: Pair, codex: Pair) -> None:
    names = []
    for side in claude:
        [asked] = side.asked("exit")
        [call] = side.calls("exit")
        assert any("# The plan" in str(update.get("content")) for update in call["history"])
        names.append([option["name"] for option in asked["options"]])
    vendor, own = names
    assert vendor == ["Yes, manually approve edits", "Yes, and use auto mode", "Yes, and bypass permissions", "No, keep planning"]
    assert own == ["Yes, and use auto mode", "Yes, and accept edits", "Yes, manually approve edits", "No, keep planning"]
    # With the plan in the CLI's own file, the adapter can carry it out in a new conversation; its other options are the same.
    cleared, kept = ([option["name"] for option in side.asked("planfile")[0]["options"]] for side in claude)
    assert [name for name in cleared if name not in vendor] == ["Yes, clear context (0% used) and use auto mode"]
    assert kept == own
    for side, title in ((claude.vendor, "Approve Plan"), (claude.portico, "Approve plan")):
        [asked] = side.asked("planfile")
        assert asked["toolCall"]["title"] == title and contents(asked["toolCall"]) == ["# The plan\n\n1. Do it\n"]
    [asked], [own_asked] = codex.vendor.asked("planned"), codex.portico.asked("planned")
    assert [option["name"] for option in asked["options"]] == [
        "Yes, implement this plan",
        "No, and tell Codex what to do differently",
    ]
    assert [option["name"] for option in own_asked["options"]] == [
        "Yes, implement this plan",
        "Yes, and approve each change",
        "No, keep planning",
    ]
    for side, request, title in ((codex.vendor, asked, "Implement this plan?"), (codex.portico, own_asked, "Implement plan")):
        assert request["toolCall"]["rawInput"] == {"plan": "# The plan\n\n1. Do it\n"} and request["toolCall"]["title"] == title
        assert "# The plan" in side.text("planned")
    assert not contents(asked["toolCall"]) and contents(own_asked["toolCall"]) == ["# The plan\n\n1. Do it\n"]
    # Approved, the plan is carried out in the same run, in another mode.
    for side in codex:
        approved, _ = side.steps["approved"], side.asked("approved")
        assert "# The plan" in str(approved) and "I see" in side.text("approved")
    assert "Implement the approved plan." in str(codex.vendor.requests["approved"]["input"][-1])
    assert "Implement the plan." in str(codex.portico.requests["approved"]["input"][-1])
    [changed] = codex.portico.updates("approved", "current_mode_update")
    assert changed["currentModeId"] == "workspace"


@row("questions of the agent")
def test_questions_of_the_agent(claude: Pair) -> None:
    for side in claude:
        [form] = side.forms("question")
        question = form["requestedSchema"]["properties"]["question_0"]
        assert [choice["const"] for choice in question["oneOf"]] == ["Red", "Blue"]
    [without] = claude.vendor.calls("plain question")
    assert without["status"] == "failed" and "AskUserQuestion is disabled" in str(without["content"])
    [asked] = claude.portico.asked("plain question")
    assert [option["name"] for option in asked["options"]] == ["Red: warm", "Blue: cold", "Skip"]


@row("plan")
def test_plan(claude: Pair, codex: Pair) -> None:
    # `TodoWrite` is not available in these sessions, so that the call fails.
    assert len(claude.vendor.updates("todo", "plan")) == 1
    assert claude.portico.updates("todo", "plan") == []
    [call] = claude.portico.calls("todo")
    assert call["status"] == "failed"
    # This version of codex has no tool `update_plan` for this model, and reports no plan.
    for side in codex:
        assert side.updates("plan", "plan") == []


@row("output of a command")
def test_output_of_a_command(claude: Pair, codex: Pair) -> None:
    for side in claude:
        [call] = [call for call in side.calls("unasked") if call["title"] == "ls"]
        assert "".join(terminal_output(call)).split() == ["a.txt", "sub"]
        assert [found["exit_code"] for found in terminal_exit(call)] == [0]
    for side in codex:
        [call] = side.calls("busy")
        assert "".join(terminal_output(call)).splitlines() == ["one", "over"]
        assert len(terminal_output(call)) == 2, "the output was sent while the command ran"
        assert [found["exit_code"] for found in terminal_exit(call)] == [0]


@row("command in the background")
def test_command_in_the_background(claude: Pair) -> None:
    [vendor], [own] = claude.vendor.calls("background"), claude.portico.calls("background")
    assert (vendor["title"], vendor["status"]) == ("sleep 0.2; echo over", "completed")
    assert "Command running in background" in "".join(terminal_output(vendor))
    # Portico's own environment of the CLI disables background tasks.
    assert (own["title"], own["status"]) == ("sleep 0.2; echo over (in the background)", "failed")
    assert "unexpected parameter `run_in_background`" in contents(own)[0]


@row("input of a call")
def test_input_of_a_call(claude: Pair, codex: Pair) -> None:
    for side in claude:
        [call] = side.calls("written")
        inputs = [update["rawInput"] for update in call["history"] if "rawInput" in update]
        assert [sorted(value) for value in inputs[:3]] == [[], ["file_path"], ["content", "file_path"]]
        assert call["history"][0]["status"] == "pending"
    for side in codex:
        [call] = side.calls("command")
        assert "history" in call and call["history"][0]["rawInput"]["command"] == COMMAND


@row("error")
def test_a_key_that_the_model_rejects(claude: Pair, codex: Pair) -> None:
    # claude tries ten times, which takes a minute and a half.
    assert claude.vendor.rejected_key is None
    assert claude.portico.rejected_key is not None
    assert claude.portico.rejected_key["data"]["details"] == claude.portico.rejected_key["message"]
    assert "Invalid API key" in claude.portico.rejected_key["message"]
    assert codex.vendor.rejected_key == {"code": -32000, "message": "Authentication required"}
    assert codex.portico.rejected_key is not None
    assert "401 Unauthorized" in codex.portico.rejected_key["data"]["details"]


@row("program missing or logged out")
def test_program_missing(claude: Pair, codex: Pair) -> None:
    method, error = claude.vendor.program_missing
    assert (method, error["message"]) == ("session/new", "Internal error")
    assert "/nonexistent/claude" in error["data"]["details"]
    assert codex.vendor.program_missing == ("initialize", {"message": "", "ended": True})
    for pair, package in ((claude, "@anthropic-ai/claude-code"), (codex, "@openai/codex")):
        method, error = pair.portico.program_missing
        assert method == "session/new" and f"npm install -g {package}" in error["message"]


@row("login in a terminal")
def test_login_in_a_terminal(claude: Pair, codex: Pair) -> None:
    def methods(side: Recording) -> list[tuple[str, str | None]]:
        return [(method["id"], method.get("type")) for method in side.initialized["authMethods"]]

    assert methods(claude.vendor) == [("claude-ai-login", "terminal"), ("console-login", "terminal")]
    assert methods(claude.portico) == [("claude-login", "terminal"), ("console-login", "terminal"), ("login", None)]
    assert methods(codex.vendor) == [("api-key", None), ("chat-gpt", None)]
    assert methods(codex.portico) == [("codex-login", "terminal"), ("login", None)]


@row("project folder")
def test_project_folder(claude: Pair, codex: Pair) -> None:
    # The folder is in none of the configurations.
    for side in (*claude, *codex):
        assert side.created["sessionId"] and not side.work.is_relative_to(side.work.parent / "home")


@row("standard error")
def test_standard_error(claude: Pair, codex: Pair) -> None:
    assert "[session/create]" in claude.vendor.standard_error
    assert "[SYSTEM_ERROR]" in codex.vendor.standard_error
    assert claude.portico.standard_error == codex.portico.standard_error == ""


def costs(side: Recording, step: str) -> list[float]:
    return [update["cost"]["amount"] for update in side.updates(step, "usage_update") if update.get("cost")]


@row("context use")
def test_context_use(claude: Pair, codex: Pair) -> None:
    for side in claude:
        # One with a message of the model, and one with the end of the run, which has the cost.
        assert len([update for update in side.updates("edit", "usage_update") if "cost" not in update]) >= 1
    for side in codex:
        assert len(side.updates("command", "usage_update")) >= 2


@row("cost")
def test_cost(claude: Pair, codex: Pair) -> None:
    for side in claude:
        [first], [second] = costs(side, "unasked"), costs(side, "edit")
        assert 0 < first < second
    for side in codex:
        assert costs(side, "command") == []


@row("thought tokens")
def test_thought_tokens(claude: Pair, codex: Pair) -> None:
    for side in (*claude, *codex):
        assert side.answers["command"]["usage"]["totalTokens"] == 298
    assert "thoughtTokens" not in claude.vendor.answers["command"]["usage"]
    for side in codex:
        assert side.answers["command"]["usage"]["thoughtTokens"] == 10


@row("usage limits")
def test_usage_limits(codex: Pair) -> None:
    error = codex.vendor.answers["limited"]["error"]
    assert error["data"]["codexErrorInfo"] == "usageLimitExceeded" and "2096" not in str(codex.vendor.steps["limited"])
    error = codex.portico.answers["limited"]["error"]
    assert "the limit resets at 2096-10-02" in error["message"]
    metas = [update.get("_meta") or {} for update in codex.portico.updates("limited", "session_info_update")]
    [limit] = [meta["portico/rateLimit"] for meta in metas if meta]
    assert (limit["status"], limit["resetsAt"]) == ("rejected", 4_000_000_000)


@row("list of models")
def test_list_of_models(claude: Pair, codex: Pair) -> None:
    def sonnet(side: Recording, value: str) -> dict[str, str]:
        [models] = side.options("model")
        [found] = [option for option in models["options"] if option["value"] == value]
        return dict(found)

    found = sonnet(claude.vendor, "sonnet")
    assert found["name"].startswith("Sonnet ") and "per Mtok" in found["description"]
    shown = sonnet(claude.portico, "sonnet")
    assert shown["name"] and shown["name"] != "sonnet" and shown["description"] == found["description"]
    found = sonnet(codex.vendor, "gpt-6-sol")
    assert found["name"] == "6 Sol" and found["description"]
    shown = sonnet(codex.portico, "gpt-6-sol")
    assert shown["name"] != "gpt-6-sol" and shown["description"] == found["description"]


@row("effort and fast mode")
def test_effort_and_fast_mode(claude: Pair, codex: Pair) -> None:
    for pair in (claude, codex):
        assert len(pair.vendor.options("thought_level")) == 1
        assert len(pair.portico.options("thought_level")) == 1
    for pair, name in ((claude, "fast"), (codex, "fast-mode")):
        assert (pair.vendor.fast["id"], pair.portico.fast["id"]) == (name, "fast")
        assert pair.vendor.fast["category"] == pair.portico.fast["category"] == "model_config"
    for side in claude:
        assert side.requests["fast"]["speed"] == "fast" and "speed" not in side.requests["unasked"]
    for side in codex:
        assert side.requests["fast"]["service_tier"] == "priority" and "service_tier" not in side.requests["unasked"]


@row("sessions of another process")
def test_sessions_of_another_process(claude: Pair, codex: Pair) -> None:
    assert claude.vendor.session in claude.vendor.listed and claude.vendor.loaded is None
    assert codex.vendor.session in codex.vendor.listed
    assert codex.vendor.loaded is not None and "in use by another Codex client" in codex.vendor.loaded["message"]
    for side in (claude.portico, codex.portico):
        assert side.session in side.listed and side.loaded is None


@row("`_meta` of `session/new`")
def test_meta_of_a_new_session(claude: Pair, codex: Pair) -> None:
    assert "MARKED-PROMPT" in str(claude.vendor.requests["command"]["system"])
    assert "haiku" in claude.vendor.requests["command"]["model"]
    assert "MARKED-PROMPT" in str(claude.portico.requests["command"]["system"])
    assert "haiku" in claude.portico.requests["command"]["model"]
    assert "MARKED-PROMPT" not in str(codex.vendor.requests["command"])
    assert "MARKED-PROMPT" in str(codex.portico.requests["command"])
