"""The agents of a diagnosis: asked of the daemon that runs, or probed in this process; and their one-shot tasks."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drivers.compatibility import Support
from drivers.runtime.cancellation import despite_cancellation
from drivers.runtime.clock import Clock
from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from drivers.runtime.process import Spawner
from drivers.runtime.subreaper import adopted_orphans
from gateway.agents.configured_agents import TEST_DRIVERS, Agents
from gateway.agents.discovery import PROBE_TIMEOUT, Discovery
from gateway.agents.driver_states import AgentState, DriverState, driver_states
from gateway.agents.probe_cache import CACHE
from gateway.app import Gateway
from gateway.config import NodeSettings, Settings, StoreSettings
from gateway.diagnosis.daemon import Address
from gateway.diagnosis.report import AgentReport, Check, Trial
from gateway.errors import AgentProblem, ConfigError, GatewayError
from gateway.runs.one_shot_tasks import Task as OneShotTask
from gateway.security.redaction import Redactor

TASK = "Reply with the single word ok, and use no tools."
TRIAL_SECONDS = 120.0
"""Seconds for a task, start of the program included."""
REFUSED = (403, 409, 429)
"""HTTP status of a task that the gateway refuses for reasons of its own."""
MAX_ANSWER, MAX_MODELS = 200, 4
"""Characters of an answer, and models, that are reported in words."""
SUPPORT: dict[Support, str] = {
    "tested": "tested",
    "newer": "newer than the tested versions",
    "older": "older than the tested versions",
}
ABOUT_LOGIN = re.compile(r"log.?in|logged|auth|api.?key|credential|\b40[13]\b", re.IGNORECASE)
"""Of errors that another login may solve."""
_DRIVERS = TypeAdapter(dict[str, list[DriverState]])


Events = list[dict[str, Any]]
"""What an agent does, as `/v1/execute` streams it."""
States = Callable[..., Awaitable[list[DriverState]]]
"""Returns the state of every driver and its agents. With `refresh` all are probed now, for PROBE_TIMEOUT at most."""
Task = Callable[[str], Awaitable[Events]]
"""Lets an agent do TASK. Raises GatewayError if that is refused, an AgentProblem if the agent cannot do it."""


class DaemonError(Exception):
    """The daemon does not answer, or refuses the key; in words."""


async def states_of_daemon(address: Address, key: str | None, clock: Clock, *, refresh: bool) -> list[DriverState]:
    """Ask a daemon for its agents. Raises DaemonError."""
    # The daemon waits so long for programs.
    seconds = PROBE_TIMEOUT + ANSWER_SECONDS
    path = f"/v1/drivers?refresh={str(refresh).lower()}"
    try:
        answer = await bounded(lambda: address.request("GET", path, key, None, seconds), seconds, clock)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DaemonError(f"it does not report its agents within {seconds:g} s") from error
    if answer.status == 401:
        raise DaemonError("it does not accept the key of this data folder")
    try:
        return _DRIVERS.validate_python(answer.object())["drivers"]
    except (ValidationError, KeyError) as error:
        raise DaemonError(f"its answer about agents cannot be read (HTTP status {answer.status})") from error


async def task_of_daemon(address: Address, key: str | None, clock: Clock, agent: str) -> Events:
    """Let an agent of a daemon do TASK."""
    body = {"driver": agent, "task": TASK}
    answer = await bounded(lambda: address.request("POST", "/v1/execute", key, body, TRIAL_SECONDS), TRIAL_SECONDS, clock)
    if answer.status != 200:
        error = str(answer.object().get("error", f"HTTP status {answer.status}"))
        raise GatewayError(error) if answer.status in REFUSED else AgentProblem(error)
    data = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in data]


async def task_of_gateway(gateway: Gateway, agent: str) -> Events:
    """Let an agent of a gateway in this process do TASK."""
    turn = await gateway.tasks.execute(OneShotTask(agent, TASK))
    return [json.loads(entry.data) async for entries in turn.batches() for entry in entries]


@asynccontextmanager
async def own_agents(
    settings: Settings, agents: Agents, folder: Path, redactor: Redactor, clock: Clock
) -> AsyncIterator[tuple[States, Task]]:
    """Probe the agents, and let them do TASK, in this process. Their processes are ended afterwards.

    Nothing is written into the data directory of the settings.
    """
    # A store of its own, which is gone afterwards.
    server = settings.server.model_copy(update={"data_dir": folder / "data"})
    own = settings.model_copy(update={"server": server, "store": StoreSettings(), "node": NodeSettings()})
    opening, opened = asyncio.Lock(), list[Gateway]()
    # The earlier results, for programs that answer late. `Discovery` reads the file when it is made.
    with suppress(OSError, TimeoutError):
        await bounded(lambda: shutil.copyfile(settings.data_dir / CACHE, folder / CACHE), clock=clock)
    discovery = Discovery(agents, folder, redactor, probes_at_start=False, clock=clock)
    discovery.spawner = Spawner(temporary=folder)

    async def task(agent: str) -> Events:
        async with opening:
            if not opened:
                gateway = Gateway(own, (), redactor, agents, discovery, clock=clock)
                await gateway.open()
                opened.append(gateway)
        return await task_of_gateway(opened[0], agent)

    async def close() -> None:
        await discovery.close()
        for gateway in opened:
            await gateway.close()

    async with adopted_orphans():
        try:
            yield partial(driver_states, agents, discovery, redactor), task
        finally:
            await despite_cancellation(close())


async def report_agents(states: States, task: Task | None, portico: str, edit: str | None, clock: Clock) -> list[AgentReport]:
    """Report every agent; with a task of each that is offered, at the same time, if there is a `task`. Raises DaemonError.

    `portico` is as in `check_daemon`; `edit` is the command that edits the configuration.
    """
    found = await _probed(states)
    trials: dict[str, Trial] = {}
    if task is not None:
        tried = [state.name for _, state in found if state.offered]
        trials = dict(zip(tried, await asyncio.gather(*(_trial(task, name, clock) for name in tried)), strict=True))
    return [_report(driver, state, trials.get(state.name), portico, edit) for driver, state in found]


def check_any_agent(agents: Sequence[AgentReport]) -> Check | None:
    """The problem that no agent can be used; None if one can. Agents for tests count if they are configured."""
    if any(
        agent.state.offered and agent.state.probed and (agent.state.configured or agent.driver not in TEST_DRIVERS)
        for agent in agents
    ):
        return None
    command = next((agent.check.command for agent in agents if agent.check.command), None)
    usable = [agent.state.name for agent in agents if agent.state.offered and agent.driver in TEST_DRIVERS]
    but = f" but {' and '.join(usable)}, which answers without a model," if usable else ""
    text = f"no agent{but} can be used: install or log in one of those below"
    return Check(name="Agents", status="problem", text=text, command=command)


async def _probed(states: States) -> list[tuple[DriverState, AgentState]]:
    """Return each agent with its driver. Those without a result after PROBE_TIMEOUT have as long again: some start slowly."""
    found = [(driver, state) for driver in await states(refresh=True) for state in driver.agents]
    if not any(_has_no_result(state) for _, state in found):
        return found
    later = {state.name: state for driver in await states(refresh=False) for state in driver.agents}
    return [(driver, later.get(state.name, state) if _has_no_result(state) else state) for driver, state in found]


def _has_no_result(state: AgentState) -> bool:
    """Whether its program has not been probed yet. One that is late now may have an earlier result."""
    return not state.probed and state.version is None


async def _trial(task: Task, agent: str, clock: Clock) -> Trial:
    started = clock.monotonic()
    try:
        async with clock.timeout(TRIAL_SECONDS):
            events = await task(agent)
    except TimeoutError:
        return Trial(seconds=TRIAL_SECONDS, error=f"the task was not over after {TRIAL_SECONDS:g} s")
    except GatewayError as error:
        refused = not isinstance(error, AgentProblem)
        return Trial(seconds=clock.monotonic() - started, error=str(error), refused=refused)
    except (OSError, ValueError, http.client.HTTPException, ConfigError) as error:
        return Trial(seconds=clock.monotonic() - started, error=f"the task cannot be run: {error}")
    seconds = clock.monotonic() - started
    text = "".join(event["text"] for event in events if event.get("kind") == "agent_token").strip()
    errors = [str(event.get("message")) for event in events if event.get("kind") == "error"]
    code = next((event.get("exit_code") for event in events if event.get("kind") == "session_end"), None)
    if not errors and code != 0:
        errors = ["it ended before the task did" if code is None else f"its program exited with code {code}"]
    if not errors and not text:
        errors = ["it answered nothing"]
    return Trial(seconds=seconds, answer=text.partition("\n")[0][:MAX_ANSWER] or None, error=errors[0] if errors else None)


def _report(driver: DriverState, state: AgentState, trial: Trial | None, portico: str, edit: str | None) -> AgentReport:
    check = _check(driver, state, edit)
    if trial is not None:
        if trial.error is None:
            check.details.append(f"answered in {trial.seconds:.1f} s: {trial.answer}")
        elif trial.refused:
            check.details.append(f"not tried: {trial.error}")
        else:
            check.status = "problem"
            check.details.append(f"failed after {trial.seconds:.1f} s: {trial.error}")
            about_login = state.login is not None and ABOUT_LOGIN.search(trial.error)
            check.command = state.login if about_login else f"{portico.format('run')} {state.name} hello"
    return AgentReport(check=check, driver=driver.driver, state=state, trial=trial)


def _check(driver: DriverState, state: AgentState, edit: str | None) -> Check:
    if state.problem is not None:
        status = "problem" if state.configured else "warning" if state.installed else "info"
        text = state.problem if state.configured or state.installed else f"{driver.title} is not installed"
        return Check(name=state.name, status=status, text=text, command=state.command or (edit if state.configured else None))
    details = [*([", ".join(_models(state))] if state.models else []), *state.notes]
    if not state.probed:
        text = f"{driver.title} has not answered within {PROBE_TIMEOUT if state.version else 2 * PROBE_TIMEOUT:g} s"
        command = f"{shlex.quote(state.program or state.name)} --version"
        return Check(name=state.name, status="warning", text=text, details=details, command=command)
    version = f"{driver.title} {state.version or ''}".strip() + (f" ({SUPPORT[state.support]})" if state.support else "")
    known = {True: "logged in", False: "not logged in"}.get(state.logged_in)  # type: ignore[arg-type]
    text = ", ".join(filter(None, [version, known, state.program]))
    return Check(name=state.name, status="ok", text=text, details=details)


def _models(state: AgentState) -> list[str]:
    more = len(state.models) - MAX_MODELS
    return [f"models: {state.models[0]}", *state.models[1:MAX_MODELS], *([f"and {more} more"] if more > 0 else [])]
