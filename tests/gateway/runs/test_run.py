"""A run with an agent object that fails at an exact point."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from drivers.contract.agent import Agent, Prompt, Reply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentGone
from drivers.contract.events import AgentToken, AwaitedCall, Awaiting, OutputEvent, SessionEnd, ToolCall
from drivers.contract.messages import MESSAGE, ToolUseBlock
from gateway.events.event_log import EventLog
from gateway.observability.metrics import Metrics
from gateway.policy.enforcement import PolicyEnforcer
from gateway.runs.run import Run
from gateway.security.redaction import Redactor
from gateway.store import RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url


class Gone(Agent):
    """An agent whose process ends after the given events, before a reply."""

    alive = False

    def __init__(self, events: Sequence[OutputEvent]) -> None:
        self._events = list(events)

    async def prompt(self, prompt: Prompt) -> None:
        raise AgentGone("the agent's process has ended")

    async def receive(self) -> Sequence[OutputEvent]:
        if not self._events:
            raise AgentGone("the agent's process has ended")
        events, self._events = self._events, []
        return events

    async def reply(self, reply: Reply) -> None:
        raise AgentGone("the agent's process has ended")

    async def interrupt(self, grace: float | None = None) -> None: ...

    async def close(self, grace: float | None = None) -> None: ...


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(sqlite_url(tmp_path))
    yield found
    await found.close()


async def test_output_before_the_agent_process_ended_is_kept(store: Store) -> None:
    sent = [AgentToken(text="I look."), ToolCall(id="c", name="shell", status="started", input={"command": "ls"})]
    agent = Gone([*sent, Awaiting(calls=(AwaitedCall(id="c", wants="permission"),))])
    record = RunRecord("run_1", "sess_1", "running", None, 1)
    await store.sessions.create(SessionRecord("sess_1", "script"), [], record)
    log = EventLog("sess_1", store)
    enforcer = PolicyEnforcer(grants=[ToolGrant("shell", trust=True)])
    run = Run(
        record,
        agent,
        log,
        store,
        Redactor(),
        meter=Metrics().for_agent("script").run_metrics(session=True),
        has_history=True,
        enforcer=enforcer,
    )
    run.start()
    await run.wait()
    events = [entry.event for entry in await log.read(0)]
    assert events[:2] == sent
    assert isinstance(events[-1], SessionEnd)
    messages = [MESSAGE.validate_json(row.body) for row in await store.messages.rows("sess_1")]
    blocks = [block for message in messages if isinstance(message.content, list | tuple) for block in message.content]
    assert ToolUseBlock(tool_call_id="c", name="shell", input={"command": "ls"}) in blocks
