"""Secrets are redacted or encrypted in responses, errors, logs, the files of the store and process lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil

from gateway.security.redaction import HIDDEN, Redactor
from tests.conftest import write_config
from tests.daemon import KEY, Daemon, RunningGateway, gateway_config
from tests.gateway.requests import (
    agent_processes,
    create_session,
    execute,
    expect_error,
    get_session,
    send_turn,
    session_body,
    stream_turn,
    user_message,
    wait_until,
)

WriteScenario = Callable[..., str]
OF_SESSION, OF_CONFIG, OF_ENV = "secret-of-session-1", "secret-of-config-22", "secret-of-env-333"
ALL = (OF_SESSION, OF_CONFIG, OF_ENV, KEY)
LEAK = {"when": "leak", "steps": [{"line": "junk {options.token}"}, {"stderr": "err {options.token}"}]}
FAIL = {"when": "fail", "steps": [{"stop": {"reason": "error", "message": "bad key {options.token}"}}]}
CRASH = {"when": "crash", "steps": [{"stderr": "err {options.token}"}, {"exit": 3}]}
HANG = {"when": "hang", "steps": [{"text": "x"}, {"hang": True}]}
PLAIN = [{"text": "ok"}]
SCENES = (LEAK, FAIL, CRASH, HANG, PLAIN)


async def test_errors_of_the_agent_are_redacted(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario(*SCENES), "token": OF_SESSION}
    answer = await create_session(portico.client, "script", "fail", options=options)
    assert answer["error"] == f"bad key {HIDDEN}"
    session = answer["sessionId"]
    for prompt in ("fail", "crash"):
        events = await stream_turn(
            portico.client, "POST", f"/session/{session}", {"messages": [user_message(prompt)], "stream": "delta"}
        )
        assert OF_SESSION not in json.dumps(events)
        assert events[-1][1]["stopReason"] == "error"
    assert OF_SESSION not in (await portico.client.get(f"/session/{session}")).text


async def test_secret_in_another_option_is_redacted_in_the_error(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, options={"pace": "fast", "token": OF_SESSION}))["sessionId"]
    for wrong in ({"pace": OF_SESSION}, {"cwd": OF_SESSION}, {OF_SESSION: "x"}):
        body = {"messages": [user_message()], "agent": {"options": wrong}}
        text = await expect_error(portico.client.post(f"/session/{session}", json=body), 400)
        assert HIDDEN in text
        assert OF_SESSION not in text


async def test_error_of_a_failed_start_is_redacted(portico: RunningGateway, tmp_path: Path) -> None:
    start = {"start": [{"stderr": "no login with {options.token}"}, {"exit": 2}], "turns": [{"steps": []}]}
    (tmp_path / "scenes" / "start.json").write_text(json.dumps(start))
    options = {"scenario": "start.json", "token": OF_SESSION}
    text = await expect_error(portico.client.put("/session", json=session_body(options=options)), 503)
    assert f"no login with {HIDDEN}" in text


async def test_raw_output_lines_are_redacted(tmp_path: Path, write_scenario: WriteScenario, daemon: Daemon) -> None:
    entry = {
        "driver": "script",
        "cwd": str(tmp_path / "scenes"),
        "options": {"scenario": write_scenario(*SCENES), "token": OF_CONFIG},
    }
    write_config(tmp_path, gateway_config(tmp_path, agents={"demo": entry}))
    await daemon.start()
    async with daemon.client() as client:
        leaked = await execute(client, "leak", "demo")
        crashed = await execute(client, "crash", "demo")
    assert leaked[0] == {"kind": "stdout", "line": f"junk {HIDDEN}"}
    assert crashed[0] == {"kind": "stderr", "line": f"err {HIDDEN}"}


async def test_secrets_are_not_in_files_logs_or_process_lists(
    tmp_path: Path, write_scenario: WriteScenario, daemon: Daemon
) -> None:
    entry = {
        "driver": "script",
        "cwd": str(tmp_path / "scenes"),
        "env": {"VENDOR_API_KEY": OF_ENV},
        "options": {"scenario": write_scenario(*SCENES), "token": OF_CONFIG},
    }
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\necho "no version for $ANTHROPIC_API_KEY"; exit 1\n')
    broken.chmod(0o755)
    talkative = {"driver": "claude", "program": str(broken), "env": {"ANTHROPIC_API_KEY": OF_ENV}}
    agents = {"demo": entry, "talkative": talkative}
    write_config(tmp_path, gateway_config(tmp_path, agents=agents, server={"log_level": "debug"}))
    daemon.forked = False
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, "demo", "plain", options={"token": OF_SESSION}))["sessionId"]
        for prompt in ("leak", "fail", "crash"):
            assert OF_SESSION not in json.dumps(await send_turn(client, session, prompt))
        wrong = {"messages": [user_message()], "agent": {"options": {"token": OF_SESSION, "scenario": "none.json"}}}
        assert OF_SESSION not in await expect_error(client.post(f"/session/{session}", json=wrong), 503)
        found = await get_session(client, session)
        assert found["agent"]["options"] == {"token": HIDDEN}
        assert OF_CONFIG not in (await client.get("/meta")).text
        await execute(client, "fail", "demo")
        body = {"messages": [user_message("hang")], "stream": "delta"}
        async with client.stream("POST", f"/session/{session}", json=body) as answer:
            await anext(answer.aiter_bytes())
            # The agent of the task may still be exiting.
            (agent,) = await wait_until(lambda: len(found := agent_processes(daemon.pid)) == 1 and found)
            arguments = " ".join([*agent.cmdline(), *psutil.Process(daemon.pid).cmdline()])
            for secret in ALL:
                assert secret not in arguments
            for file in (tmp_path / "data").glob("portico.db*"):
                for secret in ALL:
                    assert secret.encode() not in file.read_bytes(), (file, secret)
    assert await daemon.stop() == 0
    log = daemon.stderr.decode()
    assert f"no version for {HIDDEN}" in log
    for secret in ALL:
        assert secret not in log
    files = [file for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert {"portico.db", "vault-key"} <= {file.name for file in files}
    for file in files:
        for secret in ALL:
            assert secret.encode() not in file.read_bytes(), (file, secret)
        if file.name in ("vault-key", "api-key"):
            assert file.stat().st_mode & 0o077 == 0
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


async def test_prompts_and_secrets_are_not_in_process_arguments(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"argv": True}])
    prompt = "prompt-of-mine"
    answer = await create_session(portico.client, "script", prompt, options={"scenario": name, "token": OF_SESSION})
    events = await execute(portico.client, prompt, "echo")
    assert events[0]["text"] == prompt
    for text in (OF_SESSION, prompt, "scene.json"):
        assert text not in answer["messages"][0]["content"]


async def test_lost_encryption_key_loses_the_secrets_but_not_the_sessions(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    await daemon.start()
    name = write_scenario([{"text": "[{options.token}]"}])
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name, "token": OF_SESSION}))["sessionId"]
    await daemon.stop()
    (tmp_path / "data" / "vault-key").unlink()
    await daemon.start()
    async with daemon.client() as client:
        assert (await send_turn(client, session, "x"))["messages"][0]["content"] == "[]"
        again = await send_turn(client, session, "x", agent={"options": {"token": "another-one"}})
        assert again["messages"][0]["content"] == "[another-one]"


def test_longest_secret_is_redacted_first() -> None:
    redactor = Redactor()
    redactor.register(["abcd", "abcdefgh", "abc", ""])
    assert redactor.clean("abcdefgh abcd abc") == f"{HIDDEN} {HIDDEN} abc"


async def test_json_escaped_secrets_are_redacted(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    secret = 'quote" back\\slash'
    options = {
        "scenario": write_scenario([{"line": "{options.token}"}, {"stop": {"reason": "error", "message": "{options.token}"}}])
    }
    answer = await create_session(portico.client, options={**options, "token": secret})
    assert answer["error"] == HIDDEN
    assert portico.gateway.redactor.clean(json.dumps({"key": secret})) == json.dumps({"key": HIDDEN})
