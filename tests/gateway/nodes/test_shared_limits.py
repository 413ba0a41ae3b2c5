"""Limits of a key that hold for all nodes together, idempotency keys, and the keys that all nodes must have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from cryptography.fernet import Fernet

from gateway.app import Gateway
from gateway.cluster.shared_turns import RETRY, SharedTurns
from gateway.config import LimitSettings, parse
from gateway.errors import ConfigError, InvalidSettings, StoreUnavailable, TooMany
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.idempotency import Idempotency, IdempotencyKey
from gateway.runs.one_shot_tasks import Task
from gateway.security.api_keys import default_api_keys
from gateway.security.authentication import request_is_forwarded
from gateway.security.encryption import SecretEncryption, encryption_key
from gateway.security.redaction import Redactor
from gateway.store import KeyRecord, KeyStored, RunRecord, SessionRecord, Store
from gateway.store.database import Database
from gateway.store.nodes import NodeReport
from gateway.store.sessions import SessionRepository
from gateway.store.sql import Connection
from gateway.store.turn_slots import TurnSlotRepository
from tests.gateway.nodes.three_nodes import begin as begin_turn
from tests.gateway.nodes.three_nodes import rest, run_nodes, say, until
from tests.gateway.nodes.two_nodes import node_config, two_nodes
from tests.support import stores
from tests.support.daemon import KEY, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until


@pytest.fixture
async def store_pair(tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """The store of two nodes on PostgreSQL, each with its own connections."""
    with stores.use("postgresql"):
        url = stores.store_url(tmp_path)
        one, two = await Store.open(url), await Store.open(url)
        for store, name in ((one, "one"), (two, "two")):
            await store.nodes.start(NodeReport(id=name, address=f"http://127.0.0.1:1/{name}"), 3600)
        yield one, two
        await asyncio.gather(one.close(), two.close())


@dataclass
class Occupant:
    """A session whose turn runs or not."""

    owner: str | None
    busy: bool = True
    has_agent: bool = True
    eviction_order: tuple[bool, bool, float] | None = None

    def evict(self) -> None: ...


async def a_node(store: Store, name: str, **limits: int) -> AdmissionControl:
    turns = SharedTurns(limits.get("turns_per_key", 0))
    await turns.open(store.shared.turn_slots, name)
    return AdmissionControl(LimitSettings(**limits), turns)


async def begin(node: AdmissionControl, log_id: str, owner: str | None = "phone") -> Occupant:
    """Begin a turn, which goes on until its `busy` is false."""
    async with node.turn(log_id, owner, new_agent=True):
        found = Occupant(owner)
        node.add(log_id, found)
    return found


async def end(node: AdmissionControl, log_id: str, occupant: Occupant) -> None:
    occupant.busy = False
    node.add(log_id, occupant)
    assert node._shared is not None
    await node._shared.close()  # type: ignore[attr-defined]  # It waits for the release.


async def test_turns_of_a_key_are_counted_over_all_nodes(store_pair: tuple[Store, Store]) -> None:
    one, two = [await a_node(store, name, turns_per_key=2) for store, name in zip(store_pair, ("one", "two"), strict=True)]
    first, _ = await begin(one, "sess_1"), await begin(two, "sess_2")
    for node in (one, two):
        with pytest.raises(TooMany, match=r"2 turns running.*limits.turns_per_key"):
            await begin(node, "sess_3")
    await begin(one, "sess_4", None)
    await end(one, "sess_1", first)
    await begin(two, "sess_3")
    with pytest.raises(TooMany):
        await begin(one, "sess_1")


async def test_turns_that_begin_at_the_same_time_do_not_pass_the_limit(store_pair: tuple[Store, Store]) -> None:
    nodes = [await a_node(store, name, turns_per_key=3) for store, name in zip(store_pair, ("one", "two"), strict=True)]
    begun = await asyncio.gather(*(begin(nodes[n % 2], f"sess_{n}") for n in range(20)), return_exceptions=True)
    assert sum(isinstance(one, Occupant) for one in begun) == 3
    assert sum(isinstance(one, TooMany) for one in begun) == 17


class Recorder:
    """A database that keeps the transaction that it is given."""

    async def write(self, transaction: Callable[[Connection], object]) -> None:
        self.transaction = transaction


async def test_nodes_do_not_wait_for_each_other_where_both_limits_are_checked_in_one_commit(
    store_pair: tuple[Store, Store],
) -> None:
    both = threading.Barrier(2)

    async def commit(number: int) -> None:
        slot, created = Recorder(), Recorder()
        await TurnSlotRepository(cast(Database, slot)).take(f"sess_{number}", "phone", "one", 9)
        record = SessionRecord(f"sess_{number}", "echo", {}, None, owner="phone")
        await SessionRepository(cast(Database, created)).create(record, [], limit=9)
        first, second = (slot, created) if number else (created, slot)

        def in_this_order(connection: Connection) -> None:
            first.transaction(connection)
            with suppress(threading.BrokenBarrierError):
                both.wait(1.0)
            second.transaction(connection)

        await store_pair[number]._database.write(in_this_order)

    await asyncio.gather(commit(0), commit(1))


async def test_a_turn_that_is_refused_or_fails_to_start_does_not_count(store_pair: tuple[Store, Store]) -> None:
    one, two = [await a_node(store, name, turns_per_key=1) for store, name in zip(store_pair, ("one", "two"), strict=True)]
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with one.turn("sess_1", "phone", new_agent=True):
                raise ZeroDivisionError
    assert one._shared is not None
    await one._shared.close()  # type: ignore[attr-defined]
    again = await begin(two, "sess_1")
    # The same session begins its next turn before the end of the last one is stored.
    again.busy = False
    two.add("sess_1", again)
    async with two.turn("sess_1", "phone", new_agent=False):
        again.busy = True
    with pytest.raises(TooMany):
        await begin(one, "sess_2")


async def test_a_turn_counts_until_the_store_takes_its_end(
    store_pair: tuple[Store, Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = store_pair[0].shared.turn_slots
    turns = SharedTurns(1, clock)
    await turns.open(slots, "one")
    await turns.take("sess_1", "phone")

    async def fails(log_id: str, node: str) -> None:
        raise StoreUnavailable("the server has ended the connection")

    with monkeypatch.context() as patch:
        patch.setattr(slots, "release", fails)
        turns.release("sess_1")
        await clock.waited_for(RETRY)
    assert await slots.count("phone") == 1
    await clock.advance(RETRY)
    await turns.close()
    assert await slots.count("phone") == 0


async def test_turns_of_a_dead_node_do_not_count(store_pair: tuple[Store, Store]) -> None:
    one, two = [await a_node(store, name, turns_per_key=1) for store, name in zip(store_pair, ("one", "two"), strict=True)]
    await begin(one, "sess_1")
    with pytest.raises(TooMany):
        await begin(two, "sess_2")
    await store_pair[0].nodes.remove("one")
    second = await begin(two, "sess_2")
    await end(two, "sess_2", second)
    await store_pair[0].nodes.start(NodeReport(id="one", address="http://127.0.0.1:1/one"), 3600)
    with pytest.raises(TooMany):
        await begin(two, "sess_2")
    # Its next process has none of its turns.
    await a_node(store_pair[0], "one", turns_per_key=1)
    await begin(two, "sess_2")


async def test_the_turns_of_sessions_and_tasks_count_until_they_end(tmp_path: Path, write_scenario: Callable[..., str]) -> None:
    # No node is chosen for what is new: it stays where it is.
    request_is_forwarded.set(True)
    long = write_scenario([{"text": "begun"}, {"delay": 60.0}])
    async with run_nodes(tmp_path, "one", "two", limits={"turns_per_key": 1}) as [one, two]:
        session, other = await one.create("script", scenario=long), await two.create()
        turn = await begin_turn(session)
        await until(turn, "begun")
        for refused in (say(other), two.gateway.tasks.execute(Task("echo", "x"))):
            with pytest.raises(TooMany, match=r"1 turns running.*of all nodes"):
                await refused
        await session.cancel()

        async def all_free() -> bool:
            return not await one.gateway.store.shared.turn_slots.count(None)

        await wait_until(all_free)
        await say(other)
        await wait_until(all_free)
        await rest(await one.gateway.tasks.execute(Task("echo", "x")))


async def test_sessions_of_a_key_are_counted_over_all_nodes(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, limits={"sessions_per_key": 3}) as (one, two):
        body = {"agent": {"name": "echo"}}
        created = await asyncio.gather(*((one, two)[n % 2].client.post("/aap/v3/sessions", json=body) for n in range(12)))
        assert sorted(answer.status_code for answer in created) == [201] * 3 + [429] * 9
        refused = next(answer for answer in created if answer.status_code == 429)
        assert "limits.sessions_per_key" in refused.text
        # At the node that has it: the nodes do not reach each other here.
        n, session = next((n, answer.json()["sessionId"]) for n, answer in enumerate(created) if answer.status_code == 201)
        assert (await (one, two)[n % 2].client.delete(f"/aap/v3/sessions/{session}")).status_code == 204
        assert (await two.client.post("/aap/v3/sessions", json=body)).status_code == 201
        assert (await one.client.post("/aap/v3/sessions", json=body)).status_code == 429


async def test_a_request_at_two_nodes_begins_one_run(store_pair: tuple[Store, Store]) -> None:
    nodes = [Idempotency(store) for store in store_pair]
    key = IdempotencyKey.of("phone", "execute", "key", ["echo", "x"])

    async def execute(n: int) -> str:
        store, task = store_pair[n % 2], f"exec_{n}"

        async def start() -> str:
            await store.runs.start(RunRecord(f"run_{n}", task, "running", None, 1), key=key.record(task, 1))
            return task

        async def again(known: KeyRecord) -> str:
            return known.log_id

        return await nodes[n % 2].once(key, start, again)

    assert len(set(await asyncio.gather(*(execute(n) for n in range(10))))) == 1
    assert len(await store_pair[0].runs.unfinished()) == 1


async def test_a_request_whose_twin_has_failed_elsewhere_begins_again(store_pair: tuple[Store, Store]) -> None:
    one, two = store_pair
    key = IdempotencyKey.of("phone", "execute", "key", ["echo", "x"])
    starts = 0

    async def start() -> str:
        nonlocal starts
        starts += 1
        if starts == 1:
            # Stored between the look-up and the start, and discarded again: its agent did not start.
            await one.runs.start(RunRecord("run_1", "exec_1", "running", None, 1), key=key.record("exec_1", 1))
            await one.runs.discard_execution("exec_1")
            raise KeyStored
        return "exec_2"

    async def again(known: KeyRecord) -> str:
        raise AssertionError(known)

    assert await Idempotency(two).once(key, start, again) == "exec_2"


async def test_a_key_that_is_stored_twice_changes_nothing(store_pair: tuple[Store, Store]) -> None:
    one, two = store_pair
    key = KeyRecord("key", "digest", "sess_1", 1)
    record = SessionRecord("sess_1", "echo", created_at=1.0)
    await one.sessions.create(record, [], None, key)
    with pytest.raises(KeyStored):
        await two.sessions.create(SessionRecord("sess_2", "echo", created_at=1.0), [], None, key)
    assert await two.sessions.get("sess_2") is None


# -- keys that all nodes have ---------------------------------------------------------------------------------------------------


async def test_a_node_with_another_encryption_key_is_refused(tmp_path: Path) -> None:
    config = node_config(tmp_path, "two")
    other = tmp_path / "other-key"
    other.write_bytes(Fernet.generate_key())
    config["node"]["encryption_key_file"] = str(other)
    async with run_gateway(node_config(tmp_path, "one")):
        with pytest.raises(ConfigError, match=r"with another key than this node has.*PORTICO_ENCRYPTION_KEY"):
            await Gateway(parse(config), (KEY,), Redactor()).open()
        other.write_text("no key")
        with pytest.raises(ConfigError, match="is not a key; make one with"):
            await Gateway(parse(config), (KEY,), Redactor()).open()


async def test_the_first_node_has_the_key_of_the_daemon_whose_store_it_was(tmp_path: Path) -> None:
    config = node_config(tmp_path, "one")
    store = await Store.open(config["store"]["url"])
    before = SecretEncryption(tmp_path, Fernet.generate_key().decode())
    await store.sessions.create(SessionRecord("sess_1", "echo", secrets=before.encrypt({"token": "x"}), created_at=1.0), [])
    await store.close()
    with pytest.raises(ConfigError, match="vault-key of the daemon whose store this was"):
        await Gateway(parse(config), (KEY,), Redactor()).open()


def test_a_node_makes_no_key_of_its_own(tmp_path: Path) -> None:
    config = gateway_config(tmp_path, node={"address": "http://127.0.0.1:7700"}, store={"url": "postgresql://localhost/portico"})
    config["auth"] = {}
    settings = parse(config)
    with pytest.raises(InvalidSettings, match="PORTICO_API_KEY"):
        default_api_keys(settings, {})
    assert default_api_keys(settings, {"PORTICO_API_KEY": "given"}) == ("given",)
    with pytest.raises(InvalidSettings, match="PORTICO_ENCRYPTION_KEY"):
        encryption_key(settings, {})
    assert encryption_key(settings, {"PORTICO_ENCRYPTION_KEY": " given\n"}) == "given"
    settings.data_dir.mkdir(exist_ok=True)
    (settings.data_dir / "vault-key").write_text("copied\n")
    assert encryption_key(settings, {}) == "copied"
    assert not (settings.data_dir / "api-key").exists()
    assert encryption_key(parse(gateway_config(tmp_path)), {}) is None
