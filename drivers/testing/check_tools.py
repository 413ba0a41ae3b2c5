"""Checks of tools: which run, which ask for permission, and whether the result of an application-side tool arrives."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, SessionEnd, ToolCall
from drivers.testing.check_outcome import Check, Failed, Skipped
from drivers.testing.driver_under_test import Setup
from drivers.testing.run_invariants import ask, failure, kinds, refuse

APPLICATION_TOOL = ToolSpec("portico_check", "Returns a word.", {"type": "object", "properties": {}})
RESULT = "portico-check-result-4d07"


async def not_enabled(setup: Setup) -> None:
    for name, prompt in _cases(setup).items():
        async with setup.opened() as (agent, _):
            events = await ask(agent, prompt, setup.seconds)
        if _completed(events, name):
            raise Failed(f"tool {name!r} ran in a session that does not enable it; pass the CLI exactly what `spec.tools` lists")
        _skip_failed(events, name)


async def trusted(setup: Setup) -> None:
    for name, prompt in _cases(setup).items():
        async with setup.opened(tools=(ToolGrant(name, trust=True),)) as (agent, _):
            events = await ask(agent, prompt, setup.seconds)
        if _awaited(events, name):
            raise Failed(
                f"tool {name!r} is trusted, and its call was announced in `awaiting`; a trusted tool runs without asking"
            )
        if not _completed(events, name):
            raise Failed(f"tool {name!r} is trusted and did not run on the prompt {prompt!r}; it gave {kinds(events)}")


async def permission(setup: Setup) -> str | None:
    for name, prompt in _cases(setup).items():
        denied = await _asked(setup, name, prompt, granted=False)
        if _completed(denied, name):
            how = "after its call was denied" if _awaited(denied, name) else "without an `awaiting` event"
            raise Failed(f"tool {name!r} is not trusted, and it ran {how}")
        _skip_failed(denied, name)
        if not setup.tools.asks:
            continue
        if not _awaited(denied, name):
            raise Failed(
                f'tool {name!r} is enabled without trust, and its call was not announced in `awaiting` with wants="permission"; '
                f"it gave {kinds(denied)}. For a CLI that cannot ask, give --never-asks, or ToolCases(asks=False) in a test"
            )
        granted = await _asked(setup, name, prompt, granted=True)
        if not _completed(granted, name):
            raise Failed(f"tool {name!r} did not run after its call was granted; it gave {kinds(granted)}")
    return None if setup.tools.asks else "a tool without trust does not run, because the CLI cannot ask"


async def application(setup: Setup) -> None:
    if not setup.info.capabilities.app_tools:
        raise Skipped("info() declares app_tools=False")
    if setup.tools.application is None:
        raise Skipped("no prompt is given on which the program calls the tool `portico_check` (--app-tool-prompt)")
    if getattr(setup.driver, "tools_by_mcp", False):
        raise Skipped("the driver's application-side tools need the gateway's MCP server")
    async with setup.opened(app_tools=(APPLICATION_TOOL,)) as (agent, watched):
        events = await ask(agent, setup.tools.application, setup.seconds, _result)
        wants = _awaited(events, APPLICATION_TOOL.name)
        if not wants:
            raise Failed(f"no call of {APPLICATION_TOOL.name!r} was announced in `awaiting`; it gave {kinds(events)}")
        if wants != ["result"]:
            raise Failed(f'the call of an application-side tool was announced with wants={wants[0]!r}; it must be "result"')
        if watched.started and RESULT.encode() not in watched.given:
            raise Failed("the result of an application-side call never reached the program")


async def _asked(setup: Setup, name: str, prompt: str, *, granted: bool) -> list[OutputEvent]:
    def answer(call: AwaitedCall) -> Reply:
        return PermissionReply(call.id, "allow") if granted and call.wants == "permission" else refuse(call)

    async with setup.opened(tools=(ToolGrant(name),)) as (agent, _):
        return await ask(agent, prompt, setup.seconds, answer)


def _result(call: AwaitedCall) -> Reply:
    return ToolReply(call.id, RESULT) if call.wants == "result" else refuse(call)


def _cases(setup: Setup) -> dict[str, str]:
    names = {tool.name for tool in setup.info.tools}
    if not names:
        raise Skipped("info() lists no tools")
    if not setup.tools.own:
        raise Skipped("no prompt is given on which the program calls a tool (--tool-prompt NAME=PROMPT)")
    if unknown := sorted(setup.tools.own.keys() - names):
        raise Failed(f"there is a prompt for tool {unknown[0]!r}, which info() does not list")
    return dict(setup.tools.own)


def _skip_failed(events: Sequence[OutputEvent], name: str) -> None:
    """Raises Skipped if the run has failed: then it says nothing about the tool."""
    end = events[-1]
    if isinstance(end, SessionEnd) and end.stop_reason == "error":
        raise Skipped(f"the run that calls tool {name!r} {failure(events)}")


def _awaited(events: Sequence[OutputEvent], name: str) -> list[str]:
    """What the announced calls of this tool wait for."""
    ids = {event.id for event in events if isinstance(event, ToolCall) and event.name == name}
    announced = [call for event in events if isinstance(event, Awaiting) for call in event.calls]
    return [call.wants for call in announced if call.id in ids and not call.optional]


def _completed(events: Sequence[OutputEvent], name: str) -> bool:
    ids = {event.id for event in events if isinstance(event, ToolCall) and event.name == name}
    return any(isinstance(event, ToolCall) and event.id in ids and event.status == "completed" for event in events)


CHECKS = (
    Check("tool not enabled", "a tool that the session does not enable does not run", not_enabled),
    Check("trusted tool", "a trusted tool runs without asking", trusted),
    Check("tool permission", "a tool without trust asks, runs when it is granted and not when it is denied", permission),
    Check("application tool", "a call of an application-side tool waits for its result, which reaches the program", application),
)
