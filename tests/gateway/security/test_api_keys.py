"""Named API keys: created and removed while the daemon runs, each with its own sessions."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.main import main
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, RunningGateway, gateway_config, http_client, run_gateway, serve_gateway
from tests.support.named_keys import add_key
from tests.support.requests import (
    create_session,
    execute,
    expect_error,
    get_history,
    get_session,
    send_turn,
    session_body,
    user_message,
    wait_until_idle,
)
from tests.support.sse import parse_output_events
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def run_key_command(daemon: Daemon, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["key", "--config", str(daemon.config), *arguments])


async def create_key(daemon: Daemon, name: str) -> str:
    result = await run_key_command(daemon, "add", name)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def client_with_key(url: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, verify=False)


async def test_key_is_valid_from_its_creation_to_its_removal(daemon: Daemon, tmp_path: Path) -> None:
    await daemon.start()
    phone = await create_key(daemon, "phone")
    async with client_with_key(daemon.url, phone) as mine:
        assert (await mine.get("/sessions")).status_code == 200
        task = {"driver": "echo", "task": "x"}
        assert (await mine.post("/v1/execute", json=task)).status_code == 200
        async with httpx.AsyncClient(base_url=daemon.url, verify=False, timeout=60) as anonymous:
            assert (await anonymous.post("/v1/execute", json={**task, "auth_token": phone})).status_code == 200
            assert (await run_key_command(daemon, "remove", "phone")).exit_code == 0
            await expect_error(anonymous.post("/v1/execute", json={**task, "auth_token": phone}), 401)
        await expect_error(mine.get("/sessions"), 401)
        await expect_error(mine.put("/session", json=session_body("echo")), 401)
        await expect_error(mine.post("/v1/execute", json=task), 401)
        other = await create_key(daemon, "phone")
        assert other != phone
        await expect_error(mine.get("/sessions"), 401)
        assert (await mine.get("/sessions", headers={"Authorization": f"Bearer {other}"})).status_code == 200
    async with daemon.client() as default:
        assert (await default.get("/sessions")).status_code == 200, "the key of the configuration is still valid"
    await daemon.stop()
    assert phone not in daemon.stderr.decode()


async def test_stream_ends_before_the_next_event_after_its_key_is_removed(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    agents, scenes = {}, tmp_path / "scenes"
    for kind in ("session", "task"):
        scenario = write_scenario([{"text": "first"}, {"wait_for_file": f"go-{kind}"}, {"text": "secret"}], name=f"{kind}.json")
        agents[kind] = {"driver": "script", "cwd": str(scenes), "options": {"scenario": scenario}}
    write_config(tmp_path, gateway_config(tmp_path, agents=agents))
    await daemon.start()
    async with daemon.client() as default:
        for kind, method, path, body in (
            ("session", "PUT", "/session", session_body("session", stream="delta")),
            ("task", "POST", "/v1/execute", {"driver": "task", "task": "x"}),
        ):
            seen = ""
            async with (
                client_with_key(daemon.url, await create_key(daemon, "phone")) as mine,
                mine.stream(method, path, json=body) as stream,
            ):
                async for text in stream.aiter_text():
                    seen += text
                    if "first" in seen and (await run_key_command(daemon, "list")).stdout:
                        assert (await run_key_command(daemon, "remove", "phone")).exit_code == 0
                        (scenes / f"go-{kind}").touch()
            assert "first" in seen
            assert "secret" not in seen
        (session,) = (await default.get("/sessions")).json()["sessions"]
        await wait_until_idle(default, session)
        assert "secret" in str((await get_history(default, session))[-1]), "the run continued"


async def test_key_is_stored_as_a_hash_and_has_its_sessions_after_a_restart(daemon: Daemon, tmp_path: Path) -> None:
    phone, other = await create_key(daemon, "phone"), await create_key(daemon, "other")
    await daemon.start()
    async with client_with_key(daemon.url, phone) as mine:
        session = (await create_session(mine, "echo"))["sessionId"]
    await daemon.kill()
    await daemon.start()
    async with client_with_key(daemon.url, phone) as mine, client_with_key(daemon.url, other) as another:
        assert (await mine.get("/sessions")).json() == {"sessions": [session]}
        await expect_error(another.get(f"/session/{session}"), 404)
        assert (await send_turn(mine, session, "again"))["stopReason"] == "end_turn"
        await expect_error(another.get(f"/session/{session}"), 404)
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            assert phone.encode() not in file.read_bytes(), file
            assert file.stat().st_mode & 0o077 == 0


@pytest.mark.sqlite_only
async def test_a_locked_database_locks_nobody_out(portico: RunningGateway) -> None:
    key = await add_key(portico.gateway, "phone")
    with closing(sqlite3.connect(portico.gateway.settings.data_dir / "portico.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with client_with_key(portico.url, key) as mine:
            for _ in range(3):
                assert (await mine.get("/sessions")).status_code == 200
            await expect_error(mine.get("/sessions", headers={"Authorization": "Bearer wrong"}), 401)
        other.execute("ROLLBACK")


async def test_key_list_shows_the_last_use(daemon: Daemon) -> None:
    assert (await run_key_command(daemon, "list")).stdout == ""
    laptop = await create_key(daemon, "laptop")
    await create_key(daemon, "phone")
    first, second = (await run_key_command(daemon, "list")).stdout.splitlines()
    assert re.fullmatch(r"laptop\tmade \d{4}-\d\d-\d\d \d\d:\d\d\tnever used", first)
    assert second.startswith("phone\t")
    await daemon.start()
    async with client_with_key(daemon.url, laptop) as mine:
        await mine.get("/sessions")

    async def used() -> bool:
        listed = (await run_key_command(daemon, "list")).stdout
        assert listed.endswith("never used\n") and laptop not in listed
        return re.search(r"^laptop\t.*\tlast used \d{4}-", listed) is not None

    # It is stored after the response.
    await wait_until(used)


async def test_invalid_key_commands_are_rejected(daemon: Daemon) -> None:
    await create_key(daemon, "phone")
    for arguments, message in (
        (("add", "phone"), "already"),
        (("add", "a b"), "letters, digits"),
        (("add", "../x"), "letters, digits"),
        (("add", "x" * 65), "64 at most"),
        (("remove", "laptop"), "no key 'laptop'"),
    ):
        result = await run_key_command(daemon, *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert message in result.stderr
    assert (await run_key_command(daemon)).stdout == f"{KEY}\n", "the command alone prints the default key"
    behind = await asyncio.to_thread(CliRunner().invoke, main, ["key", "list", "--config", str(daemon.config)])
    assert behind.stdout.startswith("phone\t"), "options may follow the subcommand"


Two = tuple[RunningGateway, httpx.AsyncClient, httpx.AsyncClient]


@pytest.fixture
async def two(portico: RunningGateway) -> AsyncIterator[Two]:
    """A gateway and two clients, each with its own key."""
    of_a, of_b = [await add_key(portico.gateway, name) for name in "ab"]
    async with client_with_key(portico.url, of_a) as a, client_with_key(portico.url, of_b) as b:
        yield portico, a, b


async def test_metrics_and_drivers_are_available_to_every_key(two: Two) -> None:
    _, a, b = two
    session = (await create_session(a, "echo"))["sessionId"]
    for path in ("/metrics", "/v1/drivers"):
        response = await b.get(path)
        assert (response.status_code, session in response.text) == (200, False)


async def test_sessions_belong_to_the_key_that_created_them(two: Two) -> None:
    portico, a, b = two
    of_a, of_b = [(await create_session(one, "echo"))["sessionId"] for one in (a, b)]
    default = (await create_session(portico.client, "echo"))["sessionId"]
    assert (await a.get("/sessions")).json() == {"sessions": [of_a]}
    assert (await b.get("/sessions")).json() == {"sessions": [of_b]}
    assert (await portico.client.get("/sessions")).json() == {"sessions": [default, of_b, of_a]}
    before = await get_session(a, of_a)
    for session, absent in ((of_a, "sess_none"), (default, "sess_none")):
        for request in (
            lambda s: b.get(f"/session/{s}"),
            lambda s: b.post(f"/session/{s}", json={"messages": [user_message()]}),
            lambda s: b.delete(f"/session/{s}"),
        ):
            # The same error as for a session that does not exist.
            assert (await expect_error(request(session), 404)).replace(session, absent) == await expect_error(
                request(absent), 404
            )
    assert await get_session(a, of_a) == before
    assert (await send_turn(portico.client, of_a, "x"))["stopReason"] == "end_turn", (
        "the default key belongs to the administrator"
    )
    assert (await a.delete(f"/session/{of_a}")).status_code == 204
    assert (await a.get("/sessions")).json() == {"sessions": []}


async def test_session_list_pages_have_only_sessions_of_the_key(two: Two) -> None:
    _, a, b = two
    mine = []
    for _ in range(3):
        mine.insert(0, (await create_session(a, "echo"))["sessionId"])
        await create_session(b, "echo")
    seen, mark = [], None
    for _ in range(3):
        page = (await a.get("/sessions", params={"limit": 1, **({"after": mark} if mark else {})})).json()
        seen += page["sessions"]
        mark = page.get("next")
    assert (seen, mark) == (mine, None)


async def test_share_sessions_gives_every_key_access(tmp_path: Path) -> None:
    async with run_gateway({**gateway_config(tmp_path), "auth": {"keys": [KEY], "share_sessions": True}}) as portico:
        of_a, of_b = [await add_key(portico.gateway, name) for name in "ab"]
        async with client_with_key(portico.url, of_a) as a, client_with_key(portico.url, of_b) as b:
            session = (await create_session(a, "echo"))["sessionId"]
            assert (await b.get("/sessions")).json() == {"sessions": [session]}
            assert (await send_turn(b, session, "x"))["stopReason"] == "end_turn"


async def test_idempotency_keys_are_separate_for_each_api_key(two: Two) -> None:
    portico, a, b = two
    await execute(a, "the task of a", "echo", idempotency_key="job")
    of_b = await execute(b, "the task of b", "echo", idempotency_key="job")
    default = await execute(portico.client, "the task of the default key", "echo", idempotency_key="job")
    assert "the task of b" in str(of_b)
    assert "the task of the default key" in str(default)
    again = await a.post("/v1/execute", json={"driver": "echo", "task": "the task of a", "idempotency_key": "job"})
    assert "the task of a" in str(parse_output_events(again.text))
    refused = {"driver": "echo", "task": "the task of b", "idempotency_key": "job"}
    await expect_error(a.post("/v1/execute", json=refused), 409)


async def test_without_authentication_sessions_are_shared(tmp_path: Path) -> None:
    """With `--no-auth`, an Authorization header is ignored."""
    async with (
        serve_gateway(Gateway(parse(gateway_config(tmp_path)), (), Redactor())) as portico,
        http_client(portico.url) as other,
    ):
        session = (await create_session(portico.client, "echo"))["sessionId"]
        assert (await other.get("/sessions", headers={"Authorization": "Bearer x"})).json() == {"sessions": [session]}
