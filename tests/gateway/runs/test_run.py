"""A run with an agent object that fails at an exact point."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from drivers.contract.agent import Agent, Prompt, Reply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentGone
from drivers.contract.events import AgentToken, AwaitedCall, Awaiting, Error, OutputEvent, SessionEnd, ToolCall
from drivers.contract.messages import MESSAGE, ToolUseBlock
from gateway.events.event_log import EventLog
from gateway.observability.metrics import Metrics
from gateway.policy.decision_record import Decision
from gateway.policy.enforcement import PolicyEnforcer
from gateway.policy.rules import Policy, Rule
from gateway.runs.run import EVALUATION_TIMEOUT, Run
from gateway.security.redaction import Redactor
from gateway.store import AuditRecord, RunRecord, SessionRecord, Store
from tests.support.manual_clock import ManualClock
from tests.support.stores import store_url


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
    found = await Store.open(store_url(tmp_path))
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


async def test_error_of_a_limit_is_kept_where_the_agent_process_ends_before_its_turn(store: Store) -> None:
    record = RunRecord("run_1", "sess_1", "running", None, 1)
    await store.sessions.create(SessionRecord("sess_1", "script"), [], record)
    log = EventLog("sess_1", store)
    run = Run(
        record,
        Gone([AgentToken(text="I look."), Error(message="out of tokens", resets_at=1.0)]),
        log,
        store,
        Redactor(),
        meter=Metrics().for_agent("script").run_metrics(session=True),
        has_history=True,
        enforcer=PolicyEnforcer(),
        waits_for_limits=True,
    )
    run.start()
    await run.wait()
    assert [entry.event for entry in await log.read(0)] == [
        AgentToken(text="I look."),
        Error(message="out of tokens", resets_at=1.0),
        Error(message="the agent's process has ended"),
        SessionEnd(exit_code=1, stop_reason="error"),
    ]


async def test_client_is_asked_where_a_path_cannot_be_resolved_in_time(store: Store, clock: ManualClock) -> None:
    answers = threading.Event()

    def resolve(path: str) -> tuple[str, ...]:
        answers.wait(60)
        return ()

    policy = Policy([Rule(tool="Read", when={"path": "/etc/*"}, decide="deny")])
    enforcer = PolicyEnforcer(policy, [ToolGrant("Read", trust=True)], resolve)
    awaited = Awaiting(calls=(AwaitedCall(id="c", wants="permission"),))
    agent = Gone([ToolCall(id="c", name="Read", status="started", input={"path": "/mnt/x"}), awaited])
    record = RunRecord("run_1", "sess_1", "running", None, 1)
    await store.sessions.create(SessionRecord("sess_1", "script"), [], record)
    log = EventLog("sess_1", store, clock=clock)
    decided: list[Decision] = []

    def audit(decisions: Sequence[Decision]) -> list[AuditRecord]:
        decided.extend(decisions)
        return []

    meter = Metrics().for_agent("script").run_metrics(session=True)
    run = Run(record, agent, log, store, Redactor(), meter=meter, has_history=True, enforcer=enforcer, audit=audit)
    run.start()
    await clock.expire(EVALUATION_TIMEOUT)
    await run.wait()
    answers.set()
    assert [(decision.outcome, decision.by) for decision in decided] == [("asked", "default")]
    assert "not evaluated within 5 s" in (decided[0].reason or "")
