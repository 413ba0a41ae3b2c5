"""Sessions of an ACP agent: settings, resuming, login, closing; the probe; the package's exports."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import drivers.acp
from drivers.acp.config_options import options_of, requested
from drivers.acp.driver import DRAIN_SECONDS, LATE_COMMANDS, AcpDriver
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSeed, SessionSpec
from drivers.contract.errors import AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import SlashCommand
from drivers.contract.messages import UserMessage
from drivers.runtime.process import Spawner
from tests.drivers.acp.small_agent import MARK, Open, agent_args, agent_text, environment, run_events
from tests.drivers.small_programs import marked
from tests.support.manual_clock import ManualClock


def test_modes_and_config_options_become_options() -> None:
    grouped = {"type": "select", "name": "Effort", "description": "How hard.", "category": "thought_level",
               "options": [{"group": "g", "name": "G", "options": [{"value": "low"}, {"value": "high"}]}]}  # fmt: skip
    mode = {"type": "select", "name": "Mode", "category": "mode", "options": [{"value": "a"}, {"value": "b"}]}
    model = {"type": "select", "name": "Model", "category": "model", "options": [{"value": "m"}]}
    options = {"effort": grouped, "kind": mode, "model": model}
    [modes, effort] = options_of(["a", "b"], options)
    assert (modes.name, modes.choices) == ("mode", ("", "a", "b"))
    assert (effort.name, effort.title, effort.description) == ("config.effort", "Effort", "How hard.")
    assert effort.choices == ("", "low", "high")
    assert [option.name for option in options_of([], options)] == ["config.effort", "config.kind"]
    assert options_of([], {}) == ()


def test_the_folder_of_a_session_is_not_resolved_again(tmp_path: Path) -> None:
    """It is real when it is checked: a link in it has been created since, and may lead outside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").symlink_to("outside")
    codec = AcpDriver().session(SessionSpec("agent", tmp_path / "work", {})).codec
    codec.outbox.clear()
    codec.receive(b'{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}}')
    assert json.loads(codec.outbox)["params"]["cwd"] == str(tmp_path / "work")


def test_an_option_of_its_own_overrides_the_list() -> None:
    given = {"config": "effort=low,loud=true", "config.effort": "high", "config.kind": "", "mode": "a"}
    assert requested(given) == {"effort": "high", "loud": "true"}


async def test_a_chosen_value_is_set_in_the_agent(open_agent: Open) -> None:
    agent = await open_agent(options={"mode": "wild", "config.loud": "true"})
    assert agent_text(await run_events(agent, "settings")) == "wild small True"


async def test_mode_model_and_config_are_set_in_the_agent(open_agent: Open) -> None:
    agent = await open_agent(options={"mode": "wild", "model": "large", "config": "loud=true"})
    assert agent_text(await run_events(agent, "settings")) == "wild large True"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "odd"}, "it has no mode 'odd'; available: calm, wild"),
        ({"model": "odd"}, "it has no model 'odd'; available: small, large"),
        ({"config": "odd=1"}, "it has no config option 'odd'; available: model, loud"),
        ({"config": "loud=1"}, "it has no value of loud '1'; available: true, false"),
        ({"config": "loud"}, "write ID=VALUE"),
    ],
)
async def test_an_unknown_setting_is_rejected(open_agent: Open, options: dict[str, str], message: str) -> None:
    with pytest.raises(AgentUnavailable, match=message):
        await open_agent(options=options)


async def test_a_session_is_resumed_in_another_process(open_agent: Open) -> None:
    for flags in ("", "noresume"):
        first = await open_agent(flags=flags)
        await run_events(first, "say one")
        await first.close()
        second = await open_agent(flags=flags, seed=SessionSeed(first.native_id))
        events = await run_events(second, "recall")
        assert agent_text(events) == "say one | recall"
        assert not any("replay" in event.encode().decode() for event in events)


async def test_a_session_that_cannot_be_resumed_has_an_error_of_its_own(open_agent: Open) -> None:
    with pytest.raises(ResumeFailed, match="Resource not found"):
        await open_agent(seed=SessionSeed("nothing"))
    with pytest.raises(ResumeFailed, match="cannot resume"):
        await open_agent(flags="noresume noload", seed=SessionSeed("nothing"))
    with pytest.raises(AgentUnavailable, match="start a new session"):
        await open_agent(seed=SessionSeed(history=(UserMessage(content="hello"),)))


async def test_loaded_session_whose_conversation_is_lost_is_not_resumed(open_agent: Open) -> None:
    first = await open_agent(flags="noresume")
    await run_events(first, "say one")
    await first.close()
    with pytest.raises(ResumeFailed, match="replayed no message"):
        await open_agent(flags="noresume forgets", seed=SessionSeed(first.native_id))


async def test_additional_directories_are_sent_with_new_resume_and_load(open_agent: Open, tmp_path: Path) -> None:
    more = (tmp_path / "one", tmp_path / "two")
    directories = f"{tmp_path / 'one'} {tmp_path / 'two'}"
    first = await open_agent(flags="folders", additional_directories=more)
    assert agent_text(await run_events(first, "folders")) == f"new {directories}"
    await first.close()
    for flags, how in (("folders", "resume"), ("folders noresume", "load")):
        again = await open_agent(flags=flags, seed=SessionSeed(first.native_id), additional_directories=more)
        assert agent_text(await run_events(again, "folders")) == f"{how} {directories}"
        await again.close()
    without = await open_agent(flags="folders", seed=SessionSeed(first.native_id))
    assert agent_text(await run_events(without, "folders")) == "resume"


async def test_additional_directories_are_rejected_if_the_agent_does_not_support_them(open_agent: Open, tmp_path: Path) -> None:
    first = await open_agent()
    for resume in (None, first.native_id):
        with pytest.raises(AgentUnavailable, match=f"takes no additional directories, but {tmp_path / 'one'}"):
            await open_agent(seed=SessionSeed(resume), additional_directories=(tmp_path / "one",))


async def test_the_agent_gets_a_close_request_when_its_session_ends(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent()
    await run_events(agent, "say one")
    await agent.close()
    assert (tmp_path / "sessions" / f"{agent.native_id}.closed").exists()


async def test_a_login_is_tried_once(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match=r"not logged in.*auth_method to one of password"):
        await open_agent(flags="login")
    with pytest.raises(AgentUnavailable, match="did not log in by 'password': wrong password"):
        await open_agent(flags="nologin", options={"auth_method": "password"})
    assert agent_text(await run_events(await open_agent(flags="login", options={"auth_method": "password"}), "say in")) == "in"


async def test_the_probe(tmp_path: Path) -> None:
    def spec(flags: str = "", program: str = sys.executable) -> AgentSpec:
        return AgentSpec(program, tmp_path / "work", environment(tmp_path, flags), agent_args())

    found = await AcpDriver().probe(spec(), Spawner(MARK))
    assert (found.version, found.problem, found.logged_in, found.models) == ("1.2.3", None, True, ("small", "large"))
    assert (found.images, found.additional_directories) == (True, False)
    assert [(option.name, option.choices) for option in found.options] == [
        ("mode", ("", "calm", "wild")),
        ("config.loud", ("", "true", "false")),
    ]
    assert (await AcpDriver().probe(spec("folders"), Spawner(MARK))).additional_directories is True
    found = await AcpDriver().probe(spec("login"), Spawner(MARK))
    assert (found.version, found.logged_in) == ("1.2.3", False)
    assert "not logged in" in (found.problem or "")
    found = await AcpDriver().probe(spec(program="/bin/false"), Spawner(MARK))
    assert (found.version, found.logged_in, found.additional_directories) == (None, None, None)
    assert "ended before it took a prompt" in (found.problem or "")


@pytest.mark.parametrize("flags", ["commands", "commands_later", "commands deaf", "commands fragile"])
async def test_the_probe_waits_for_the_commands(tmp_path: Path, clock: ManualClock, flags: str) -> None:
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path, flags), agent_args())
    probing = asyncio.create_task(AcpDriver().probe(spec, Spawner(MARK, clock=clock)))
    if "deaf" in flags:
        await clock.expire(DRAIN_SECONDS)
    found = await probing
    assert (found.version, found.problem, found.logged_in) == ("1.2.3", None, True)
    assert found.commands == (SlashCommand(name="shout", description="Repeats it louder.", hint="text to repeat"),)


async def test_the_probe_waits_for_commands_that_come_after_the_next_response(tmp_path: Path) -> None:
    """As gemini 0.61.0 does."""
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path, "commands_last"), agent_args())
    assert [command.name for command in (await AcpDriver().probe(spec, Spawner(MARK))).commands] == ["shout"]


async def test_a_probe_that_is_cancelled_while_it_waits_for_commands_ends_its_process(tmp_path: Path, clock: ManualClock) -> None:
    spec = AgentSpec(sys.executable, tmp_path / "work", environment(tmp_path), agent_args())
    probing = asyncio.create_task(AcpDriver().probe(spec, Spawner(MARK, clock=clock)))
    await clock.waited_for(LATE_COMMANDS)
    assert marked(MARK)
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert not marked(MARK)


@pytest.mark.parametrize(
    ("program", "message"),
    [("/bin/cat", "refused to start"), ("/bin/sleep", "not ready 20 s after"), ("/bin/true", "ended before")],
)
async def test_a_program_that_does_not_speak_the_protocol(tmp_path: Path, clock: ManualClock, program: str, message: str) -> None:
    args = ("600",) if program == "/bin/sleep" else ()
    spec, spawner = SessionSpec(program, tmp_path, environment(tmp_path), args), Spawner(MARK, clock=clock)
    opening = asyncio.create_task(AcpDriver().open(spec, spawner, Limits(start=20)))
    if args:
        await clock.expire(20)
    with pytest.raises(DriverError, match=message):
        await opening


def test_the_bridge_imports_neither_the_protocol_nor_the_acp_driver() -> None:
    code = "import sys, drivers.acp.mcp_bridge; sys.exit(bool({'acp', 'drivers.acp.driver'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_can_be_imported() -> None:
    for name in drivers.acp.__all__:
        assert getattr(drivers.acp, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = drivers.acp.nothing  # type: ignore[attr-defined]
