"""The kit for the tests of UIs: the fixture `portico` and what it offers, as the page about it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from portico_testing import Event, Portico, PorticoError, Turn, running

from tests.gateway.portico_testing.pages import FILES


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portico]:
    """The kit with the settings of the page."""
    namespace: dict[str, object] = {}
    exec(FILES["tests/conftest.py"].replace("@pytest.fixture\n", ""), namespace)
    with running(tmp_path_factory.mktemp("kit"), namespace["portico_settings"]()) as started:  # type: ignore[operator]
        yield started
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{started.url}/aap/v3/meta")


def test_a_test_that_fails_shows_the_log(tmp_path: Path) -> None:
    """In a project whose environment has a key that is too short."""
    (tmp_path / "test_demo.py").write_text("def test_fails(portico):\n    portico.session('echo')\n    assert False\n")
    # Of this run's pytest, only what a user's has.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    others = [f"-pno:{plugin}" for plugin in ("asyncio", "hypothesispytest", "schemathesis", "timeout", "xdist")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *others, "-W", "error"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**env, "PORTICO_API_KEY": "short"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "POST /aap/v3/sessions: 201" in done.stdout.partition("- log of the gateway -")[2]


def test_the_plugin_imports_no_package_that_an_environment_may_lack() -> None:
    code = "import sys, portico_testing; print({'gateway', 'drivers', 'httpx', 'httpx_sse'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_settings_of_the_page_are_those_of_the_gateway(kit: Portico) -> None:
    assert {"echo", "demo", "careful"} <= {agent["name"] for agent in kit.request("GET", "/aap/v3/meta")["agents"]}
    allowed = httpx.get(f"{kit.url}/aap/v3/meta", headers={"Origin": "http://localhost:5173"})
    assert allowed.headers["Access-Control-Allow-Origin"] == "http://localhost:5173"
    with pytest.raises(PorticoError) as refused:
        kit.session("demo", scenario={"turns": []}, options={"pace": "warp"})
    assert refused.value.status == 400 and "recorded, fast" in str(refused.value)


def test_a_gateway_that_does_not_start_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(PorticoError, match="did you mean 'PORTICO_SERVER__PORT'"),
        running(tmp_path, {"server": {"prot": 1}}),
    ):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PorticoError, match="`portico` is not on PATH"), running(tmp_path):
        pass


def test_the_command_of_another_environment_is_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "portico"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "portico listening on 0"\nexec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with running(tmp_path) as portico:
        assert portico.url == "0"


def test_calls_are_answered_together(kit: Portico) -> None:
    calls = [{"tool_call": {"name": name, "input": {}, "result": f"{name} ran"}} for name in ("shell", "write_note")]
    steps = [{"parallel": [*calls, {"app_tool": {"id": "w", "name": "get_weather"}}]}, {"text": "{results.w}"}]
    session = kit.session(scenario={"turns": [{"steps": steps}]}, ask=["shell", "write_note"], tools=["get_weather"])
    turn = session.send("go")
    shell, note, weather = turn.calls
    assert [call.name for call in turn.calls] == ["shell", "write_note", "get_weather"]
    with pytest.raises(PorticoError, match=note.id):
        session.grant(shell)
    rest = session.reply(grant=[shell], deny=[note], reason="no notes", results={weather: "sunny"})
    results = [event.data["content"] for event in rest if event.name == "tool_result"]
    assert (rest.text, rest.calls, rest.stop_reason, rest.error) == ("sunny", [], "end_turn", None)
    assert "shell ran" in results and "Tool call denied: no notes" in results


def test_a_turn_is_read_as_it_arrives_and_again(kit: Portico) -> None:
    steps = [{"thinking": "Hm."}, {"text": {"text": "abc", "chunk": 1}}, {"wait_for_file": "go"}, {"text": "d"}]
    session = kit.session(scenario={"turns": [{"steps": steps}]})
    turn = session.send("go")
    arriving = iter(turn)
    arrived = [next(arriving).name for _ in range(5)]
    assert arrived == ["turn_start", "thinking_delta", "text_delta", "text_delta", "text_delta"]
    with pytest.raises(PorticoError) as busy:
        session.send("too early")
    assert busy.value.status == 409
    (kit.folder / "work" / "go").touch()
    assert (turn.text, turn.thinking) == ("abcd", "Hm.")
    assert [event.name for event in turn] == [*arrived, "text_delta", "turn_stop"]
    assert [event.id for event in session.events(turn.events[0].id)] == [event.id for event in turn][1:]
    assert [message["role"] for message in session.history()] == ["user", "assistant"]
    assert session.info()["x-portico"]["state"] == "idle" and not session.cancel()


def test_scenarios_of_two_sessions_are_apart(kit: Portico, tmp_path: Path) -> None:
    file = tmp_path / "scene.json"
    file.write_text(json.dumps({"turns": [{"steps": [{"text": "of the file"}]}]}))
    sessions = [kit.session(scenario=file), kit.session(scenario={"turns": [{"steps": [{"text": "of the test"}]}]})]
    assert [session.send("go").text for session in sessions] == ["of the file", "of the test"]


def test_a_task(kit: Portico) -> None:
    done = kit.execute("echo", "hello")
    assert (done.text, done.exit_code, done.error) == ("hello", 0, None)
    assert [*done][-1]["kind"] == "session_end"
    with pytest.raises(PorticoError, match="nobody") as refused:
        kit.execute("nobody", "hello")
    assert refused.value.status == 400


def test_a_stream_that_breaks_off_is_an_error() -> None:
    turn = Turn(iter([Event("1", "turn_start", {}), Event("2", "text_delta", {"delta": "half"})]))
    assert turn.text == "half"
    with pytest.raises(PorticoError, match="ended before the turn did"):
        _ = turn.stop_reason
