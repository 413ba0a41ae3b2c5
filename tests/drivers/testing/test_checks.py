"""Every conformance check passes on the built-in drivers and fails on a driver with the fault that it checks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drivers.acp.driver import AcpDriver
from drivers.contract.agent_specs import SessionSeed
from drivers.contract.driver_info import Program
from drivers.echo.driver import EchoDriver
from drivers.runtime.cli_driver import Driver
from drivers.script.driver import ScriptDriver
from drivers.testing import CHECKS, DriverCheckFailed, Outcome, Setup, ToolCases, check_driver, examine
from tests.drivers.testing import broken, broken_codecs, broken_tools
from tests.drivers.testing.broken import Coded, LeaksTheSpec, Programmed, Resuming, TurnByTurn, With, option, tool
from tests.drivers.testing.broken_tools import Coded as ToolsCoded
from tests.drivers.testing.broken_tools import Grants
from tests.gateway.cli.test_acp import small_agent
from tests.support.manual_clock import ManualClock

OBJECT = {"type": "object"}
TOOL_CHECKS = ("tool not enabled", "trusted tool", "tool permission", "application tool")
CASES = broken_tools.CASES
PLAIN_ACP_AGENT = Path(__file__).with_name("plain_acp_agent.py")


async def outcome(driver: Driver, folder: Path, check: str, **setup: object) -> Outcome:
    return next(found for found in await outcomes(driver, folder, check, **setup) if found.check == check)


async def outcomes(driver: Driver, folder: Path, *checks: str, **setup: object) -> list[Outcome]:
    made = Setup(driver, folder, **{"seconds": 20.0, "grace": 1.0, **setup})  # type: ignore[arg-type]
    return [outcome async for outcome in examine(made, lambda check: not checks or check.name in checks)]


@pytest.mark.parametrize("driver", [EchoDriver(), ScriptDriver()], ids=["echo", "script"])
def test_the_built_in_drivers_pass(driver: Driver) -> None:
    found = check_driver(driver, seconds=20.0, grace=1.0)
    assert [outcome.check for outcome in found] == [check.name for check in CHECKS]
    # Neither has native sessions, and the setup has no prompts that call tools.
    assert [outcome.check for outcome in found if outcome.status == "skipped"] == ["native session", *TOOL_CHECKS]


async def test_tools_are_checked_with_prompts_that_call_them(tmp_path: Path) -> None:
    options = broken_tools.write_scenario(tmp_path)
    found = await outcomes(ScriptDriver(), tmp_path, *TOOL_CHECKS, options=options, tools=broken_tools.CASES)
    assert [(outcome.status, outcome.text) for outcome in found if outcome.check in TOOL_CHECKS] == [
        ("passed", "a tool that the session does not enable does not run"),
        ("passed", "a trusted tool runs without asking"),
        ("passed", "a tool without trust asks, runs when it is granted and not when it is denied"),
        ("passed", "a call of an application-side tool waits for its result, which reaches the program"),
    ]


TOOL_FAULTS: list[tuple[str, Driver, ToolCases, str]] = [
    ("tool not enabled", Grants(broken_tools.all_trusted), CASES, "tool 'lookup' ran in a session that does not enable it"),
    ("tool not enabled", ScriptDriver(), ToolCases({"go": "go"}), "a prompt for tool 'go', which info() does not list"),
    ("trusted tool", Grants(broken_tools.none_trusted), CASES, "tool 'lookup' is trusted, and its call was announced"),
    ("trusted tool", Grants(broken_tools.none_listed), CASES, "tool 'lookup' is trusted and did not run on the prompt"),
    ("trusted tool", ScriptDriver(), ToolCases({"lookup": "hi"}), "did not run on the prompt 'hi'; it gave native_session"),
    ("tool permission", Grants(broken_tools.listed_trusted), CASES, "is not trusted, and it ran without an `awaiting` event"),
    ("tool permission", Grants(broken_tools.none_listed), CASES, "its call was not announced in `awaiting`"),
    ("tool permission", ToolsCoded(broken_tools.GrantsAll), CASES, "is not trusted, and it ran after its call was denied"),
    ("tool permission", ToolsCoded(broken_tools.DeniesAll), CASES, "tool 'lookup' did not run after its call was granted"),
    (
        "tool permission",
        ScriptDriver(),
        ToolCases({"lookup": "hi"}),
        "For a CLI that cannot ask, give --never-asks, or ToolCases(as",
    ),
    ("application tool", ToolsCoded(broken_tools.LosesResults), CASES, "the result of an application-side call never reached"),
    ("application tool", ToolsCoded(broken_tools.AsksForResults), CASES, "announced with wants='permission'; it must be"),
    ("application tool", ScriptDriver(), ToolCases(application="hi"), "no call of 'portico_check' was announced"),
]


@pytest.mark.parametrize(
    ("check", "driver", "cases", "text"), TOOL_FAULTS, ids=[f"{check}: {text[:40]}" for check, _, _, text in TOOL_FAULTS]
)
async def test_a_driver_that_ignores_grants_fails(
    check: str, driver: Driver, cases: ToolCases, text: str, tmp_path: Path
) -> None:
    found = await outcome(driver, tmp_path, check, options=broken_tools.write_scenario(tmp_path), tools=cases)
    assert (found.status, text in found.text) == ("failed", True), found


async def test_a_cli_without_permission_requests_must_not_run_untrusted_tools(tmp_path: Path) -> None:
    options, cases = broken_tools.write_scenario(tmp_path), ToolCases({"lookup": "call lookup"}, asks=False)
    for driver, status, text in (
        (Grants(broken_tools.none_listed), "passed", "a tool without trust does not run, because the CLI cannot ask"),
        (Grants(broken_tools.listed_trusted), "failed", "tool 'lookup' is not trusted, and it ran without an `awaiting` event"),
    ):
        found = await outcome(driver, tmp_path, "tool permission", options=options, tools=cases)
        assert (found.status, found.text) == (status, text)


async def test_runs_that_fail_say_nothing_about_tools(tmp_path: Path) -> None:
    cases = ToolCases({"look": "call look"}, asks=False)
    found = await outcomes(TurnByTurn("raise SystemExit(5)"), tmp_path, *TOOL_CHECKS, tools=cases)
    assert [outcome.status for outcome in found if outcome.check in TOOL_CHECKS] == ["skipped", "failed", "skipped", "skipped"]
    assert found[-2].text.startswith("the run that calls tool 'look' ended with exit code 5 (error): ")


@pytest.mark.parametrize("program", [broken.REFUSES_SESSIONS + "sys.exit(4)", broken.REPORTS_THE_ERROR])
async def test_a_session_that_is_lost_between_two_turns_passes(program: str, tmp_path: Path) -> None:
    assert (await outcome(TurnByTurn(program), tmp_path, "native session")).status == "passed"


async def test_an_agent_of_the_agent_client_protocol_passes(tmp_path: Path) -> None:
    # A separate process: one of the fork server would keep writing for a moment after it was killed.
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    found = await outcomes(AcpDriver(), tmp_path, program=sys.executable, args=("-I", "-S", str(PLAIN_ACP_AGENT), str(sessions)))
    assert [(outcome.check, outcome.text) for outcome in found if outcome.status == "failed"] == []
    assert [outcome.check for outcome in found if outcome.status == "skipped"] == ["seeds", *TOOL_CHECKS]


async def test_a_session_of_an_agent_made_with_the_official_package_passes(tmp_path: Path) -> None:
    agent = {"program": sys.executable, "args": ("-m", "tests.support.acp_agent"), "env": small_agent(tmp_path)["env"]}
    assert (await outcome(AcpDriver(), tmp_path, "session", **agent)).status == "passed"


async def test_a_session_that_can_be_resumed_passes_too(tmp_path: Path) -> None:
    assert (await outcome(Resuming(broken.only_one), tmp_path, "native session")).status == "passed"


FAULTS: list[tuple[str, Driver, str]] = [
    ("name", broken.Named(), "the class attribute `name` is 'no name'"),
    ("info", broken.ChangesItsVersion(), "info() gave two different answers"),
    ("info", broken.FailsInfo(), "it raised RuntimeError: no info ("),
    ("info", With(title=" "), "info().title is blank"),
    ("info", With(program=Program("")), "info().program.name is blank"),
    ("options", With(options=(option(), option())), "two options have the name 'mood'"),
    ("options", With(options=(option("my mood"),)), "option 'my mood': a name has letters"),
    ("options", With(options=(option("cwd"),)), "option 'cwd' is the gateway's own"),
    ("options", With(options=(option(title=""),)), "option 'mood': its title or its description is blank"),
    ("options", With(options=(option(choices=("good", "bad")),)), "its default '' is not one of its choices good, bad"),
    ("options", With(options=(option(secret=True, default="x"),)), "option 'mood' is a secret"),
    ("options", With(options=(option("slash_commands"),)), "option 'slash_commands' decides whether a `/` begins a command"),
    ("tools", With(tools=(tool(OBJECT), tool(OBJECT))), "two tools have the name 'look'"),
    ("tools", With(tools=(tool(OBJECT, " "),)), "its name or its description is blank"),
    ("tools", With(tools=(tool({"type": "objct"}),)), "is not a JSON schema: 'objct' is not valid"),
    ("tools", With(tools=(tool({"type": "object", "default": {1}}),)), "its input_schema is not JSON"),
    ("tools", With(tools=(tool({"type": "string"}),)), 'must have "type": "object"'),
    (
        "env",
        With(program=Program(env=("OPENAI_*", "*"))),
        "info().program.env has '*', which hands the daemon's whole environment",
    ),
    ("program", With(program=Program("no-such-program", "brew install it")), "not on PATH; install it with `brew install it`"),
    ("probe", broken.FailsProbe(), "probe() finds no version: it does not run here"),
    ("arguments", broken.LeaksTheTask(), "task(): the prompt or the history stands in the arguments"),
    ("arguments", LeaksTheSpec(lambda spec: spec.options["token"]), "session(): a secret option stands in the arguments"),
    ("arguments", LeaksTheSpec(lambda spec: str(spec.seed.system)), "session(): the system prompt stands in the arguments"),
    (
        "arguments",
        LeaksTheSpec(lambda spec: str(spec.seed.history)),
        "session(): the prompt or the history stands in the arguments",
    ),
    ("task", Coded(broken_codecs.SilentlyFails), "a run that fails (exit code 1) has the reason in an `error` event"),
    ("task", Programmed(broken.ECHO, task="raise SystemExit(3)"), "the task ended with exit code 3 (error)"),
    ("session", Coded(broken_codecs.FindsResults), "there is a result of tool call '1', which was never started"),
    ("session", Coded(broken_codecs.Texts), "receive() gave 'text'; it must give OutputEvents"),
    ("session", Programmed(broken.FAILS), "the first turn ended with exit code 1 (end_turn): no"),
    ("second turn", Programmed(broken.ONE_TURN), "the agent"),
    ("native session", Resuming(reported="two"), "a native_session event has 'two', and the agent's native_id is 'one'"),
    ("native session", Resuming(), "opened a session: the conversation would be lost unseen"),
    ("native session", Resuming(broken.wrong_word), "raised AgentUnavailable (it is gone); with ResumeFailed it is seeded anew"),
    ("native session", TurnByTurn(broken.REPORTS_THE_SESSION), "failed with a run_result and a native_id: each later"),
    ("killed", Coded(broken_codecs.ReportsSuccessOnExit), "a process that is killed in mid-turn is an `error`"),
    ("killed", Coded(broken_codecs.NeverEnds), "the agent was gone before its session_end"),
    ("killed", Programmed(broken.ECHO, broken.ReportsAlive), "the process was killed, and the agent reports that it is alive"),
    ("killed", Programmed(broken.ECHO, broken.AcceptsPromptsAfterExit), "prompt() raised nothing although the process is gone"),
    ("close", Programmed(broken.ECHO, broken.LeavesItsProcess), "close() left 1 processes running: python"),
    ("recorded lines", Coded(broken_codecs.EndsTwice), "gave `session_end` after the session_end of its run"),
    ("recorded lines", Coded(broken_codecs.GoesOnAfterItsEnd), "gave `agent_token` after the session_end of its run"),
    ("ends", Coded(broken_codecs.LeavesOpen), "1 runs had 0 session_end events"),
    ("ends", Coded(broken_codecs.ReportsSuccessOnExit), "the process ended with 1 in mid-run, and the run's exit code is 0"),
    ("ends", Coded(broken_codecs.Repeats), "though"),
    ("unknown lines", Coded(broken_codecs.Loses), "is lost; a line that is not understood is a Stdout event"),
    ("unknown lines", Coded(broken_codecs.AssumesValidLines), "raised ValueError: unknown line"),
    ("late lines", Coded(broken_codecs.BeginsOnLateOutput), "after the end of its run set phase or protocol_error"),
    ("damaged lines", Coded(broken_codecs.AssumesValidLines), "with recorded lines damaged ("),
    ("damaged lines", Coded(broken_codecs.EndsOnAnySessionEnd), "gave a session_end though no run was under way"),
]


@pytest.mark.parametrize(("check", "driver", "text"), FAULTS, ids=[f"{check}: {text[:40]}" for check, _, text in FAULTS])
async def test_a_broken_driver_fails(check: str, driver: Driver, text: str, tmp_path: Path) -> None:
    found = await outcome(driver, tmp_path, check)
    assert found.status == "failed", found
    assert text in found.text


async def test_an_agent_that_does_not_stop_fails(tmp_path: Path, clock: ManualClock) -> None:
    mute = Programmed(broken.MUTE, broken.IgnoresInterrupts)
    # Either limit can pass first.
    assert (await outcome(mute, tmp_path, "session", seconds=1.0)).status == "failed"
    assert (await outcome(mute, tmp_path, "interrupt", seconds=1.0)).status == "failed"
    checking = outcome(Programmed(broken.ECHO, broken.IgnoresInterrupts), tmp_path, "stuck", clock=clock)
    stuck = await clock.expire_until(checking, 11.0)
    assert (stuck.status, stuck.text[:28]) == ("failed", "no session_end within 11 s; ")


async def test_a_driver_that_ignores_the_history_fails(tmp_path: Path) -> None:
    class IgnoresTheHistory(EchoDriver):
        def session(self, spec):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return super().session(replace(spec, seed=SessionSeed()))

    found = await outcome(IgnoresTheHistory(), tmp_path, "seeds")
    assert found.text == "info() declares `seeds`, but the text never reached the program; pass it, or declare seeds=False"


async def test_a_driver_without_processes_or_codecs_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    found = {outcome.check: outcome.status for outcome in await outcomes(broken.Closed(), tmp_path)}
    assert [name for name, status in found.items() if status == "failed"] == []
    skipped = {name for name, status in found.items() if status == "skipped"}
    codecs = {"arguments", "ends", "recorded lines", "unknown lines", "late lines", "damaged lines"}
    assert skipped == {"native session", "seeds", "stuck", "killed", "close"} | codecs | set(TOOL_CHECKS)


def test_checks_that_fail_are_one_error() -> None:
    with pytest.raises(DriverCheckFailed) as failed:
        check_driver(With(title="", options=(option("cwd"),)))
    assert str(failed.value) == "driver 'echo': 1 checks failed\ninfo: info().title is blank; clients show it to people"


def test_the_program_gets_the_variables_that_the_driver_sets(tmp_path: Path) -> None:
    setup = Setup(
        With(program=Program(set_env={"ASKS": "all"})), tmp_path, env={"ASKS": "nothing", "PORTICO_X": "1", "PATH": "/bin"}
    )
    assert setup.session().env == setup.task().env == {"ASKS": "all", "PATH": "/bin"}
