"""The states of a session in docs/architecture.md are made from gateway/sessions/machine.py.

`python -m tests.docs.test_states_of_a_session` writes them into the page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import NotFound, ShuttingDown
from gateway.runs.run import RunEvent
from gateway.sessions.machine import COMMANDS, EVENTS, OVER_UNTIL, PUBLIC, REFUSALS, Command, Machine, State

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- made from gateway/sessions/machine.py -->", "<!-- end -->"
GENERATED = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)


def rendered() -> str:
    """The states, the commands and the events as Markdown."""
    return "\n".join([*_states(), "", *_diagram(), "", *_commands(), ""])


def _states() -> Iterator[str]:
    yield "| state | what it is | clients see |"
    yield "|---|---|---|"
    for state in State:
        yield f"| {state.label} | {state.text} | {PUBLIC.get(state, 'that of the run')} |"


def _diagram() -> Iterator[str]:
    labels = defaultdict[tuple[str, str], list[str]](list)
    for (before, command), after in COMMANDS.items():
        if before is not after and command is not Command.LEAVE:
            labels[before.label, after.label].append(command.label)
    for (before, event), after in EVENTS.items():
        if before is not after:
            labels[before.label, after.label].append(event.value)
    for over, until in OVER_UNTIL.items():
        events = {event.value: None for (_, event), after in EVENTS.items() if after is until}
        labels[over.label, until.label] += events
    for (before, _), after in COMMANDS.items():
        if after is State.STARTING and before is not after and "refused" not in labels[after.label, before.label]:
            labels[after.label, before.label].append("refused")
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> idle"
    for (source, target), texts in labels.items():
        yield f"    {source} --> {target}: {', '.join(texts)}"
    yield "    gone --> [*]"
    yield "```"


def _commands() -> Iterator[str]:
    states = [state for state in State if state is not State.GONE]
    yield f"| command | {' | '.join(state.label for state in states)} |"
    yield f"|---|{'---|' * len(states)}"
    for command in Command:
        yield f"| {command.label}: {command.text} | {' | '.join(_cell(state, command) for state in states)} |"


def _cell(state: State, command: Command) -> str:
    if (state, command) in COMMANDS:
        return COMMANDS[state, command].label
    if (state, command) in REFUSALS:
        return str(REFUSALS[state, command][0].status)
    return "waits" if state in OVER_UNTIL else "no effect"


def test_the_page_shows_the_states_of_the_code() -> None:
    shown = GENERATED.search(PAGE.read_text())
    assert shown is not None
    assert shown[0] == rendered(), "the page is older than the code: run python -m tests.docs.test_states_of_a_session"


@pytest.mark.parametrize("command", Command, ids=lambda command: command.label)
def test_the_page_says_which_requests_are_a_command(command: Command) -> None:
    rows = re.findall(rf"^\| `{command.name}` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 1 and re.search("[a-z]", rows[0])


def machine_in(state: State) -> Machine:
    """A machine whose run is in this state, by the events that bring it there."""
    machine = Machine()
    paths: dict[State, list[RunEvent]] = {
        State.IDLE: [],
        State.RUNNING: [RunEvent.BEGAN],
        State.WAITING: [RunEvent.BEGAN, RunEvent.WAITS],
        State.SUSPENDED: [RunEvent.RESTORED],
    }
    for event in paths[state]:
        machine.on(event)
    return machine


@pytest.mark.parametrize("state", PUBLIC, ids=lambda state: state.label)
@pytest.mark.parametrize("command", Command, ids=lambda command: command.label)
def test_a_command_that_is_not_in_the_table_is_refused_in_words(state: State, command: Command) -> None:
    machine = machine_in(state)
    assert machine.permits(command) == ((state, command) in COMMANDS)
    if (state, command) in COMMANDS:
        machine.require(command)
    elif (state, command) in REFUSALS:
        error, text = REFUSALS[state, command]
        with pytest.raises(error, match=re.escape(text.format(calls="'c'"))):
            machine.require(command, "'c'")
    assert machine.state is state


@pytest.mark.parametrize("state", PUBLIC, ids=lambda state: state.label)
@pytest.mark.parametrize("event", RunEvent, ids=lambda event: event.value)
def test_an_event_that_is_not_in_the_table_changes_nothing(state: State, event: RunEvent) -> None:
    machine = machine_in(state)
    if (state, event) in EVENTS:
        machine.on(event)
        assert machine.state is EVENTS[state, event]
    else:
        with pytest.raises(RuntimeError, match=state.label):
            machine.on(event)
        assert machine.state is state


def test_a_start_that_is_refused_leaves_the_state_of_the_run() -> None:
    machine = machine_in(State.WAITING)
    with machine.over(State.STARTING):
        assert machine.state is State.STARTING
        machine.on(RunEvent.AGENT_ENDED)
        assert machine.state is State.STARTING
    assert machine.state is State.SUSPENDED
    with machine.over(State.STARTING):
        machine.on(RunEvent.ANSWERED)
        assert machine.state is State.RUNNING


def test_a_session_that_is_gone_says_why_and_a_deletion_stays_the_reason() -> None:
    machine = machine_in(State.RUNNING)
    machine.leave(ShuttingDown("down"))
    with pytest.raises(ShuttingDown, match="down"):
        machine.require(Command.STEER)
    machine.leave(NotFound("deleted"))
    machine.leave(ShuttingDown("down"))
    with pytest.raises(NotFound, match="deleted"):
        machine.require(Command.MESSAGE)
    assert machine.state is State.GONE and not machine.permits(Command.CANCEL)


if __name__ == "__main__":
    PAGE.write_text(GENERATED.sub(lambda _: rendered(), PAGE.read_text()))
