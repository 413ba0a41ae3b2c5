"""Checks with the real program: a task, a session, an interrupt, a killed process, and what is left behind."""

from __future__ import annotations

import asyncio

from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import SessionSeed
from drivers.contract.codec import Command
from drivers.contract.errors import AgentGone, AgentUnavailable, ResumeFailed
from drivers.contract.events import NativeSession, OutputEvent, SessionEnd
from drivers.contract.messages import AssistantMessage, UserMessage
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.turn_process import TurnProcessAgent, TurnProcessDriver
from drivers.testing.check_outcome import Check, Failed, Skipped
from drivers.testing.driver_under_test import Setup
from drivers.testing.recording_spawner import Watched
from drivers.testing.run_invariants import ask, failure, kinds, to_end

SECRET = "portico-check-secret-5e1f"
PROMPT_MARK, ANSWER_MARK, SYSTEM_MARK = "portico-check-prompt-81c2", "portico-check-answer-81c2", "portico-check-system-81c2"
NO_SUCH = "00000000-0000-4000-8000-000000000000"
GOING = 2.0
"""Seconds that ended processes have to be gone."""


async def program(setup: Setup) -> None:
    if setup.found_program() is None:
        expected, hint = setup.program or setup.info.program.name, setup.info.program.install
        raise Failed(f"the program {expected!r} is not on PATH; " + (f"install it with `{hint}`" if hint else "give --program"))


async def probe(setup: Setup) -> None:
    watched = Watched()
    try:
        async with asyncio.timeout(setup.seconds):
            found = await setup.driver.probe(setup.session(), watched)
        if found.problem or not found.version:
            raise Failed(f"probe() finds no version: {found.problem or found}; see that the program runs here, and is logged in")
        if left := await watched.left(GOING):
            raise Failed(f"probe() left {len(left)} processes running: {', '.join(process.name() for process in left)}")
    except TimeoutError:
        raise Failed(f"probe() did not come back within {setup.seconds:g} s") from None
    finally:
        await watched.end()


async def arguments(setup: Setup) -> None:
    """Everybody on the machine can read them."""
    secrets = {option.name: SECRET for option in setup.info.options if option.secret}
    options = {**setup.task().options, **secrets}
    history = (UserMessage(content=PROMPT_MARK), AssistantMessage(content=ANSWER_MARK))
    can = setup.info.capabilities
    seed = SessionSeed(history=history if can.seeds else (), system=SYSTEM_MARK if can.system else None)
    commands: dict[str, Command] = {}
    if isinstance(setup.driver, CliDriver):
        commands["task"] = setup.driver.task(setup.task(task=PROMPT_MARK, options=options)).command
        commands["session"] = setup.driver.session(setup.session(options=options, seed=seed)).command
    elif isinstance(setup.driver, TurnProcessDriver):
        commands["turn"] = setup.driver.turn(setup.session(options=options, seed=seed), Prompt(PROMPT_MARK)).command
    else:
        raise Skipped("the driver starts its processes by itself")
    what = {
        PROMPT_MARK: "the prompt or the history",
        ANSWER_MARK: "the history",
        SYSTEM_MARK: "the system prompt",
        SECRET: "a secret option",
    }
    for form, command in commands.items():
        for mark, meaning in what.items():
            if any(mark in argument for argument in command.argv):
                raise Failed(f"{form}(): {meaning} stands in the arguments, where every user of the machine can read it")


async def task(setup: Setup) -> None:
    watched = Watched()
    try:
        agent = await setup.driver.execute(setup.task(), watched, setup.limits)
        _refuse_failure(await to_end(agent, setup.seconds), "the task")
        await agent.close()
        await _refuse_leftovers(watched, "the task and close()")
    finally:
        await watched.end()


async def session(setup: Setup) -> None:
    async with setup.opened() as (agent, _):
        _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the first turn")


async def second_turn(setup: Setup) -> None:
    async with setup.opened() as (agent, watched):
        _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the first turn")
        turn_process = isinstance(setup.driver, TurnProcessDriver)
        if turn_process and agent.native_id is None and setup.info.capabilities.seeds:
            raise Skipped("the program reports no id of its session; each turn is seeded with the history")
        if not agent.alive:
            raise Failed("the agent is not alive after its first turn; a session takes one prompt after the other")
        processes = len(watched.started)
        try:
            events = await ask(agent, setup.prompt, setup.seconds)
        except AgentGone as gone:
            raise Failed(f"the agent takes no second prompt: {gone}") from gone
        _refuse_failure(events, "the second turn")
        if len(watched.started) > processes and not turn_process:
            raise Failed("the second turn started another process; a live session is one that stays warm")


async def native_session(setup: Setup) -> None:
    async with setup.opened() as (agent, _):
        events = await ask(agent, setup.prompt, setup.seconds)
        native_id = agent.native_id
        reported = [event.native_id for event in events if isinstance(event, NativeSession) and event.native_id]
        if reported and reported[-1] != native_id:
            raise Failed(f"a native_session event has {reported[-1]!r}, and the agent's native_id is {native_id!r}")
        await agent.close()
    if native_id is None:
        raise Skipped("the program has no session of its own that could be resumed (native_id is None)")
    try:
        async with setup.opened(seed=SessionSeed(native_id)) as (resumed, _):
            _refuse_failure(await ask(resumed, setup.prompt, setup.seconds), f"the first turn after resuming {native_id!r}")
    except ResumeFailed as error:
        if setup.info.capabilities.seeds:
            raise Skipped(f"the program did not resume its own session ({error}); a fresh one is seeded then") from error
        raise Failed(f"the program did not resume its own session, and the driver declares seeds=False: {error}") from error
    try:
        async with setup.opened(seed=SessionSeed(NO_SUCH)):
            how = (
                "Override has_session()"
                if isinstance(setup.driver, TurnProcessDriver)
                else "Set codec.start_error to ResumeFailed"
            )
            raise Failed(
                f"resuming {NO_SUCH!r}, which does not exist, opened a session: the conversation would be lost unseen. {how}"
            )
    except ResumeFailed:
        pass
    except AgentUnavailable as error:
        raise Failed(
            f"resuming a session that is gone raised AgentUnavailable ({error}); with ResumeFailed it is seeded anew"
        ) from error
    if isinstance(setup.driver, TurnProcessDriver):
        await _lost_between_turns(setup, setup.driver)


async def _lost_between_turns(setup: Setup, driver: TurnProcessDriver) -> None:
    """Prompt an agent whose native session has disappeared since it was opened."""
    watched = Watched()
    try:
        agent = TurnProcessAgent(driver, setup.session(seed=SessionSeed(NO_SUCH)), watched, setup.limits)
        if failure(await ask(agent, setup.prompt, setup.seconds)) and agent.alive:
            raise Failed(
                f"a turn of the session {NO_SUCH!r}, which does not exist, failed with a run_result and a native_id: each later "
                "turn would fail too. Set native_id only when the CLI has opened the session"
            )
    finally:
        await watched.end()


async def seeds(setup: Setup) -> None:
    can = setup.info.capabilities
    if not can.seeds and not can.system:
        raise Skipped("info() declares neither `seeds` nor `system`")
    history = (UserMessage(content=PROMPT_MARK), AssistantMessage(content=ANSWER_MARK)) if can.seeds else ()
    seed = SessionSeed(history=history, system=SYSTEM_MARK if can.system else None)
    async with setup.opened(seed=seed) as (agent, watched):
        _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the first turn after a seed")
        if not watched.started:
            raise Skipped("the driver starts its processes by itself")
        environment = "\n".join(value for started in watched.started for value in started.command.env.values()).encode()
        given = watched.given + environment
        marks = [(PROMPT_MARK, "seeds"), (ANSWER_MARK, "seeds")] if can.seeds else []
        for mark, promise in [*marks, *([(SYSTEM_MARK, "system")] if can.system else [])]:
            if mark.encode() not in given:
                raise Failed(
                    f"info() declares `{promise}`, but the text never reached the program; pass it, or declare {promise}=False"
                )


async def interrupt(setup: Setup) -> None:
    async with setup.opened() as (agent, _):
        await agent.prompt(Prompt(setup.prompt))
        await agent.interrupt()
        events = await to_end(agent, setup.grace + setup.seconds)
        end = events[-1]
        if isinstance(end, SessionEnd) and end.stop_reason == "error":
            raise Failed(f"an interrupted run ends with `cancelled` (or as if nothing was); it gave {kinds(events)}")
        if agent.alive:
            _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the turn after an interrupt")


async def stuck(setup: Setup) -> None:
    async with setup.opened() as (agent, watched):
        await _suspended(agent, watched, setup)
        await agent.interrupt()
        await to_end(agent, setup.grace + 10.0, clock=setup.clock)


async def killed(setup: Setup) -> None:
    async with setup.opened() as (agent, watched):
        await _suspended(agent, watched, setup)
        await watched.kill()
        events = await to_end(agent, setup.grace + 20.0)
        end = events[-1]
        if not isinstance(end, SessionEnd) or not end.exit_code or "error" not in [event.kind for event in events]:
            raise Failed(
                f"a process that is killed in mid-turn is an `error` and a session_end that fails; it gave {kinds(events)}"
            )
        if agent.alive and isinstance(setup.driver, TurnProcessDriver):
            _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the turn after a killed one")
            return
        if agent.alive:
            raise Failed("the process was killed, and the agent reports that it is alive")
        try:
            await agent.prompt(Prompt(setup.prompt))
        except AgentGone:
            return
        raise Failed("prompt() raised nothing although the process is gone; it must raise AgentGone")


async def close(setup: Setup) -> None:
    async with setup.opened() as (agent, watched):
        _refuse_failure(await ask(agent, setup.prompt, setup.seconds), "the first turn")
        await asyncio.wait_for(agent.close(), setup.grace + 20.0)
        await asyncio.wait_for(agent.close(), 5.0)
        await _refuse_leftovers(watched, "close()")
        if agent.alive:
            raise Failed("the agent reports that it is alive after close()")
    async with setup.opened() as (agent, watched):
        await _suspended(agent, watched, setup)
        reading = asyncio.create_task(to_end(agent, setup.grace + 20.0))
        await asyncio.wait_for(agent.close(0.5), setup.grace + 20.0)
        await reading
        await _refuse_leftovers(watched, "close() in mid-turn")


async def _suspended(agent: Agent, watched: Watched, setup: Setup) -> None:
    """A run under way that cannot end: the processes are stopped before they receive the prompt, or as soon as they start."""
    if isinstance(setup.driver, TurnProcessDriver):
        watched.suspends = True
        await agent.prompt(Prompt(setup.prompt))
        watched.suspends = False
    elif await watched.running():
        await watched.suspend()
        await agent.prompt(Prompt(setup.prompt))
    else:
        raise Skipped("no process runs that was started with the spawner")


async def _refuse_leftovers(watched: Watched, after: str) -> None:
    if left := await watched.left(GOING):
        found = ", ".join(f"{process.name()} ({process.pid})" for process in left)
        raise Failed(f"{after} left {len(left)} processes running: {found}")


def _refuse_failure(events: list[OutputEvent], what: str) -> None:
    if failed := failure(events):
        raise Failed(f"{what} {failed}")


CHECKS = (
    Check("program", "the program is there", program),
    Check("probe", "probe() finds the program's version and leaves nothing running", probe),
    Check("arguments", "no prompt, history, system prompt or secret stands in a process' arguments", arguments),
    Check("task", "a task ends with one session_end, last, and leaves nothing running", task),
    Check("session", "a session answers a prompt with events and one session_end, last", session),
    Check("second turn", "a second prompt is answered, by the same process where the driver keeps one", second_turn),
    Check(
        "native session", "the program's own session can be resumed, and ResumeFailed reports one that is gone", native_session
    ),
    Check("seeds", "a history and a system prompt reach the program where info() declares them", seeds),
    Check("interrupt", "an interrupted run ends once, and the agent goes on or is gone", interrupt),
    Check("stuck", "an interrupted run ends within the grace time though the program does not react", stuck),
    Check("killed", "a process that is killed in mid-turn is an error and a session_end", killed),
    Check("close", "close() ends every process, also in mid-turn, and the run under way gets its session_end", close),
)
