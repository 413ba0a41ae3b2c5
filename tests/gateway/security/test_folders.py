"""Folders that clients name for sessions: any of the gateway's user for a local administrator, else only listed ones."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.agents.configured_agents import Agents
from gateway.agents.user_folders import problem_of_folder
from gateway.config import parse
from gateway.errors import BadRequest
from gateway.security.authentication import ADMINISTRATOR, Caller, caller_of_request
from gateway.security.loopback import is_direct_and_local
from tests.support.acp_client import RpcFailed, connect, load, on_websocket
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import user_message

NOBODY = 65534


def scope(client: str | None = "127.0.0.1", **headers: str) -> dict[str, Any]:
    """The ASGI scope of a request."""
    given = {"host": "127.0.0.1:7700", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {
        "client": None if client is None else (client, 50000),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }


@pytest.mark.parametrize(
    ("request_scope", "bind", "expected"),
    [
        (scope(), "127.0.0.1", True),
        (scope(), "localhost", True),
        (scope("::1", host="[::1]:7700"), "::1", True),
        (scope("::ffff:127.0.0.1", host="localhost"), "127.0.0.1", True),
        (scope(origin="http://localhost:3000"), "127.0.0.1", True),
        (scope(origin="tauri://localhost"), "127.0.0.1", True),
        # another machine can reach the server
        (scope(), "0.0.0.0", False),
        (scope(), "192.168.0.1", False),
        (scope(), "::", False),
        (scope(), "gateway.lan", False),
        # another machine is the client
        (scope("192.168.0.7"), "127.0.0.1", False),
        (scope(None), "127.0.0.1", False),
        (scope("testclient"), "127.0.0.1", False),
        # a proxy
        (scope(host="gateway.lan"), "127.0.0.1", False),
        (scope(host="192.168.0.1:7700"), "127.0.0.1", False),
        (scope(host=""), "127.0.0.1", False),
        (scope(host="[::1"), "127.0.0.1", False),
        (scope(host="127.0.0.1@evil.example"), "127.0.0.1", False),
        ({"client": ("127.0.0.1", 1), "headers": []}, "127.0.0.1", False),
        ({"client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost"), (b"host", b"localhost")]}, "127.0.0.1", False),
        (scope(x_forwarded_for="127.0.0.1"), "127.0.0.1", False),
        (scope(x_forwarded_proto="https"), "127.0.0.1", False),
        (scope(forwarded="for=127.0.0.1"), "127.0.0.1", False),
        (scope(x_real_ip="127.0.0.1"), "127.0.0.1", False),
        (scope(via="1.1 proxy"), "127.0.0.1", False),
        # a web page of another host
        (scope(origin="https://ui.example.org"), "127.0.0.1", False),
        (scope(origin="http://localhost.evil.example"), "127.0.0.1", False),
    ],
)
def test_request_of_a_program_on_this_machine(request_scope: dict[str, Any], bind: str, expected: bool) -> None:
    assert is_direct_and_local(request_scope, bind) is expected
    assert caller_of_request(ADMINISTRATOR, request_scope, bind).any_folder is expected
    named = Caller("phone", all_sessions=True)
    assert caller_of_request(named, request_scope, bind) == named and not named.any_folder


PROXIES = {
    "nginx": ("x-real-ip", "x-forwarded-host", "x-scheme", "x-original-uri"),
    "haproxy, envoy": ("x-forwarded", "x-client-ip", "x-envoy-external-address", "x-envoy-attempt-count"),
    "cloudflared": ("cf-connecting-ip", "cf-ray", "cf-visitor", "cf-access-jwt-assertion", "cf-warp-tag-id", "cdn-loop"),
    "tailscale serve": ("tailscale-user-login", "tailscale-user-name", "tailscale-headers-info", "tailscale-app-capabilities"),
    "others": (
        "forwarded", "via", "true-client-ip", "client-ip", "x-cluster-client-ip", "fastly-client-ip", "fly-client-ip",
        "x-azure-clientip", "x-appengine-user-ip", "x-amzn-trace-id", "x-vercel-id", "do-connecting-ip", "ngrok-trace-id",
        "x-ms-proxy", "x-arr-ssl", "front-end-https", "proxy-connection", "x-original-forwarded-for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("header", [header for headers in PROXIES.values() for header in headers])
def test_request_with_a_header_of_a_proxy_is_not_direct(header: str) -> None:
    assert not is_direct_and_local(scope(**{header: "127.0.0.1"}), "127.0.0.1")


@pytest.mark.parametrize("header", ["user-agent", "x-request-id", "traceparent", "sec-websocket-key", "idempotency-key"])
def test_headers_of_clients_are_not_those_of_a_proxy(header: str) -> None:
    assert is_direct_and_local(scope(**{header: "127.0.0.1"}), "127.0.0.1")


def test_folders_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, data = tmp_path / "own", tmp_path / "data"
    own.mkdir()
    (data / "state").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("own")
    (tmp_path / "second").symlink_to(link)

    def problem(path: Path) -> str | None:
        return problem_of_folder(path, path.resolve(), data)

    for path in (own, link, tmp_path / "second", own / ".." / "link", tmp_path):
        assert problem(path) is None
    assert "data directory" in (problem(data) or "") and "data directory" in (problem(data / "state") or "")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert problem(own) == "it belongs to another user"


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners")
def test_links_of_other_users_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    (tmp_path / "of-root").symlink_to(own)
    (tmp_path / "foreign").symlink_to(own)
    os.lchown(tmp_path / "foreign", NOBODY - 1, NOBODY)
    (tmp_path / "to-foreign").symlink_to(tmp_path / "foreign")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert problem_of_folder(tmp_path / "of-root", own, None) is None
    for name in ("foreign", "to-foreign"):
        assert problem_of_folder(tmp_path / name, own, None) == "a symbolic link of another user leads there"


@pytest.mark.parametrize(
    ("server", "agent", "any_folder", "allowed"),
    [
        ({}, {}, True, True),
        ({}, {}, False, False),
        ({"folders": "listed"}, {}, True, False),
        ({}, {"cwd": "{base}/listed"}, True, False),
        ({}, {"locked": ["cwd"]}, True, False),
    ],
)
def test_folder_elsewhere(tmp_path: Path, server: dict[str, Any], agent: dict[str, Any], any_folder: bool, allowed: bool) -> None:
    (tmp_path / "listed").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    entry = {"driver": "claude", **{key: v.format(base=tmp_path) if isinstance(v, str) else v for key, v in agent.items()}}
    settings = parse({"server": {"data_dir": str(tmp_path / "data"), **server}, "agents": {"a": entry}})
    found = Agents(settings, environ={}).get("a")
    choose = (
        lambda: found.check_options({"cwd": str(elsewhere)}, any_folder=any_folder),
        lambda: found.additional_directories([str(elsewhere)], any_folder=any_folder),
    )
    for choice in choose:
        if allowed:
            choice()
        else:
            with pytest.raises(Exception, match=r"agents\.a\.(cwd|locked)|is locked"):
                choice()
    # Never in the workspace of a named key.
    with pytest.raises(Exception, match="agent 'a'"):
        found.check_options({"cwd": str(elsewhere)}, "phone", any_folder=any_folder)


# -- protocols -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose agents have no folder of their own."""
    async with run_gateway(gateway_config(tmp_path, agents={})) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def session_in(folder: Path) -> dict[str, Any]:
    return {"agent": {"name": "echo", "options": {"cwd": str(folder)}}, "messages": [user_message("hello")]}


async def test_editor_of_a_local_administrator_opens_its_project(bare: RunningGateway, project: Path) -> None:
    more = project.parent / "more"
    more.mkdir()
    async with on_websocket(bare.url, "echo", KEY) as client:
        await client.initialize()
        session = await client.new(str(project))
        assert (await client.prompt(session, "hello"))["stopReason"] == "end_turn"
        [listed] = (await client.request("session/list", {"cwd": str(project)}))["sessions"]
        assert (listed["sessionId"], listed["cwd"]) == (session, str(project))
        with pytest.raises(RpcFailed, match=r"cwd: '/root-of-nothing' cannot be|there is no folder"):
            await client.new("/root-of-nothing")
    # The session stays in its folder for clients that could not choose it.
    client, connection = connect(bare.gateway, "echo", ADMINISTRATOR)
    await client.initialize()
    await client.request("session/load", load(session, str(project)))
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    with pytest.raises(RpcFailed, match=r"not below the folder of agent 'echo'.*agents\.echo\.cwd"):
        await client.new(str(project))
    await connection.close()


async def test_folder_of_a_session_over_aap(bare: RunningGateway, project: Path, tmp_path: Path) -> None:
    created = await bare.client.put("/session", json=session_in(project))
    assert created.status_code == 201, created.text
    session = created.json()["sessionId"]
    key = await add_key(bare.gateway, "phone")
    refusals: list[dict[str, str]] = [
        {"Authorization": f"Bearer {key}"},
        {"Authorization": f"Bearer {KEY}", "X-Forwarded-For": "192.168.0.7"},
    ]
    for headers in refusals:
        async with httpx.AsyncClient(base_url=bare.url, headers=headers, timeout=60) as client:
            answer = await client.put("/session", json=session_in(project))
            assert (answer.status_code, "agents.echo.cwd" in answer.text) == (400, True)
    turn = {"agent": {"options": {"cwd": str(project)}}, "messages": [user_message("more")]}
    async with httpx.AsyncClient(base_url=bare.url, headers=refusals[1], timeout=60) as client:
        # The folder that the session has is not chosen again.
        assert (await client.post(f"/session/{session}", json=turn)).status_code == 200
        (project / "below").mkdir()
        turn["agent"] = {"options": {"cwd": str(project / "below")}}
        assert (await client.post(f"/session/{session}", json=turn)).status_code == 400
    assert (await bare.client.post(f"/session/{session}", json=turn)).status_code == 200


async def test_listed_folders_only(tmp_path: Path, project: Path) -> None:
    config = gateway_config(tmp_path, agents={})
    async with run_gateway(config) as running:
        session = (await running.client.put("/session", json=session_in(project))).json()["sessionId"]
    config["server"]["folders"] = "listed"
    async with run_gateway(config) as running:
        assert (await running.client.put("/session", json=session_in(project))).status_code == 400
        # Nor do agents of earlier sessions start there.
        refused = await running.client.post(f"/session/{session}", json={"messages": [user_message("more")]})
        assert refused.status_code >= 400 and "agents.echo.cwd" in refused.text


def test_link_out_of_the_agents_folder_is_followed_by_no_stored_session(tmp_path: Path) -> None:
    settings = parse({"server": {"data_dir": str(tmp_path / "data")}, "agents": {"a": {"driver": "claude"}}})
    agent = Agents(settings, environ={}).get("a")
    base = agent.working_directory(None)
    elsewhere, sub = tmp_path / "elsewhere", base / "sub"
    elsewhere.mkdir()
    sub.mkdir()
    for chosen in ("sub", str(sub)):
        assert agent.stored_directory(chosen, None) == sub
    sub.rmdir()
    sub.symlink_to(elsewhere)
    for chosen in ("sub", str(sub)):
        with pytest.raises(BadRequest, match="not below the folder"):
            agent.stored_directory(chosen, None)
    with pytest.raises(BadRequest, match="not below the folder"):
        agent.additional_directories([str(sub)], any_folder=True)


@pytest.mark.parametrize("chosen", ["~nobody-has-this-name/x", "/" + "x" * 300])
def test_error_for_a_folder_elsewhere_has_no_detail(tmp_path: Path, chosen: str) -> None:
    settings = parse({"server": {"data_dir": str(tmp_path / "data")}, "agents": {"a": {"driver": "claude"}}})
    with pytest.raises(BadRequest, match="not below the folder"):
        Agents(settings, environ={}).get("a").working_directory(chosen)
