"""Application-side tools with the names of the agent's own tools, which are off for clients of the vendors' APIs."""

from __future__ import annotations

from tests.support.daemon import RunningGateway


async def answer_with_own_names(portico: RunningGateway, agent: str) -> list[str]:
    """Send a prompt with application-side tools of the names of all tools of the agent. Return these names."""
    configured = portico.gateway.agents.find(agent)
    assert configured is not None
    names = [tool.name for tool in configured.info.tools]
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "description": "Mine.", "parameters": schema}} for name in names]
    body = {"model": agent, "messages": [{"role": "user", "content": "[[plain]]"}], "tools": tools}
    answer = await portico.client.post("/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    return names
