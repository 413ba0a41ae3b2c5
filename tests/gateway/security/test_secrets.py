"""Secrets are redacted or encrypted in responses, errors, logs, the files of the store and process lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cryptography.fernet import Fernet

from drivers.contract.mcp_servers import McpServer
from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.errors import AgentProblem, BadRequest
from gateway.protocols.acp.mcp_servers import MAX_VALUES, mcp_servers_for
from gateway.protocols.acp.session_requests import EnvVariable, StdioMcpServer
from gateway.security.authentication import ADMINISTRATOR
from gateway.security.encryption import SecretEncryption
from gateway.security.redaction import HIDDEN, MAX_OF_SESSION, Redactor
from gateway.sessions.settings import SessionSettings
from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.requests import (
    agent_processes,
    create_session,
    execute,
    expect_error,
    get_history,
    get_session,
    send_turn,
    session_body,
    stream_turn,
    user_message,
)
from tests.support.stores import content, kind
from tests.support.waiting import wait_until

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
    assert answer["x-portico"]["error"] == f"bad key {HIDDEN}"
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


async def test_raw_output_lines_are_redacted(tmp_path: Path, write_scenario: WriteScenario) -> None:
    entry = {
        "driver": "script",
        "cwd": str(tmp_path / "scenes"),
        "options": {"scenario": write_scenario(*SCENES), "token": OF_CONFIG},
    }
    async with run_gateway(gateway_config(tmp_path, agents={"demo": entry})) as portico:
        leaked = await execute(portico.client, "leak", "demo")
        crashed = await execute(portico.client, "crash", "demo")
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
            stored = content(tmp_path / "data")
            for secret in ALL:
                assert secret.encode() not in stored, secret
    assert await daemon.stop() == 0
    log = daemon.stderr.decode()
    assert f"no version for {HIDDEN}" in log
    for secret in ALL:
        assert secret not in log
    files = [file for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert {"vault-key", *(["portico.db"] if kind() == "sqlite" else [])} <= {file.name for file in files}
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


def _remove(file: Path) -> None:
    file.unlink()


def _replace(file: Path) -> None:
    file.write_bytes(Fernet.generate_key())


@pytest.mark.parametrize("change", [_remove, _replace])
async def test_session_whose_secrets_cannot_be_decrypted_runs_nothing(
    write_scenario: WriteScenario, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    config, key = gateway_config(tmp_path), tmp_path / "data" / "vault-key"
    name = write_scenario([{"text": "[{options.token}]"}], [{"text": "[{options.token}]"}])
    async with run_gateway(config) as portico:
        session = (await create_session(portico.client, options={"scenario": name, "token": OF_SESSION}))["sessionId"]
        plain = (await create_session(portico.client, "echo"))["sessionId"]
    original = key.read_bytes()
    change(key)
    async with run_gateway(config) as portico:
        client = portico.client
        for agent in ({}, {"agent": {"options": {"token": "another-one"}}}, {"agent": {"options": {"scenario": name}}}):
            text = await expect_error(client.post(f"/session/{session}", json={"messages": [user_message()], **agent}), 503)
            assert "cannot be decrypted" in text and str(tmp_path) not in text
        assert not await portico.gateway.store.runs.unfinished()
        assert len(await get_history(client, session)) == 2
        assert set((await client.get("/sessions")).json()["sessions"]) == {session, plain}
        await send_turn(client, plain, "x")
        registry, administrator = portico.gateway.sessions, ADMINISTRATOR
        found = await registry.get(administrator, session)
        with pytest.raises(AgentProblem, match="cannot be decrypted"):
            await registry.create(administrator, found.agent, found.config, [])
        with pytest.raises(AgentProblem, match="cannot be decrypted"):
            await found.configure(replace(found.config, options={}))
    # Nothing was encrypted with another key meanwhile.
    key.write_bytes(original)
    async with run_gateway(config) as portico:
        assert (await send_turn(portico.client, session, "x"))["messages"][0]["content"] == f"[{OF_SESSION}]"
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        assert found.config.secrets == {"token": OF_SESSION}


async def test_secrets_of_a_session_are_redacted_in_this_session_only(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    call = {"id": "c", "name": "shell", "input": {"command": f"rm {OF_SESSION}"}}
    work = {"tool_call": call}, {"stop": {"reason": "error", "message": f"cannot rm {OF_SESSION}"}}
    name = write_scenario([*work], [*work], [*work])
    trusted = [{"name": "shell", "trust": True}]
    own = await create_session(portico.client, options={"scenario": name, "token": OF_SESSION}, grants=trusted)
    other = await create_session(portico.client, options={"scenario": name}, grants=trusted)
    assert (own["x-portico"]["error"], other["x-portico"]["error"]) == (f"cannot rm {HIDDEN}", f"cannot rm {OF_SESSION}")
    # Its client chooses a secret, and cannot hide by it what its agent does.
    rows = await portico.gateway.store.audit.newest(10)
    assert [json.loads(row.arguments) for row in rows] == [{"command": f"rm {OF_SESSION}"}] * 2
    assert OF_SESSION in await expect_error(portico.client.get(f"/session/{OF_SESSION}"), 404)
    # A secret of the gateway is redacted everywhere.
    assert HIDDEN in await expect_error(portico.client.get(f"/session/{KEY}"), 404)


async def test_caller_without_a_key_receives_no_path(tmp_path: Path) -> None:
    agents = {"demo": {"driver": "echo", "env": {"VENDOR_API_KEY": "hunter2"}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as portico:
        assert "/zzz-***-zzz" in await expect_error(portico.client.get("/zzz-hunter2-zzz"), 404)
        portico.client.headers["Authorization"] = "Bearer wrong-key"
        for headers in ({}, {"Authorization": ""}):
            portico.client.headers.update(headers)
            answers = {
                await expect_error(portico.client.request(method, path), 404)
                for method in ("GET", "PUT", "PATCH")
                for path in ("/zzz-hunter2-zzz", "/zzz-hunter3-zzz")
            }
            assert answers == {"not found here; /openapi.json lists every endpoint"}
            paths = ("/aap/hunter2", "/aap/hunter3")
            assert len({await expect_error(portico.client.get(path), 404) for path in paths}) == 1
            assert await expect_error(portico.client.delete("/healthz"), 405) == (
                "method not allowed here; /openapi.json lists every endpoint"
            )


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("LOG_LEVEL", "info", []),
        ("COMMAND", "git status", []),
        ("HINT", "there is no session 1234567890", []),
        ("PORT", "127.0.0.1", []),
        ("NAME", "production-cluster", []),
        ("DATABASE_URL", "postgres://me:pw12345@host/x", ["postgres://me:pw12345@host/x"]),
        ("API_KEY", "short-1", []),
        ("API_KEY", "aaaaaaaaaaaa", []),
        ("api_key", "hunter2-hunter2", ["hunter2-hunter2"]),
        ("Authorization", "Bearer hunter2-hunter2", ["Bearer hunter2-hunter2", "hunter2-hunter2"]),
    ],
)
def test_value_of_an_mcp_server_needs_length_and_variety_to_be_redacted(name: str, value: str, hidden: list[str]) -> None:
    for server in (McpServer("s", env={name: value}), McpServer("s", "http", url="http://x", headers={name: value})):
        assert SessionSettings(mcp_servers=(server,)).hidden == hidden
    assert SessionSettings(secrets={"token": "info"}).hidden == []


def test_redaction_of_a_session_is_bounded() -> None:
    redactor = Redactor(Redactor())
    redactor.register(f"value-{n:06}" for n in range(MAX_OF_SESSION + 10))
    assert redactor.clean("value-000009 value-000010") == f"value-000009 {HIDDEN}"
    server = StdioMcpServer(
        name="s", command="x", args=[], env=[EnvVariable(name=str(n), value="x") for n in range(MAX_VALUES + 1)]
    )
    with pytest.raises(BadRequest, match="1001 variables"):
        mcp_servers_for([server], Agents(parse({})).get("claude"))


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
    assert answer["x-portico"]["error"] == HIDDEN
    session = await portico.gateway.sessions.get(ADMINISTRATOR, answer["sessionId"])
    assert session.redactor.clean(json.dumps({"key": secret})) == json.dumps({"key": HIDDEN})


def test_a_session_without_secrets_needs_no_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    encryption = SecretEncryption(tmp_path)
    assert (encryption.encrypt({}), encryption.decrypt(None)) == (None, {})
