"""Named keys, sign-ins and codes of a cluster: what one node or `portico key` does holds on all nodes at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.security.credentials import AGAIN_SECONDS
from tests.conftest import write_config
from tests.gateway.nodes.two_nodes import node_config, two_nodes
from tests.support.daemon import KEY, RunningGateway
from tests.support.requests import create_session, user_message


def client_of(node: RunningGateway, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=node.url, headers={"Authorization": f"Bearer {key}"}, timeout=60, verify=False)


async def key_command(config: Path, *arguments: str) -> Result:
    result = await asyncio.to_thread(CliRunner().invoke, main, ["key", "--config", str(config), *arguments])
    assert result.exit_code == 0, result.output
    return result


async def test_a_key_of_one_machine_is_valid_and_revoked_on_another(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two):
        config = write_config(tmp_path, node_config(tmp_path, "three"))
        phone = (await key_command(config, "add", "phone")).stdout.strip()
        assert "phone\tmade" in (await key_command(config, "list")).stdout
        async with client_of(one, phone) as at_one, client_of(two, phone) as at_two:
            assert [(await client.get("/sessions")).status_code for client in (at_one, at_two)] == [200, 200]
            assert [key["name"] for key in (await two.client.get("/v1/keys")).json()["keys"]] == ["phone"]
            await key_command(config, "remove", "phone")
            assert [(await client.get("/sessions")).status_code for client in (at_one, at_two)] == [401, 401]


async def test_a_stream_ends_before_the_next_event_after_its_key_is_revoked_on_another_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, auth={"keys": [KEY], "share_sessions": True}) as (one, two):
        phone = (await one.client.post("/v1/keys", json={"name": "phone"})).json()["key"]
        async with client_of(one, phone) as client, client.stream("GET", "/aap/v3/updates") as stream:
            assert stream.status_code == 200
            assert (await two.client.delete("/v1/keys/phone")).status_code == 204
            await asyncio.sleep(AGAIN_SECONDS)
            session = (await create_session(one.client, "echo", user_message("x")))["sessionId"]
            async with asyncio.timeout(60):
                assert session not in "".join([text async for text in stream.aiter_text()])


async def test_the_console_signs_in_at_one_node_by_a_code_of_another(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), httpx.AsyncClient(base_url=two.url, verify=False) as browser:
        code = (await one.client.post("/v1/sign-in-codes")).json()["code"]
        answer = await browser.post("/v1/sign-ins", json={"code": code}, headers={"Origin": two.url})
        assert answer.status_code == 201
        assert (await one.client.post("/v1/sign-ins", json={"code": code})).status_code == 401
        headers = {"X-Portico-Sign-In": answer.json()["token"]}
        assert (await browser.get("/sessions", headers=headers)).status_code == 200
