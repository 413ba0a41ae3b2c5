"""The requests that Open WebUI made in a chat of two messages, in their order. `recorded/open_webui.json` has its version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.sse import chunks_of
from tests.support.waiting import wait_until

RECORDED = json.loads((Path(__file__).parent / "recorded" / "open_webui.json").read_text())["requests"]
ANSWER = "You said: What is the weather in Rome?. Before: []"


async def test_a_chat_of_two_messages_has_one_session(tmp_path: Path, write_scenario: Callable[..., str]) -> None:
    background = {"when": "^### Task:", "steps": [{"text": '{"title": "Weather in Rome"}'}]}
    talk = {"steps": [{"thinking": "Let me see."}, {"text": "You said: {prompt}. Before: "}, {"remember": True}]}
    scenario = write_scenario(background, talk)
    config = gateway_config(tmp_path)
    config["agents"]["script"]["options"] = {"scenario": scenario}
    async with run_gateway(config) as portico:
        answers = [await portico.client.post("/v1/chat/completions", **_sent(request)) for request in RECORDED]
        assert [answer.status_code for answer in answers] == [200] * 6
        sessions = [answer.headers["x-portico-session"] for answer in answers]
        first, second = (n for n, request in enumerate(RECORDED) if request["body"]["stream"])
        assert sessions[first] == sessions[second]
        assert len(set(sessions)) == 5
        assert _text(answers[first].text) == RECORDED[second]["body"]["messages"][1]["content"] == ANSWER
        assert _text(answers[second].text) == 'You said: And tomorrow?. Before: ["What is the weather in Rome?"]'
        titles = [a.json()["choices"][0]["message"]["content"] for n, a in enumerate(answers) if n not in (first, second)]
        assert titles == ['{"title": "Weather in Rome"}'] * 4
        await _wait_for_one_session(portico, sessions[first])


def _sent(request: dict[str, Any]) -> dict[str, Any]:
    return {"headers": request["headers"], "json": request["body"]}


def _text(stream: str) -> str:
    """The text of the answer in a stream of chunks."""
    choices = [choice for chunk in chunks_of(stream) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def _wait_for_one_session(portico: RunningGateway, session_id: str) -> None:
    """Wait until there is only this session: those of the requests for titles and the like are deleted."""

    async def one() -> bool:
        return list((await portico.client.get("/sessions")).json()["sessions"]) == [session_id]

    await wait_until(one)
