"""Sequences of commands and mishaps that the state machine has found, each with what it found, or that it meets too rarely.

The machine (test_session_machine.py) checks after each step what holds for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from drivers.contract.events import AgentToken, Error, ModeChanged, OutputEvent, SessionEnd
from drivers.contract.messages import ToolMessage, UserMessage
from gateway.app import SHUT_DOWN
from gateway.errors import AgentProblem, BadRequest, LeaseLost, NotFound, ShuttingDown
from tests.gateway.sessions.machine.daemon import Choices
from tests.gateway.sessions.test_session_machine import SessionMachine, decoded

pytestmark = pytest.mark.sqlite_only


@pytest.fixture
def begin() -> Iterator[Callable[..., SessionMachine]]:
    """Returns a function that begins with two idle sessions. At the end everything is let finish, and must."""
    machine = SessionMachine()

    def begin(**choices: Any) -> SessionMachine:
        machine.begin(Choices(**choices))
        return machine

    yield begin
    machine.teardown()


def message(machine: SessionMachine, text: str = "kept") -> Any:
    """Send a message to the first session, and return the request."""
    machine.send_message(0, text, keyed=False)
    machine.check()
    return machine.requests[-1]


def call(machine: SessionMachine, *names: str) -> None:
    """Let the agent call tools that wait for the client."""
    machine.agent_calls(list(names))
    machine.check()
    assert machine.slots[0].session.state == "waiting"


def answer(machine: SessionMachine) -> Any:
    """Answer the pending calls of the first session, and return the request."""
    machine.send_answers(machine.slots[0], machine.answers(machine.slots[0], granted=True))
    machine.check()
    return machine.requests[-1]


def events(machine: SessionMachine) -> list[Any]:
    return [decoded(data) for data in machine.stored(machine.slots[0]).events.values()]


def texts(machine: SessionMachine) -> list[str]:
    """The messages of the user in the stored history of the first session."""
    return [text for kind, text, *_ in machine.stored(machine.slots[0]).messages if kind == "user"]


def test_no_agent_is_started_ahead_of_a_prompt_once_another_node_has_the_session(begin: Callable[..., SessionMachine]) -> None:
    machine = begin(leased=True)
    machine.other_node_takes_the_session(n=0, stopped=True)
    assert isinstance(message(machine).error, LeaseLost)
    machine.prepare(n=0)
    machine.check()
    assert not machine.driver.alive()


def test_shutdown_reports_no_error_of_the_agent_that_it_ends_while_calls_are_pending(
    begin: Callable[..., SessionMachine],
) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.restart()
    assert not any(isinstance(event, Error) for event in events(machine))
    assert answer(machine).error is None


@pytest.mark.parametrize("what", ["message", "answers"])
def test_request_is_refused_in_words_if_its_fresh_agent_ends_before_the_prompt(
    begin: Callable[..., SessionMachine], what: str
) -> None:
    machine = begin()
    message(machine)
    if what == "answers":
        call(machine, "change")
        machine.restart()
        machine.agents_behave_otherwise({"missed_prompts": 1})
        sent = answer(machine)
    else:
        machine.agent_ends_turn(how="end_turn", n=0)
        machine.check()
        # Its own agent is gone, and so is the fresh one.
        machine.agents_behave_otherwise({"missed_prompts": 2})
        sent = message(machine)
    assert isinstance(sent.error, AgentProblem)
    assert "the agent's process has ended" in str(sent.error)
    assert machine.slots[0].session.state == "idle"


@pytest.mark.parametrize("how", ["shutdown", "lease lost"])
def test_message_behind_pending_calls_is_refused_at_the_end(begin: Callable[..., SessionMachine], how: str) -> None:
    machine = begin(leased=how == "lease lost")
    message(machine)
    call(machine, "change")
    # Its agent would end the run when the lease is lost.
    machine.restart()
    machine.message_that_queues(n=0, settings="kept", keyed=False)
    machine.check()
    queued = machine.requests[-1]
    assert not queued.done
    if how == "shutdown":
        machine.restart()
    else:
        machine.other_node_takes_the_session(n=0, stopped=False)
        machine.rename(n=0)
        machine.check()
    assert isinstance(queued.error, ShuttingDown if how == "shutdown" else LeaseLost)


@pytest.mark.parametrize("end", ["restart", "agent_exits"])
def test_message_to_the_agent_at_work_stays_in_the_history_while_its_calls_wait(
    begin: Callable[..., SessionMachine], end: str
) -> None:
    machine = begin()
    message(machine)
    machine.agent_sends(kinds=["token"], n=0)
    machine.check()
    slot = machine.slots[0]
    assert machine.loop.done(slot.session.steer(UserMessage(content="<mS>")))
    call(machine, "sky")
    assert "<mS>" not in texts(machine)
    {"restart": machine.restart, "agent_exits": partial(machine.agent_exits, n=0)}[end]()
    machine.check()
    assert answer(machine).error is None
    assert texts(machine)[-1] == "<mS>"
    # The fresh agent knows it, too.
    assert "<mS>" in machine.driver.alive()[0].told


def test_queued_messages_are_refused_at_shutdown_because_of_it(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    machine.message_that_queues(n=0, settings="kept", keyed=False)
    machine.check()
    queued = machine.requests[-1]
    machine.restart()
    assert isinstance(queued.error, ShuttingDown)


@pytest.mark.parametrize("behind", ["a start", "pending calls"])
def test_queued_message_waits_for_the_turn_that_begins_before_it(begin: Callable[..., SessionMachine], behind: str) -> None:
    machine = begin()
    if behind == "a start":
        machine.agents_behave_otherwise({"start": "waits"})
        first = message(machine)
    else:
        message(machine)
        call(machine, "change")
    # The session is idle until the agent has started, so that the message is woken at once.
    machine.message_that_queues(n=0, settings="kept", keyed=False)
    machine.check()
    queued = machine.requests[-1]
    if behind == "a start":
        machine.agent_starts(starts=True)
        machine.check()
    else:
        first = message(machine)
    assert first.accepted
    assert not queued.done
    machine.agent_ends_turn(how="end_turn", n=0)
    machine.check()
    assert queued.accepted
    assert texts(machine)[-2:] == [first.mark, queued.mark]


def test_queued_messages_begin_in_the_order_in_which_they_came(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    for _ in range(3):
        machine.message_that_queues(n=0, settings="kept", keyed=False)
        machine.check()
    marks = [sent.mark for sent in machine.slots[0].requests]
    for _ in marks:
        assert machine.agents("running")
        machine.agent_ends_turn(how="end_turn", n=0)
        machine.check()
    assert texts(machine) == marks


@pytest.mark.parametrize("kinds", [["thinking", "token"], ["tool", "token"], ["token", "end", "token"]])
@pytest.mark.parametrize("at_once", [True, False])
def test_text_that_the_agent_discards_is_not_in_the_history(
    begin: Callable[..., SessionMachine], kinds: list[str], at_once: bool
) -> None:
    machine = begin()
    message(machine)
    for sent in [[*kinds, "discarded", "token", "end"]] if at_once else [kinds, ["discarded"], ["token", "end"]]:
        machine.agent_sends(kinds=sent, n=0)
        machine.check()
    machine.agent_ends_turn(how="end_turn", n=0)
    machine.check()
    parts = [parts for kind, parts, *_ in machine.stored(machine.slots[0]).messages if kind == "assistant"]
    assert len([block for blocks in parts for block in blocks if block[0] == "text"]) == 1 + ("end" in kinds)


@pytest.mark.parametrize("how", ["works", "fails", "has it all the same"])
def test_usage_of_each_turn_is_counted_once(begin: Callable[..., SessionMachine], how: str) -> None:
    machine = begin()
    used = 0
    for ends in ("waits", "over", "over"):
        if machine.slots[0].session.state == "idle":
            message(machine)
        machine.agent_sends(kinds=["usage", "token", "usage"], n=0)
        machine.check()
        used += 2
        if how != "works":
            machine.daemon.store.faults.fail("runs.stop", times=1, committed=how == "has it all the same")
        if ends == "waits":
            machine.agent_calls(["change"])
        else:
            machine.agent_ends_turn(how="end_turn", n=0)
        machine.check()
        machine.repair_store()
        machine.pass_time(2.0)
        machine.check()
        if ends == "waits":
            assert answer(machine).accepted
    assert [output for _, output in machine.stored(machine.slots[0]).usage] == [used]


def test_what_an_agent_sends_while_the_answers_are_stored_comes_after_them(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    agent = machine.driver.alive()[0]
    machine.store_has_trouble(writes="*", how="are slow")
    answers = answer(machine)
    for kinds in (["line", "context"], ["plan"]):
        machine.happens(agent.send, *(event for kind in kinds for event in machine.events_of(kind)))
        machine.check()
    assert not answers.done
    machine.repair_store()
    machine.check()
    assert answers.accepted
    machine.agent_ends_turn(how="end_turn", n=0)
    machine.check()
    kinds = [event.kind for event in events(machine) if event.kind in ("turn_start", "stdout", "context_use", "plan")]
    assert kinds == ["turn_start", "turn_start", "stdout", "context_use", "plan"]


@pytest.mark.parametrize("stored", [True, False])
def test_agent_that_exits_while_the_answers_are_stored_leaves_no_run_at_work(
    begin: Callable[..., SessionMachine], stored: bool
) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.store_has_trouble(writes="*", how="are slow")
    if not stored:
        machine.daemon.store.faults.fail("runs.resume", times=1)
    answers = answer(machine)
    machine.agent_exits(n=0)
    machine.check()
    machine.daemon.writer.release()
    machine.check()
    # A run that has no answers waits still, and a fresh agent goes on with it.
    assert answers.accepted is stored
    assert machine.slots[0].session.state == ("idle" if stored else "waiting")
    if not stored:
        assert answer(machine).accepted


@pytest.mark.parametrize("writes", ["events.append", "runs.stop", "*"])
def test_output_is_stored_once_the_store_works_again(begin: Callable[..., SessionMachine], writes: str) -> None:
    machine = begin()
    message(machine)
    machine.daemon.store.faults.fail(writes, times=3)
    machine.agent_sends(kinds=["token", "end", "usage"], n=0)
    machine.check()
    machine.agent_sends(kinds=["token"], n=0)
    machine.check()
    machine.agent_ends_turn(how="end_turn", n=0)
    machine.pass_time(6.0)
    machine.check()
    slot = machine.slots[0]
    assert slot.session.state == "idle"
    assert machine.stored(slot).events == slot.numbers
    assert len(machine.stored(slot).messages) == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_answers_must_be_to_all_calls_that_wait(begin: Callable[..., SessionMachine], restarts: bool) -> None:
    machine = begin()
    message(machine)
    call(machine, "change", "ask_user", "sky")
    if restarts:
        machine.restart()
    for how in ("missing", "unknown", "twice"):
        machine.answer(n=0, how=how, settings="kept")
        machine.check()
        assert isinstance(machine.requests[-1].error, BadRequest)
        assert machine.slots[0].session.state == "waiting"
    assert answer(machine).accepted


@pytest.mark.parametrize("disaster", ["kill", "the lease is lost"])
def test_number_of_an_event_that_was_sent_and_not_stored_is_not_given_again(
    begin: Callable[..., SessionMachine], disaster: str
) -> None:
    machine = begin(leased=True)
    message(machine)
    machine.store_has_trouble(writes="events.append", how="fail")
    machine.agent_sends(kinds=["token"], n=0)
    machine.check()
    sent, stored = machine.slots[0].follower.last, max(machine.stored(machine.slots[0]).events)
    assert sent > stored
    if disaster == "kill":
        machine.kill()
    else:
        machine.other_node_takes_the_session(n=0, stopped=False)
        machine.repair_store()
        machine.leases_come_back()
    machine.check()
    new = [seq for seq in machine.stored(machine.slots[0]).events if seq > stored]
    assert min(new) > sent
    assert isinstance(events(machine)[-1], SessionEnd)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_deletion_refuses_a_message_whose_agent_is_being_started(begin: Callable[..., SessionMachine], seconds: float) -> None:
    machine = begin()
    machine.agents_behave_otherwise({"start": "waits"})
    sent = message(machine)
    machine.pass_time(seconds)
    assert machine.driver.starting
    machine.delete(n=0)
    machine.check()
    assert machine.requests[-1].accepted
    assert isinstance(sent.error, NotFound)
    assert not machine.driver.starting


@pytest.mark.parametrize("obeys", [True, False])
def test_shutdown_fails_a_run_at_work_with_its_own_words(begin: Callable[..., SessionMachine], obeys: bool) -> None:
    machine = begin()
    message(machine)
    machine.agent_sends(kinds=["token"], n=0)
    machine.check()
    machine.agents_behave_otherwise({"obeys": obeys})
    machine.restart()
    assert [event.message for event in events(machine) if isinstance(event, Error)] == [SHUT_DOWN]
    assert events(machine)[-1].stop_reason == "error"


def test_answers_end_the_run_whose_agent_ends_while_they_are_stored(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.message_that_queues(n=0, settings="kept", keyed=False)
    queued = machine.requests[-1]
    machine.store_has_trouble(writes="*", how="are slow")
    sent = answer(machine)
    machine.agent_exits(n=0)
    machine.check()
    machine.repair_store()
    machine.check()
    assert sent.error is None
    assert [event.kind for event in sent.turn_read.result()] == ["turn_start", "error", "session_end"]
    assert machine.driver.alive()[0].told[-1] == queued.mark


@pytest.mark.parametrize("then", ["answers", "message"])
def test_agent_that_ends_its_prompt_with_an_error_while_its_calls_wait_is_not_left_behind(
    begin: Callable[..., SessionMachine], then: str
) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.happens(machine.driver.alive()[0].send, Error(message="no model"), SessionEnd(exit_code=1, stop_reason="error"))
    machine.check()
    assert machine.slots[0].session.state == "waiting" and not machine.driver.alive()
    assert (answer if then == "answers" else message)(machine).error is None
    assert len(machine.driver.alive()) == 1


@pytest.mark.parametrize(
    "sent",
    [
        [AgentToken(text="late"), SessionEnd(exit_code=0)],
        [AgentToken(text="late"), Error(message="no model"), SessionEnd(exit_code=1, stop_reason="error")],
    ],
    ids=["end", "error"],
)
def test_agent_that_ends_its_prompt_while_a_message_is_stored_that_cancels_its_calls_does_not_end_the_new_run(
    begin: Callable[..., SessionMachine], sent: list[OutputEvent]
) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    agent = machine.driver.alive()[0]
    machine.store_has_trouble(writes="*", how="are slow")
    second = message(machine)
    machine.happens(agent.send, *sent)
    machine.check()
    machine.repair_store()
    machine.check()
    machine.agent_ends_turn(how="end_turn", n=0)
    machine.check()
    assert [event.kind for event in second.turn_read.result()] == ["turn_start", "session_end"]
    assert [run[1:] for run in machine.stored(machine.slots[0]).runs] == [("ended", "cancelled"), ("ended", "end_turn")]


def test_mode_that_the_agent_changes_while_other_settings_are_stored_is_kept(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    machine.store_has_trouble(writes="*", how="are slow")
    machine.configure(n=0, what="pace")
    pace = machine.requests[-1].pace
    machine.happens(machine.driver.alive()[0].send, ModeChanged(mode="auto"))
    machine.check()
    machine.repair_store()
    machine.check()
    assert machine.slots[0].session.config.options == {"pace": pace, "mode": "auto"}
    assert machine.has_stored_settings(machine.slots[0])


def test_denial_of_calls_that_were_not_answered_in_time_is_completed_if_its_request_is_cancelled(
    begin: Callable[..., SessionMachine],
) -> None:
    machine = begin(answer=20.0)
    message(machine)
    call(machine, "change")
    machine.agent_exits(n=0)
    machine.check()
    session = machine.slots[0].session
    assert session.run is not None
    # It was loaded after the time limit, and the request that loads it is the first to notice.
    session.run.pending.stop_timer()
    machine.pass_time(21.0)
    machine.store_has_trouble(writes="*", how="are slow")
    request = machine.loop.create_task(session.deny_overdue())
    machine.check()
    request.cancel()
    machine.check()
    machine.repair_store()
    machine.check()
    assert request.cancelled() and session.state == "idle"


def test_cancel_behind_answers_whose_agent_ends_while_they_are_stored_finds_one_end(
    begin: Callable[..., SessionMachine],
) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.store_has_trouble(writes="*", how="are slow")
    answer(machine)
    machine.cancel(n=0)
    machine.agent_exits(n=0)
    machine.check()
    machine.repair_store()
    machine.check()
    assert [event.kind for event in events(machine)].count("session_end") == 1


def test_agent_that_knows_answers_of_a_cancelled_request_gets_no_prompt(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.restart()
    machine.store_has_trouble(writes="*", how="are slow")
    answer(machine)
    assert machine.driver.alive(), "it is started, and its native id is being stored"
    machine.request_is_cancelled()
    machine.check()
    machine.repair_store()
    assert message(machine).error is None
    told = [one.content for one in machine.driver.alive()[0].spec.seed.history if isinstance(one, ToolMessage)]
    assert told == ["Tool call cancelled"]


def test_number_of_an_event_of_a_run_that_waits_is_not_given_again_after_a_kill(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.store_has_trouble(writes="*", how="are slow")
    machine.agent_exits(n=0)
    machine.check()
    # The run goes on with the number after the last stored one: nobody may have got the error.
    assert machine.slots[0].follower.last == max(machine.stored(machine.slots[0]).events)
    machine.kill()
    machine.check()
    assert answer(machine).accepted


def test_events_of_a_run_that_waits_are_sent_once_they_are_stored(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    message(machine)
    call(machine, "change")
    machine.store_has_trouble(writes="events.append", how="fail once")
    machine.happens(machine.agents("waiting")[0].send, *machine.events_of("line"))
    machine.check()
    before = machine.slots[0].follower.last
    machine.pass_time(1.0)
    machine.check()
    assert machine.slots[0].follower.last == before + 1


def test_message_that_is_queued_while_its_session_is_deleted_is_refused(begin: Callable[..., SessionMachine]) -> None:
    machine = begin()
    machine.store_has_trouble(writes="*", how="are slow")
    machine.delete(n=0)
    machine.message_without_client(n=0)
    queued = machine.requests[-1]
    machine.repair_store()
    machine.check()
    assert isinstance(queued.error, NotFound)


@pytest.mark.xfail(reason="its run is stored as running, and the log says that it waits")
def test_a_denial_by_the_time_limit_whose_outcome_is_unknown(begin: Callable[..., SessionMachine]) -> None:
    machine = begin(answer=20.0)
    message(machine)
    call(machine, "look", "look")
    machine.agent_exits(n=0)
    machine.check()
    machine.store_has_trouble(how="are done, perhaps", writes="*")
    machine.pass_time(seconds=35.0)
    machine.check()
