"""Modes of an agent's CLI and questions to the user, over the Agent Client Protocol. The script driver is given modes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.driver_info import DriverInfo, Option, PermissionMode, Permissions, ToolGrant
from drivers.contract.events import AwaitedCall, PermissionChoice
from drivers.script.driver import ScriptDriver
from gateway.protocols.acp.permission_options import answer_of, options
from gateway.protocols.acp.questions import answered, chosen_label, form, options_of, questions_of, reply_to_form
from gateway.sessions.permission_choices import choices_of, with_choices
from gateway.sessions.settings import SessionSettings
from tests.support.acp_client import Client, RpcFailed, check, connected
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_session
from tests.support.waiting import wait_until

MODES = (
    PermissionMode("default", "Manual", "The CLI's own rules."),
    PermissionMode("plan", "Plan", "Changes nothing."),
    PermissionMode("bypass", "Bypass", "Asks about nothing.", unrestricted=True),
)
MODE = Option("mode", "Mode", "A mode.", default="ask", choices=("ask", *(mode.id for mode in MODES)))
CHOICES = (
    PermissionChoice(id="rule:0", name="Always allow git", kind="allow_always"),
    PermissionChoice(id="folder:1", name="Allow the folder /x", kind="allow_always"),
)
PLAN = (
    PermissionChoice(id="mode:default", name="Yes", kind="allow_once"),
    PermissionChoice(id="keep", name="No", kind="reject_once"),
)
ASKED = {
    "questions": [
        {"question": "Color?", "header": "Color", "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}]},
        {"question": "Sizes?", "multiSelect": True, "options": [{"label": "S"}, {"label": "M"}]},
        {"question": "Name?"},
    ]
}

Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a gateway whose script agent has modes, and a client; the keyword arguments are entries of the agent's table."""
    own = ScriptDriver().info()

    def info(self: ScriptDriver) -> DriverInfo:
        return replace(own, options=(*own.options, MODE), permissions=Permissions(MODES))

    monkeypatch.setattr(ScriptDriver, "info", info)

    @asynccontextmanager
    async def started(**entry: Any) -> AsyncIterator[tuple[RunningGateway, Client]]:
        async with (
            run_gateway(gateway_config(tmp_path, agents={"script": {"driver": "script", **entry}})) as running,
            connected(running.gateway) as client,
        ):
            yield running, client

    return started


async def new(client: Client) -> tuple[str, str, list[str]]:
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    modes = answer["modes"]
    [option] = [option for option in answer["configOptions"] if option.get("category") == "mode"]
    assert option["currentValue"] == modes["currentModeId"]
    assert [choice["value"] for choice in option["options"]] == [mode["id"] for mode in modes["availableModes"]]
    assert "mode" not in [option["id"] for option in answer["configOptions"]]
    return answer["sessionId"], modes["currentModeId"], [mode["id"] for mode in modes["availableModes"]]


async def mode_and_trust(running: RunningGateway, session: str) -> tuple[str, set[bool]]:
    agent = (await get_session(running.client, session))["agent"]
    return agent["options"].get("mode"), {tool["trust"] for tool in agent["tools"]}


async def test_sessions_of_editors_have_the_clis_own_rules(start: Start) -> None:
    async with start() as (running, client):
        session, mode, listed = await new(client)
        assert (mode, listed) == ("default", ["default", "plan", "ask", "edit", "auto"])
        assert await mode_and_trust(running, session) == ("default", {False})
        for mode, stored in (("plan", ("plan", {False})), ("auto", ("ask", {True})), ("default", ("default", {False}))):
            await client.request("session/set_mode", {"sessionId": session, "modeId": mode})
            assert await mode_and_trust(running, session) == stored
            assert client.updates(session)[-2] == {"sessionUpdate": "current_mode_update", "currentModeId": mode}
        change = {"sessionId": session, "configId": "mode", "value": "plan"}
        await client.request("session/set_config_option", change)
        assert await mode_and_trust(running, session) == ("plan", {False})


async def test_configuration_chooses_the_mode_of_editors(start: Start) -> None:
    async with start(options={"mode": "ask"}) as (_, client):
        assert (await new(client))[1] == "ask"


async def test_mode_without_questions_needs_allow_bypass(start: Start) -> None:
    async with start() as (_, client):
        session, _, listed = await new(client)
        assert "bypass" not in listed
        with pytest.raises(RpcFailed, match="unknown mode 'bypass'"):
            await client.request("session/set_mode", {"sessionId": session, "modeId": "bypass"})
    async with start(allow_bypass=True) as (running, client):
        session, _, listed = await new(client)
        assert "bypass" in listed
        await client.request("session/set_mode", {"sessionId": session, "modeId": "bypass"})
        agent = running.gateway.agents.get("script")
        assert agent.mode({"mode": "bypass"}) == "bypass"
        agent.settings = agent.settings.model_copy(update={"allow_bypass": False})
        assert agent.mode({"mode": "bypass"}) == "ask" and agent.spec({"mode": "bypass"}).options["mode"] == "ask"


async def test_locked_mode_stays(start: Start) -> None:
    async with start(locked=["mode"], options={"mode": "default"}) as (running, client):
        session, mode, listed = await new(client)
        assert (mode, listed) == ("default", ["default"])
        for other in ("plan", "ask", "auto"):
            with pytest.raises(RpcFailed):
                await client.request("session/set_mode", {"sessionId": session, "modeId": other})
        assert [mode.id for mode in running.gateway.agents.get("script").modes] == ["default"]


BASH = AwaitedCall(id="c", wants="permission", choices=CHOICES)
EXIT_PLAN = AwaitedCall(id="c", wants="permission", choices=PLAN)
ENABLED = SessionSettings(tools=(ToolGrant("Bash"),))


def test_choices_about_a_call() -> None:
    # Choices of the CLI come before the whole tool.
    ids = [option.option_id for option in options(choices_of(BASH, "Bash", ENABLED))]
    assert ids == ["allow_once", "rule:0", "folder:1", "allow_always", "reject_once", "reject_always"]
    assert [choice.id for choice in choices_of(BASH, "Other", ENABLED)] == ids[:-1]
    assert [choice.id for choice in choices_of(EXIT_PLAN, "ExitPlanMode", ENABLED)] == ["mode:default", "keep"]
    assert choices_of(AwaitedCall(id="c", wants="result"), "Bash", ENABLED) == []


def selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def test_choice_of_the_cli_is_passed_on_and_trusts_nothing() -> None:
    answer = answer_of(BASH, "Bash", ENABLED, selected("rule:0"))
    assert answer is not None and answer.reply() == PermissionReply("c", "allow", choice="rule:0")
    assert with_choices(ENABLED, [answer]) is ENABLED
    kept = answer_of(EXIT_PLAN, "ExitPlanMode", ENABLED, selected("keep"))
    assert kept is not None and kept.reply() == PermissionReply("c", "deny", choice="keep")
    # Where the choices are all there are, others are rejections.
    other = answer_of(EXIT_PLAN, "ExitPlanMode", ENABLED, selected("allow_once"))
    assert other is not None and other.reply() == PermissionReply("c", "deny")
    assert answer_of(BASH, "Bash", ENABLED, {"outcome": {"outcome": "cancelled"}}) is None


def test_choices_about_the_whole_tool_change_its_grant() -> None:
    trusted = answer_of(BASH, "Bash", ENABLED, selected("allow_always"))
    disabled = answer_of(BASH, "Bash", ENABLED, selected("reject_always"))
    assert trusted is not None and disabled is not None
    assert with_choices(ENABLED, [trusted]).tools == (ToolGrant("Bash", trust=True),)
    assert with_choices(ENABLED, [disabled]).tools == ()


async def test_a_client_with_forms_gets_the_questions_of_a_call_as_one_form(
    tmp_path: Path, write_scenario: Callable[..., str]
) -> None:
    name = write_scenario(
        [{"tool_call": {"id": "c", "name": "AskUserQuestion", "input": ASKED, "question": True}}, {"text": "ok"}]
    )
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": name}}
    async with (
        run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running,
        connected(running.gateway, elicitation={"form": {}}) as client,
    ):
        prompt = asyncio.create_task(client.prompt(await client.new()))
        asked = await client.next_service_request("elicitation/create")
        assert "question_0" in asked["params"]["requestedSchema"]["properties"]
        await client.respond(asked, action="accept", content={"question_0": "Red"})
        assert (await prompt)["stopReason"] == "end_turn"
        assert client.permission_requests.empty()


def test_questions_are_a_form() -> None:
    questions = questions_of(ASKED)
    request = form("sess", "c", questions)
    check("CreateElicitationRequest", request)
    properties = request["requestedSchema"]["properties"]
    assert list(properties) == ["question_0", "question_0_other", "question_1", "question_1_other", "question_2"]
    assert properties["question_0"]["oneOf"][0] == {"const": "Red", "title": "Red", "description": "warm"}
    assert properties["question_1"]["items"]["anyOf"][1]["const"] == "M"
    assert form("sess", "c", questions[:1])["message"] == "Color?"
    # Answers of a form.
    assert answers_of(question_0="Red", question_1=["S", "M"], question_2="x") == {
        "Color?": "Red", "Sizes?": ["S", "M"], "Name?": "x",
    }  # fmt: skip
    assert answers_of(question_0="Red", question_0_other=" Green ", question_1=["S"], question_1_other="XL") == {
        "Color?": "Green", "Sizes?": ["S", "XL"],
    }  # fmt: skip
    declined = PermissionReply("c", "deny", "the user did not answer")
    assert answers_of() == answers_of(question_0="") == declined
    assert reply_to_form("c", questions_of(ASKED), {"action": "cancel"}) == declined
    # Questions are permission requests for clients without forms.
    question = questions_of(ASKED)[0]
    assert [(option.option_id, option.name, option.kind) for option in options_of(question)] == [
        ("answer:0", "Red: warm", "allow_once"),
        ("answer:1", "Blue", "allow_once"),
        ("skip", "Skip", "reject_once"),
    ]
    assert (chosen_label(question, "answer:1"), chosen_label(question, "skip")) == ("Blue", None)
    assert answered("c", {}) == PermissionReply("c", "deny", "the user did not answer")
    # Input without questions.
    for given in (None, {}, {"questions": "x"}, {"questions": [1]}):
        assert questions_of(given) == [], given


def answers_of(**content: Any) -> Any:
    reply = reply_to_form("c", questions_of(ASKED), {"action": "accept", "content": content})
    return json.loads(str(reply.content))["answers"] if isinstance(reply, ToolReply) else reply


async def test_mode_that_the_cli_changes_is_sent_and_stored(start: Start, tmp_path: Path) -> None:
    changed = json.dumps({"kind": "mode", "mode": "plan"})
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "s.json").write_text(
        json.dumps({"turns": [{"steps": [{"line": {"line": changed}}, {"text": "planning"}]}]})
    )
    async with start(cwd=str(tmp_path / "scenes"), options={"scenario": "s.json"}) as (running, client):
        session, mode, _ = await new(client)
        assert mode == "default"
        await client.prompt(session)
        modes = [u["currentModeId"] for u in client.updates(session) if u["sessionUpdate"] == "current_mode_update"]
        assert modes == ["plan"]

        async def stored() -> bool:
            return (await running.gateway.store.sessions.get(session)).config["options"]["mode"] == "plan"

        await wait_until(stored)
