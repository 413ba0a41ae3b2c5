"""Named keys, sign-ins and codes of a cluster: what one node does holds on all others within two seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner, Result

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cli.main import main
from gateway.errors import ConfigError, KeysUnchecked
from gateway.nodes.shared_credentials import COMPARE_SECONDS, POLL_SECONDS, RELOAD_SECONDS, STALE_SECONDS, SharedCredentials
from gateway.security.api_keys import NamedKeys
from gateway.security.sign_in_codes import CODE_SECONDS, MAX_CODES
from gateway.security.sign_ins import MAX_SIGN_INS, UNUSED_SECONDS, KeyIdentity, digest_of_key
from gateway.store import Store
from tests import stores
from tests.conftest import write_config
from tests.daemon import KEY, RunningGateway, run_gateway
from tests.gateway.nodes.two_nodes import node_config, two_nodes
from tests.gateway.requests import create_session, user_message
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

ADMINISTRATOR, PHONE = (
    KeyIdentity(None, digest_of_key("a default key")),
    KeyIdentity("phone", digest_of_key("of the phone")),
)


@pytest.fixture(params=stores.KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    with stores.use(request.param):
        opened = await Store.open(stores.store_url(tmp_path))
        yield opened
        await opened.close()


async def a_node(store: Store, clock: Clock = SYSTEM_CLOCK) -> SharedCredentials:
    """The credentials as one node has them, which are compared with the store by `refresh` only."""
    node = SharedCredentials(clock)
    await node.open(store.shared.credentials, poll=0)
    return node


async def test_keys_hold_on_every_node(store: Store) -> None:
    one, two = await a_node(store), await a_node(store)
    key = await one.add_key("phone")
    assert one.name_of(key) == "phone" and two.name_of(key) is None
    await two.refresh()
    assert two.name_of(key) == "phone" and two.name_of("pk-other") is None
    with pytest.raises(ConfigError, match="there is a key 'phone' already"):
        await two.add_key("Phone")
    with pytest.raises(ConfigError, match="a key's name is letters"):
        await two.add_key("a b")
    assert [known.name for known in await two.keys()] == ["phone"]
    await two.remove_key("phone")
    with pytest.raises(ConfigError, match="there is no key 'phone'"):
        await one.remove_key("phone")
    assert two.name_of(key) is None
    await one.refresh()
    assert one.name_of(key) is None and await one.keys() == []


async def test_requests_with_unknown_keys_share_a_comparison(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await a_node(store), await a_node(store)
    compared, refresh = list[float](), two.refresh

    async def counted() -> None:
        compared.append(time.monotonic())
        await refresh()

    monkeypatch.setattr(two, "refresh", counted)
    key = await one.add_key("phone")
    await asyncio.gather(*(two.compare() for _ in range(100)))
    assert two.name_of(key) == "phone" and 1 <= len(compared) <= 2
    for _ in range(5):
        await two.compare()
    assert all(later - earlier >= COMPARE_SECONDS * 0.9 for earlier, later in pairwise(compared))


async def test_a_key_and_a_sign_in_of_one_node_are_accepted_at_once_by_another(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two):
        for n in range(3):
            key = (await one.client.post("/v1/keys", json={"name": f"phone-{n}"})).json()["key"]
            async with client_of(two, key) as client:
                assert (await client.get("/sessions")).status_code == 200
        async with httpx.AsyncClient(base_url=one.url, verify=False) as browser:
            made = await browser.post("/v1/sign-ins", json={"key": KEY}, headers={"Origin": one.url})
            [cookie] = browser.cookies.jar
        port = urlsplit(two.url).port
        headers = {"Cookie": f"portico_sign_in_{port}={cookie.value}", "X-Portico-Sign-In": made.json()["token"]}
        async with httpx.AsyncClient(base_url=two.url, verify=False) as browser:
            assert (await browser.get("/sessions", headers=headers)).status_code == 200


async def test_one_of_two_nodes_adds_a_name(store: Store) -> None:
    nodes = [await a_node(store) for _ in range(4)]
    found = await asyncio.gather(*(node.add_key("phone") for node in nodes), return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["ConfigError"] * 3 + ["str"]


async def test_a_use_is_stored_once_a_minute(store: Store, clock: ManualClock) -> None:
    one, two = await a_node(store, clock), await a_node(store, clock)
    key = await one.add_key("phone")
    await two.refresh()
    for _ in range(3):
        assert two.name_of(key) == "phone"
    await two.refresh()
    first = clock.time()
    assert [known.used_at for known in await one.keys()] == [first]
    clock.set_wall_clock(59)
    two.name_of(key)
    await two.refresh()
    assert [known.used_at for known in await one.keys()] == [first]
    clock.set_wall_clock(2)
    two.name_of(key)
    await two.refresh()
    assert [known.used_at for known in await one.keys()] == [clock.time()]


async def test_the_comparison_is_one_small_query(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await a_node(store)
    read = 0
    all_rows = store.shared.credentials.all

    async def counted() -> object:
        nonlocal read
        read += 1
        return await all_rows()

    monkeypatch.setattr(store.shared.credentials, "all", counted)
    for _ in range(3):
        await node.refresh()
    assert read == 0
    await (await a_node(store)).add_key("phone")
    read = 0
    await node.refresh()
    await node.refresh()
    assert read == 1


def test_the_copy_is_compared_often_enough() -> None:
    assert POLL_SECONDS <= 1.0


async def test_a_copy_that_cannot_be_compared_is_not_used_for_long(store: Store, clock: ManualClock) -> None:
    node = SharedCredentials(clock)
    await node.open(store.shared.credentials, poll=0)
    key, made = await node.add_key("phone"), await node.begin_sign_in(ADMINISTRATOR)
    clock.now += STALE_SECONDS
    assert node.name_of(key) == "phone" and node.find(made) is not None
    clock.now += 0.1
    for asked in (lambda: node.name_of(key), lambda: node.find(made)):
        with pytest.raises(KeysUnchecked, match="the store has not answered for 30 seconds"):
            asked()
    await node.refresh()
    assert node.name_of(key) == "phone"


async def test_sign_ins_hold_on_every_node(store: Store, clock: ManualClock) -> None:
    one, two = await a_node(store, clock), await a_node(store, clock)
    made, other = await one.begin_sign_in(ADMINISTRATOR), await one.begin_sign_in(PHONE)
    await two.refresh()
    found, named = two.find(made), two.find(other)
    assert found is not None and found.is_by(ADMINISTRATOR, made.cookie) and not found.is_by(PHONE, made.cookie)
    assert named is not None and named.is_by(PHONE, other.cookie)
    await two.end_sign_in(made)
    await one.refresh()
    assert one.find(made) is None and two.find(made) is None and one.find(other) is not None
    clock.set_wall_clock(UNUSED_SECONDS - 60)
    await two.refresh()
    assert two.find(other) is not None, "its use is recorded"
    await two.refresh()
    clock.set_wall_clock(UNUSED_SECONDS - 60)
    later = await a_node(store, clock)
    assert later.find(other) is not None, "another node knows this use"
    clock.set_wall_clock(UNUSED_SECONDS + 1)
    assert later.find(other) is None and two.find(other) is None


async def test_a_use_on_another_node_is_known_without_a_change(store: Store, clock: ManualClock) -> None:
    one, two = SharedCredentials(clock), await a_node(store, clock)
    await one.open(store.shared.credentials, poll=0)
    made = await one.begin_sign_in(PHONE)
    await two.refresh()
    clock.set_wall_clock(UNUSED_SECONDS - 60)
    assert two.find(made) is not None
    await two.refresh()
    clock.set_wall_clock(120)
    await one.refresh()
    assert one.find(made) is None, "the copy is from before"
    clock.now += RELOAD_SECONDS + 1
    await one.refresh()
    assert one.find(made) is not None


async def test_sign_ins_of_a_name_have_a_limit(store: Store, clock: ManualClock) -> None:
    node = await a_node(store, clock)
    administrator = await node.begin_sign_in(ADMINISTRATOR)
    made = []
    for _ in range(MAX_SIGN_INS + 1):
        clock.set_wall_clock(1)
        made.append(await node.begin_sign_in(PHONE))
    await node.refresh()
    assert node.find(administrator) is not None
    assert node.find(made[0]) is None and all(node.find(one) is not None for one in made[1:])


async def test_a_code_is_used_once_over_all_nodes(store: Store) -> None:
    nodes = [await a_node(store) for _ in range(5)]
    code = await nodes[0].make_code(PHONE)
    used = await asyncio.gather(*(node.use_code(code) for node in nodes))
    assert sorted(map(str, used)) == sorted(map(str, [PHONE, None, None, None, None]))
    assert await nodes[0].use_code(code) is None and await nodes[1].use_code("") is None


async def test_the_digest_of_a_default_key_is_not_stored_with_a_code(store: Store) -> None:
    node = await a_node(store)
    code = await node.make_code(ADMINISTRATOR)
    stored = await store.shared.credentials.use_code(digest_of_key(code))
    # A key that a person has chosen could be guessed from it.
    assert stored is not None and stored[1] != ADMINISTRATOR.digest
    assert await node.use_code(await node.make_code(ADMINISTRATOR)) == ADMINISTRATOR


async def test_codes_end_and_have_a_limit(store: Store, clock: ManualClock) -> None:
    node = await a_node(store)
    administrator, first = await node.make_code(ADMINISTRATOR), await node.make_code(PHONE)
    # A code is over by the database's clock, whatever those of the nodes are.
    await store.shared.credentials.add_code("over", "phone", "digest", -1.0, MAX_CODES)
    assert await store.shared.credentials.use_code("over") is None
    await store.shared.credentials.add_code("valid", "phone", "digest", CODE_SECONDS, MAX_CODES)
    assert await store.shared.credentials.use_code("valid") == ("phone", "digest")
    for _ in range(MAX_CODES):
        await node.make_code(PHONE)
    assert await node.use_code(first) is None and await node.use_code(administrator) == ADMINISTRATOR


# -- whole gateways ---------------------------------------------------------------------------------------------------------


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

            async def accepted() -> bool:
                return all([(await client.get("/sessions")).status_code == 200 for client in (at_one, at_two)])

            async def refused() -> bool:
                return all([(await client.get("/sessions")).status_code == 401 for client in (at_one, at_two)])

            await wait_until(accepted)
            assert [key["name"] for key in (await two.client.get("/v1/keys")).json()["keys"]] == ["phone"]
            await key_command(config, "remove", "phone")
            await wait_until(refused)


async def test_a_stream_ends_before_the_next_event_after_its_key_is_revoked_on_another_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, auth={"keys": [KEY], "share_sessions": True}) as (one, two):
        phone = (await one.client.post("/v1/keys", json={"name": "phone"})).json()["key"]
        async with client_of(one, phone) as client, client.stream("GET", "/aap/v3/updates") as stream:
            assert stream.status_code == 200
            assert (await two.client.delete("/v1/keys/phone")).status_code == 204

            async def refused() -> bool:
                return (await client.get("/sessions")).status_code == 401

            await wait_until(refused)
            session = (await create_session(one.client, "echo", user_message("x")))["sessionId"]
            async with asyncio.timeout(60):
                assert session not in "".join([text async for text in stream.aiter_text()])


async def test_named_keys_of_a_single_daemon_are_moved_to_the_store(tmp_path: Path) -> None:
    files = NamedKeys(tmp_path / "two" / "data")
    phone, tablet = files.add("phone"), files.add("Tablet")
    async with run_gateway(node_config(tmp_path, "one")) as one:
        other = (await one.client.post("/v1/keys", json={"name": "tablet"})).json()["key"]
        async with run_gateway(node_config(tmp_path, "two")) as two:
            for key, status in ((phone, 200), (other, 200), (tablet, 401)):
                async with client_of(two, key) as client:
                    assert (await client.get("/sessions")).status_code == status
            assert {key["name"] for key in (await one.client.get("/v1/keys")).json()["keys"]} == {"phone", "tablet"}
            assert [known.name for known in files.all()] == ["Tablet"]
            assert (await one.client.delete("/v1/keys/phone")).status_code == 204
    async with run_gateway(node_config(tmp_path, "two")) as two, client_of(two, phone) as client:
        assert (await client.get("/sessions")).status_code == 401, "it is not moved again"


async def test_the_console_signs_in_at_one_node_by_a_code_of_another(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), httpx.AsyncClient(base_url=two.url, verify=False) as browser:
        code = (await one.client.post("/v1/sign-in-codes")).json()["code"]
        answer = await browser.post("/v1/sign-ins", json={"code": code}, headers={"Origin": two.url})
        assert answer.status_code == 201
        assert (await one.client.post("/v1/sign-ins", json={"code": code})).status_code == 401
        headers = {"X-Portico-Sign-In": answer.json()["token"]}
        assert (await browser.get("/sessions", headers=headers)).status_code == 200
        assert not any((tmp_path / name / "data" / "sign-ins").exists() for name in ("one", "two"))
