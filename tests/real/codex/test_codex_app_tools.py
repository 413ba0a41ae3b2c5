"""Application-side tools with the real codex: one, several, mixed with its own; results as text and images; changed tools."""

from __future__ import annotations

import pytest

from drivers.codex.app_tools import OWN_NAMES, names_for_cli
from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import calls_of, grant, results_of, text_of, user
from tests.real.codex.aap_client import WEATHER, create_session, outputs
from tests.real.codex.conftest import Home
from tests.real.own_tool_names import answer_with_own_names
from tests.support.daemon import RunningGateway


async def test_code_mode_calls_are_calls_too(portico: RunningGateway, home: Home) -> None:
    own = {"shell": False}
    aap = await create_session(portico.client, user("[[code]]"), own=own, model="gpt-6.1-sol", stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    assert (call["name"], call["input"]["command"]) == ("shell", "echo from-code")
    answer = await aap.send(grant(call))
    assert results_of(answer["messages"]) == {call["toolCallId"]: "from-code\n"}
    assert text_of(answer["messages"]) == "The code ran."


@pytest.mark.parametrize("mode", ["ask", "workspace", "full-access"])
async def test_a_rule_denies_the_clients_tool_in_the_modes_of_the_cli(home: Home, model: OpenAIServer, mode: str) -> None:
    home.agent |= {
        "options": {"mode": mode},
        "allow_bypass": True,
        "policy": [{"tool": "get_weather", "decide": "deny", "reason": "No weather."}],
    }
    async with home.gateway() as running:
        aap = await create_session(running.client, "[[weather]]", app=[WEATHER])
        assert "No weather." in next(iter(results_of(aap.first["messages"]).values()))
    assert "No weather." in outputs(model.bodies()[-1])[0]


async def test_every_own_tool_of_the_cli_is_known_by_name(portico: RunningGateway, model: OpenAIServer) -> None:
    """A new one of a release belongs to `OWN_NAMES`: an application's tool of that name would not be offered."""
    names = await answer_with_own_names(portico, "codex")
    sent = {tool.get("name") or tool["type"] for tool in model.bodies()[-1]["tools"]}
    assert sent - set(names_for_cli(names)) <= OWN_NAMES
