"""One request through each protocol, to an in-process gateway and to a daemon."""

from __future__ import annotations

from tests.support.daemon import Daemon, RunningGateway


async def test_echo_over_execute(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/execute", json={"driver": "echo", "task": "-hello"})
    frames = answer.text.split("\n\n")
    assert frames[0] == 'data: {"kind":"agent_token","text":"-hello"}'
    assert '"kind":"session_end","exit_code":0' in frames[1]


async def test_echo_over_aap(daemon: Daemon) -> None:
    daemon.forked = False
    await daemon.start()
    async with daemon.client() as client:
        body = {"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "hello"}]}
        answer = await client.put("/session", json=body)
    assert answer.status_code == 201
    assert answer.json()["messages"] == [{"role": "assistant", "content": "hello"}]
    assert await daemon.stop() == 0
