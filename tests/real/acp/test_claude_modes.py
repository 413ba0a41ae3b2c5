"""The modes of the real claude over ACP: its own rules, plans, questions, and the rules of the gateway in each of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime.sandbox import unavailable
from tests.model_server.scenarios import ToolUse
from tests.real.processes import processes_of
from tests.real.test_claude_tools_permission import hook
from tests.real.tool_bench import Bench, bash, result
from tests.support.acp_client import Client, connect
from tests.support.daemon import RunningGateway, run_gateway

Json = dict[str, Any]

RULES = {"permissions": {"allow": ["Bash(touch:*)"], "deny": ["Bash(rm:*)"]}}
QUESTION = ToolUse(
    "AskUserQuestion",
    {
        "questions": [
            {
                "question": "Which color?",
                "header": "Color",
                "multiSelect": False,
                "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}],
            }
        ]
    },
)
SKILL = "---\nname: x\ndescription: d\nallowed-tools: Bash\n---\nSee: !`touch made`"


class Bot:
    """A client in this process whose permission requests are recorded and answered by the kind or id that `choose` names."""

    def __init__(self, bench: Bench, running: RunningGateway, client: Client) -> None:
        self.bench, self.running, self.client = bench, running, client
        self.asked: list[Json] = []
        self.choose: Callable[[Json], str] = lambda params: "allow_once"
        client.choose = self._answer
        self.session = ""

    def _answer(self, params: Json) -> str:
        self.asked.append(params)
        chosen = self.choose(params)
        assert chosen in [option["optionId"] for option in params["options"]], params["options"]
        return chosen

    async def new(self, mode: str | None = None) -> Json:
        answer: Json = await self.client.request("session/new", {"cwd": ".", "mcpServers": []})
        self.session = answer["sessionId"]
        if mode is not None:
            await self.set_mode(mode)
        return answer

    async def set_mode(self, mode: str) -> None:
        await self.client.request("session/set_mode", {"sessionId": self.session, "modeId": mode})

    async def calls(self, *blocks: ToolUse) -> list[str]:
        """Let the model make these calls in one message; return the commands or tools that were asked about."""
        first = len(self.asked)
        await self.client.prompt(self.session, self.bench.model_calls(*blocks))
        found = [params["toolCall"] for params in self.asked[first:]]
        return [call["rawInput"].get("command") or call["title"].split()[0] for call in found]

    @property
    def modes(self) -> list[str]:
        return [u["currentModeId"] for u in self.client.updates() if u["sessionUpdate"] == "current_mode_update"]

    def pids(self) -> set[int]:
        return {process.pid for process in processes_of(self.bench.home)}


@asynccontextmanager
async def editor(bench: Bench, agent: Json | None = None, **capabilities: Any) -> AsyncIterator[Bot]:
    config = bench.config()
    config["agents"]["claude"] |= {"options": {}} | (agent or {})
    async with run_gateway(config) as running:
        client, connection = connect(running.gateway, "claude")
        await client.initialize(**capabilities)
        yield Bot(bench, running, client)
        await connection.close()


async def test_the_settings_of_the_user_decide_what_is_asked(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    bench.settings(RULES)
    (bench.work / "a.txt").write_text("hello\n")
    async with editor(bench) as bot:
        answer = await bot.new()
        assert answer["modes"]["currentModeId"] == "default"
        unasked = [
            bash("ls"),
            ToolUse("Read", {"file_path": "a.txt"}),
            ToolUse("Grep", {"pattern": "hello"}),
            ToolUse("Glob", {"pattern": "*"}),
            ToolUse("TaskCreate", {"subject": "x", "description": "y"}),
            bash("touch allowed"),
            bash("rm a.txt"),
        ]
        assert await bot.calls(*unasked) == []
        assert sorted(path.name for path in bench.work.iterdir()) == ["a.txt", "allowed"]
        assert await bot.calls(ToolUse("Write", {"file_path": "b.txt", "content": "x"}), bash("git push")) == [
            "Write",
            "git push",
        ]
        # The CLI has made the path absolute, which is not another call.
        assert bot.asked[0]["toolCall"]["rawInput"]["file_path"] == "b.txt"
        names = {option["optionId"]: option["name"] for option in bot.asked[1]["options"]}
        assert list(names) == ["allow_once", "rule:0", "allow_always", "reject_once", "reject_always"]
        assert names["rule:0"] == "Always allow Bash(git push *) in this project"
        assert list(bench.results_sent()) and (bench.work / "b.txt").exists()


async def test_a_narrow_rule_is_kept_by_the_cli(unstarted_bench: Bench) -> None:
    # The CLI keeps the rules of a project in its repository.
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(unstarted_bench.work))
    assert await git.wait() == 0
    async with editor(unstarted_bench) as bot:
        await bot.new()
        before = bot.pids()
        bot.choose = lambda params: "rule:0"
        assert await bot.calls(bash("git push a")) == ["git push a"]
        assert await bot.calls(bash("git push a b"), bash("git pull")) == ["git pull"]
        assert before <= bot.pids(), "the process stays"
    rules = json.loads((unstarted_bench.work / ".claude" / "settings.local.json").read_text())
    assert rules["permissions"]["allow"] == ["Bash(git push *)", "Bash(git pull *)"]


@pytest.mark.parametrize(
    ("mode", "asked", "made"),
    [
        ("default", ["touch made", "Write", "git push"], []),
        ("acceptEdits", ["git push"], ["made", "written"]),
        ("plan", ["Write"], []),
        # The model that decides is not there: what it would have to decide about is denied.
        ("autoMode", [], ["made", "written"]),
        ("bypassPermissions", [], ["made", "written"]),
    ],
)
async def test_what_each_mode_asks_about(unstarted_bench: Bench, mode: str, asked: list[str], made: list[str]) -> None:
    bench = unstarted_bench
    (bench.work / "a.txt").write_text("hello\n")
    calls = (bash("ls"), bash("touch made"), ToolUse("Write", {"file_path": "written", "content": "x"}), bash("git push"))
    async with editor(bench, {"allow_bypass": True}) as bot:
        await bot.new(mode)
        bot.choose = lambda params: "reject_once"
        found = [one for call in calls for one in await bot.calls(call)]
        assert (found, sorted(path.name for path in bench.work.iterdir())) == (asked, ["a.txt", *made])
        assert ("Auto mode is unavailable" in json.dumps(bench.sent())) == (mode in ("plan", "autoMode"))
        await bot.calls(ToolUse("Read", {"file_path": "a.txt"}))
        assert "hello" in json.dumps(bench.sent()) and len(bot.asked) == len(asked)


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "plan", "autoMode", "bypassPermissions"])
async def test_rules_of_the_gateway_hold_in_each_mode(unstarted_bench: Bench, mode: str) -> None:
    bench = unstarted_bench
    # With this variable the CLI would call no hooks.
    bench.settings({"env": {"CLAUDE_CODE_SIMPLE": "1"}, "permissions": {"allow": ["Bash"]}})
    skill = bench.home / ".claude" / "skills" / "x"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL)
    rules = [
        {"tool": "Bash", "when": {"command": "cat *"}, "decide": "deny", "reason": "No cats."},
        {"tool": "Bash", "when": {"command": "pwd *"}, "decide": "ask"},
    ]
    async with editor(bench, {"policy": rules, "allow_bypass": True}) as bot:
        await bot.new(mode)
        assert await bot.calls(bash("ls"), bash("cat a"), bash("pwd"), ToolUse("Skill", {"skill": "x"})) in (
            ["pwd"],
            ["pwd", "Load"],
        )
        denied = [text for block in bench.results_sent().values() if "Tool call denied" in (text := str(block["content"]))]
        assert len(denied) == 1 and "No cats." in denied[0]
        assert not (bench.work / "made").exists()


async def test_bypass_needs_the_permission_of_the_configuration(unstarted_bench: Bench) -> None:
    async with editor(unstarted_bench) as bot:
        modes = [mode["id"] for mode in (await bot.new())["modes"]["availableModes"]]
        assert modes == ["default", "acceptEdits", "plan", "autoMode", "ask", "edit", "auto"]
        with pytest.raises(Exception, match="unknown mode 'bypassPermissions'"):
            await bot.set_mode("bypassPermissions")


async def test_a_mode_changes_without_a_restart(unstarted_bench: Bench) -> None:
    write = ToolUse("Write", {"file_path": "a.txt", "content": "x"})
    async with editor(unstarted_bench) as bot:
        await bot.new()
        assert await bot.calls(write) == ["Write"]
        process = bot.pids()
        await bot.set_mode("acceptEdits")
        assert await bot.calls(ToolUse("Write", {"file_path": "b.txt", "content": "x"})) == []
        assert bot.pids() == process and bot.modes == ["acceptEdits"]


async def test_a_plan_is_shown_and_its_approval_changes_the_mode(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    async with editor(bench) as bot:
        await bot.new("plan")
        await bot.calls(bash("ls"))
        path = re.search(r"(/\S+/plans/\S+?\.md)", json.dumps(bench.model.bodies()[-1]))
        assert path is not None
        plan = ToolUse("Write", {"file_path": path[1], "content": "# The plan\n\n1. Write it"})
        bot.choose = lambda params: "keep_planning"
        assert await bot.calls(plan) == []
        assert await bot.calls(ToolUse("ExitPlanMode", {})) == ["Approve"]
        [content] = bot.asked[-1]["toolCall"]["content"]
        assert content["content"]["text"] == "# The plan\n\n1. Write it"
        assert [option["optionId"] for option in bot.asked[-1]["options"]] == [
            "mode:autoMode", "mode:acceptEdits", "mode:default", "keep_planning",
        ]  # fmt: skip
        assert bot.modes == ["plan"]
        bot.choose = lambda params: "mode:acceptEdits"
        assert await bot.calls(ToolUse("ExitPlanMode", {})) == ["Approve"]
        assert bot.modes == ["plan", "acceptEdits"]
        process = bot.pids()
        assert await bot.calls(ToolUse("Write", {"file_path": "b.txt", "content": "x"})) == []
        assert bot.pids() == process
        await bot.calls(ToolUse("EnterPlanMode", {}))
        assert bot.modes == ["plan", "acceptEdits", "plan"]


@pytest.mark.parametrize("mode", ["default", "ask", "auto", "plan"])
async def test_a_question_is_a_form_where_the_client_has_forms(unstarted_bench: Bench, mode: str) -> None:
    async with editor(unstarted_bench, elicitation={"form": {}}) as bot:
        await bot.new(mode)
        answer = await bot.client.begin(
            "session/prompt",
            {"sessionId": bot.session, "prompt": [{"type": "text", "text": unstarted_bench.model_calls(QUESTION)}]},
        )
        form = await bot.client.next_service_request("elicitation/create")
        assert form["params"]["message"] == "Which color?"
        assert [one["const"] for one in form["params"]["requestedSchema"]["properties"]["question_0"]["oneOf"]] == ["Red", "Blue"]
        await bot.client.respond(form, action="accept", content={"question_0": "Blue"})
        assert (await answer)["stopReason"] == "end_turn"
        [sent] = unstarted_bench.results_sent().values()
        assert '"Which color?"="Blue"' in str(sent["content"]) and bot.asked == []


async def test_a_question_is_a_permission_request_for_other_clients(unstarted_bench: Bench) -> None:
    async with editor(unstarted_bench) as bot:
        await bot.new()
        bot.choose = lambda params: next(o["optionId"] for o in params["options"] if o["name"] == "Red: warm")
        await bot.calls(QUESTION)
        assert bot.asked[0]["toolCall"]["title"] == "Which color?"
        [sent] = unstarted_bench.results_sent().values()
        assert '"Which color?"="Red"' in str(sent["content"])
        bot.choose = lambda params: "skip"
        await bot.calls(QUESTION)
        assert "the user did not answer" in str([*unstarted_bench.results_sent().values()][-1]["content"])


async def test_a_question_is_answered_over_aap(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(QUESTION), own={"AskUserQuestion": False})
    assert (turn.called, turn.stop) == (["AskUserQuestion"], "tool_use")
    assert (await bench.answer(turn.session, result(turn.calls[0], "Green"))).stop == "end_turn"
    assert '"Which color?"="Green"' in str(bench.results_sent()[turn.calls[0]]["content"])


@pytest.mark.parametrize(("mode", "asked"), [("default", ["touch other"]), ("ask", ["touch made", "touch other"])])
async def test_an_input_that_a_hook_has_changed_is_asked_about_as_another_call(
    unstarted_bench: Bench, mode: str, asked: list[str]
) -> None:
    changed = {"hookEventName": "PreToolUse", "updatedInput": {"command": "touch other"}}
    unstarted_bench.settings(hook("PreToolUse", {"hookSpecificOutput": changed}))
    async with editor(unstarted_bench) as bot:
        await bot.new(mode)
        assert await bot.calls(bash("touch made")) == asked
        assert [path.name for path in unstarted_bench.work.iterdir()] == ["other"]
        ended = {u["toolCallId"]: u["status"] for u in bot.client.updates() if u["sessionUpdate"] == "tool_call_update"}
        assert sorted(ended.values()) == ["completed", "failed"]


@pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")
async def test_the_clis_own_rules_in_the_sandbox(unstarted_bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "tmp-of-agents").mkdir()
    env = {**unstarted_bench.config()["agents"]["claude"]["env"], "TMPDIR": str(tmp_path / "tmp-of-agents")}
    async with editor(unstarted_bench, {"sandbox": "workspace-write", "env": env}) as bot:
        await bot.new()
        assert await bot.calls(bash("ls"), bash("touch made")) == ["touch made"]
        assert (unstarted_bench.work / "made").exists()
