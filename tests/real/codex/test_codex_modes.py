"""The modes of the real codex over ACP: what its sandbox permits is not asked about, and its own choices are."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.openai import OpenAIServer, model_server
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.codex.aap_client import outputs
from tests.real.codex.conftest import Home, needs_sandbox
from tests.real.codex.test_codex_servers import CALLS
from tests.real.editor import SERVER
from tests.real.processes import clis_of
from tests.support.acp_client import Client, connect
from tests.support.waiting import wait_until

Json = dict[str, Any]


OUTSIDE = Path("/usr/out-of-the-sandbox")


def left_the_sandbox() -> bool:
    return OUTSIDE.exists()


class Editor:
    """A client whose permission requests are recorded and answered with `choice`."""

    def __init__(self, client: Client) -> None:
        self.client, self.choice = client, "accept"
        self.asked: list[Json] = []
        client.choose = self._answer
        self.session = ""

    def _answer(self, params: Json) -> str:
        self.asked.append(params)
        return self.choice

    async def new(self, *servers: Json) -> Json:
        answer: Json = await self.client.request("session/new", {"cwd": ".", "mcpServers": list(servers)})
        self.session = answer["sessionId"]
        return answer["modes"]  # type: ignore[no-any-return]

    async def set_mode(self, mode: str) -> None:
        await self.client.request("session/set_mode", {"sessionId": self.session, "modeId": mode})

    async def prompt(self, text: str) -> list[Json]:
        """Send a prompt; return the permission requests."""
        before = len(self.asked)
        assert (await self.client.prompt(self.session, text))["stopReason"] == "end_turn"
        return self.asked[before:]


@asynccontextmanager
async def editor(home: Home, **entry: Any) -> AsyncIterator[Editor]:
    home.agent |= {"options": {}} | entry
    async with home.gateway() as running:
        client, connection = connect(running.gateway, "codex")
        await client.initialize()
        yield Editor(client)
        await connection.close()


async def test_what_the_sandbox_permits_is_not_asked_about(home: Home) -> None:
    async with editor(home) as bot:
        modes = await bot.new()
        assert modes["currentModeId"] == "workspace"
        assert [mode["id"] for mode in modes["availableModes"]] == ["workspace", "read-only", "plan", "ask", "edit", "auto"]
        assert await bot.prompt("[[run:echo hi > made.txt]]") == []
        assert await bot.prompt("[[patch:patched.txt]]") == []
        assert {"made.txt", "patched.txt"} <= {path.name for path in home.work.iterdir()}
        await bot.prompt(f"[[run:touch {OUTSIDE}]]")
        assert not left_the_sandbox()
        [asked] = await bot.prompt("[[runoutside:echo asked]]")
        options = {option["optionId"]: option["kind"] for option in asked["options"]}
        assert options["accept"] == "allow_once" and options["decline"] == "reject_once" and "allow_always" not in options
        bot.choice = "decline"
        await bot.prompt("[[runoutside:touch declined.txt]]")
        assert not (home.work / "declined.txt").exists()


async def test_reading_only(home: Home) -> None:
    async with editor(home) as bot:
        await bot.new()
        await bot.set_mode("read-only")
        assert await bot.prompt("[[run:ls; touch no.txt]]") == []
        assert not (home.work / "no.txt").exists()
        [asked] = await bot.prompt("[[patch:patched.txt]]")
        assert "accept" in [option["optionId"] for option in asked["options"]]
        assert (home.work / "patched.txt").exists()


async def test_a_choice_of_the_cli_applies_to_the_next_call(home: Home) -> None:
    async with editor(home) as bot:
        await bot.new()
        [asked] = await bot.prompt("[[runoutside:echo one]]")
        bot.choice = next(option["optionId"] for option in asked["options"] if option["kind"] == "allow_always")
        await bot.prompt("[[runoutside:echo one]]")
        assert await bot.prompt("[[runoutside:echo one]]") == []


async def test_a_choice_of_the_cli_is_made_over_aap(home: Home) -> None:
    home.agent |= {"options": {"mode": "workspace"}}
    async with home.gateway() as running:
        client = running.client

        async def turn(session: str, message: Json) -> Json:
            answer = await client.post(f"/session/{session}", json={"messages": [message]})
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        prompt = {"role": "user", "content": "[[runoutside:echo one]]"}
        agent = {"name": "codex", "tools": [{"name": "shell"}, {"name": "apply_patch"}]}
        created = (await client.put("/session", json={"agent": agent, "messages": [prompt]})).json()
        assert created["stopReason"] == "tool_use", created
        session = created["sessionId"]
        (call,) = (await client.get(f"/aap/v3/sessions/{session}")).json()["x-portico"]["pendingCalls"]
        own = {choice["id"]: choice["kind"] for choice in call["choices"]}
        # The CLI's are all there are.
        assert own["accept"] == "allow_once" and own["decline"] == "reject_once" and "allow_always" not in own
        lasting = next(choice for choice, kind in own.items() if kind == "allow_always")
        reply = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True}
        wrong = await client.post(f"/session/{session}", json={"messages": [{**reply, "x-portico": {"choice": "allow_once"}}]})
        assert wrong.status_code == 400 and "'decline'" in wrong.json()["error"]
        assert (await turn(session, {**reply, "x-portico": {"choice": lasting}}))["stopReason"] == "end_turn"
        # The choice holds: the same command is not asked about again.
        assert (await turn(session, prompt))["stopReason"] == "end_turn"


@pytest.mark.parametrize(
    ("mode", "asked", "made"),
    [
        ("workspace", (0, 1), {"made.txt", "patched.txt"}),
        ("read-only", (1, 1), set()),
        ("plan", (1, 1), set()),
        # It has no sandbox, and the CLI denies what asks to leave it.
        ("full-access", (0, 0), {"made.txt", "patched.txt"}),
    ],
)
async def test_what_each_mode_asks_about(
    home: Home, model: OpenAIServer, mode: str, asked: tuple[int, int], made: set[str]
) -> None:
    (home.work / "a.txt").write_text("the text of the file")
    async with editor(home, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode(mode)
        bot.choice = "decline"
        assert await bot.prompt("[[run:cat a.txt]]") == []
        assert "the text of the file" in json.dumps(outputs(model.bodies()[-1]))
        assert await bot.prompt("[[run:touch made.txt]]") == []
        patches, outside = [await bot.prompt(f"[[{call}]]") for call in ("patch:patched.txt", "runoutside:touch no.txt")]
        assert (len(patches), len(outside)) == asked
    assert {path.name for path in home.work.iterdir()} == {"a.txt", *made}


@pytest.mark.parametrize("mode", ["workspace", "read-only", "plan", "full-access"])
async def test_rules_of_the_gateway_hold_in_each_mode(home: Home, mode: str) -> None:
    rules = [{"tool": "shell", "when": {"command": "touch *"}, "decide": "deny", "reason": "No."}]
    async with editor(home, policy=rules, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode(mode)
        bot.choice = "allow_once"
        assert await bot.prompt("[[run:touch no.txt]]") == []
        assert len(await bot.prompt("[[run:echo hi]]")) == 1
        assert not (home.work / "no.txt").exists()


@pytest.mark.parametrize("mode", ["workspace", "read-only", "plan", "full-access"])
@pytest.mark.parametrize("denied", [True, False])
async def test_calls_of_the_clients_servers_are_denied_or_asked_about_in_each_mode(
    home: Home, model: OpenAIServer, mode: str, denied: bool
) -> None:
    rules = [{"tool": "mcp__my_server__*", "decide": "deny", "reason": "Not this server."}]
    server = {"name": "my server", "command": sys.executable, "args": [str(SERVER)], "env": [{"name": "SECRET", "value": "x"}]}
    async with model_server(CALLS) as caller:
        config = home.codex / "config.toml"
        config.write_text(config.read_text().replace(model.url, caller.url))
        async with editor(home, allow_bypass=True, policy=rules if denied else []) as bot:
            await bot.new(server)
            await bot.set_mode(mode)
            bot.choice = "reject_once"
            assert len(await bot.prompt("[[server]]")) == (0 if denied else 1)
        output = json.dumps(outputs(caller.bodies()[-1]))
    assert "letters" not in output and ("Not this server." in json.dumps(caller.bodies()[-1])) == denied


async def test_full_access_needs_the_permission_of_the_configuration(home: Home) -> None:
    async with editor(home, allow_bypass=True) as bot:
        await bot.new()
        await bot.set_mode("full-access")
        target = home.base / "outside.txt"
        assert await bot.prompt(f"[[run:touch {target}]]") == [] and target.exists()


async def test_a_narrower_sandbox_of_the_configuration_holds(home: Home) -> None:
    async with editor(home, options={"sandbox": "read-only"}, locked=["sandbox"]) as bot:
        await bot.new()
        assert await bot.prompt("[[run:touch no.txt]]") == []
        assert not (home.work / "no.txt").exists()


@needs_sandbox
async def test_the_workspace_in_the_gateways_sandbox(home: Home) -> None:
    home.use_sandbox()
    async with editor(home) as bot:
        await bot.new()
        assert await bot.prompt(f"[[run:touch $TMPDIR/f && touch made.txt; touch {OUTSIDE}]]") == []
        assert (home.work / "made.txt").exists() and not left_the_sandbox()


PLAN = "<proposed_plan>\n# The plan\n\n1. Write it\n</proposed_plan>"
ASKED = {
    "questions": [
        {
            "id": "color",
            "header": "Color",
            "question": "Which color?",
            "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}],
        }
    ]
}
PLANNING = {
    "makeplan": Scenario((Step((Text(PLAN),), chunk=500),)),
    "askuser": Scenario((Step((ToolUse("request_user_input", ASKED),), chunk=5000), text_step("Thanks."))),
}


async def test_a_plan_and_a_question(home: Home, model: OpenAIServer) -> None:
    async with model_server(PLANNING) as planner:
        config = home.codex / "config.toml"
        config.write_text(config.read_text().replace(model.url, planner.url))
        async with editor(home) as bot:
            await bot.new()
            await bot.set_mode("plan")
            bot.choice = "keep_planning"
            [asked] = await bot.prompt("[[makeplan]]")
            assert asked["toolCall"]["rawInput"] == {"plan": "# The plan\n\n1. Write it\n"}
            assert "# The plan\n\n1. Write it" in bot.client.text() and "proposed_plan" not in bot.client.text()
            assert len(planner.bodies()) == 1
            bot.choice = "answer:1"
            [asked] = await bot.prompt("[[askuser]]")
            assert asked["toolCall"]["title"] == "Which color?"
            assert "Blue" in json.dumps(planner.bodies()[-1]["input"])
            assert await bot.prompt("[[run:touch no.txt]]") == [] and not (home.work / "no.txt").exists()
            await bot.set_mode("workspace")
            assert await bot.prompt("[[run:touch made.txt]]") == []
            assert (home.work / "made.txt").exists()
            # Only the plan mode has questions.
            assert await bot.prompt("[[askuser]]") == []


@asynccontextmanager
async def planner(home: Home, model: OpenAIServer) -> AsyncIterator[tuple[Editor, OpenAIServer]]:
    """An editor in plan mode, and the server of its model."""
    async with model_server(PLANNING) as server:
        config = home.codex / "config.toml"
        config.write_text(config.read_text().replace(model.url, server.url))
        async with editor(home) as bot:
            await bot.new()
            await bot.set_mode("plan")
            yield bot, server


async def test_an_approved_plan_is_carried_out_in_the_same_run(home: Home, model: OpenAIServer) -> None:
    async with planner(home, model) as (bot, server):
        bot.choice = "mode:workspace"
        [asked] = await bot.prompt("[[makeplan]]")
        assert (asked["toolCall"]["title"], asked["toolCall"]["kind"]) == ("Implement plan", "switch_mode")
        assert [option["name"] for option in asked["options"]] == [
            "Yes, implement this plan",
            "Yes, and approve each change",
            "No, keep planning",
        ]
        # The second turn of the run, which the model answers by the prompts that it has got.
        assert bot.client.text().endswith("I see 2 user texts. Before this one: [[makeplan]]")
        assert [update["currentModeId"] for update in bot.client.updates() if "currentModeId" in update][-1] == "workspace"
        texts = [str(item.get("content")) for item in server.bodies()[1]["input"] if item.get("role") == "user"]
        assert "Implement the plan." in texts[-1]
        # The mode stays.
        assert await bot.prompt("[[run:touch made.txt]]") == [] and (home.work / "made.txt").exists()


async def test_modes_change_without_a_restart_and_keep_the_conversation(home: Home) -> None:
    async with editor(home, allow_bypass=True) as bot:
        await bot.new()
        await bot.prompt("[[run:touch first.txt]]")
        [process] = clis_of(home.path)
        await bot.set_mode("read-only")
        assert await bot.prompt("[[run:touch no.txt]]") == [] and not (home.work / "no.txt").exists()
        await bot.set_mode("full-access")
        target = home.base / "outside.txt"
        assert await bot.prompt(f"[[run:touch {target}]]") == [] and target.exists()
        await bot.set_mode("plan")
        await bot.set_mode("workspace")
        assert await bot.prompt(f"[[run:touch made.txt {OUTSIDE}]]") == []
        assert (home.work / "made.txt").exists() and not left_the_sandbox()
        # The model gets all prompts of the conversation, and quotes the one before.
        await bot.prompt("which prompts?")
        assert "I see 5 user texts. Before this one: [[run:touch first.txt]] | " in bot.client.text()
        assert clis_of(home.path) == [process]


async def test_a_mode_that_is_changed_during_a_turn_holds_from_the_next(home: Home) -> None:
    async with editor(home) as bot:
        await bot.new()
        wait = "touch started; until test -e go; do sleep 0.05; done; touch during.txt"
        running = asyncio.create_task(bot.prompt(f"[[run:{wait}]]"))
        await wait_until((home.work / "started").exists, "the command runs")
        await bot.set_mode("read-only")
        (home.work / "go").touch()
        assert await running == [] and (home.work / "during.txt").exists()
        assert await bot.prompt("[[run:touch after.txt]]") == [] and not (home.work / "after.txt").exists()


@pytest.mark.parametrize("mode", ["workspace", "full-access"])
async def test_a_tool_that_is_not_listed_does_not_run(home: Home, mode: str) -> None:
    home.agent |= {"options": {"mode": mode}, "allow_bypass": True}
    agent = {"name": "codex", "tools": [{"name": "view_image"}]}
    async with home.gateway() as running:
        created = await running.client.put(
            "/session", json={"agent": agent, "messages": [{"role": "user", "content": "[[patch:no.txt]]"}]}
        )
        assert created.json()["stopReason"] == "end_turn", created.text
    assert not (home.work / "no.txt").exists()
