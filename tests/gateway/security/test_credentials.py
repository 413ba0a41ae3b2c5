"""Named keys, sign-ins and codes in the store: what one daemon or `portico key` does holds for all others at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import ConfigError, KeysUnchecked, StoreUnavailable, WrongKey
from gateway.security.authentication import Authenticator
from gateway.security.credentials import AGAIN_SECONDS, ANSWER_SECONDS, RELOAD_SECONDS, STALE_SECONDS, Credentials
from gateway.security.named_keys import NamedKeys
from gateway.security.sign_ins import (
    CODE_SECONDS,
    MAX_CODES,
    MAX_SIGN_INS,
    UNUSED_SECONDS,
    KeyIdentity,
    OfferedSignIn,
    SignInSecrets,
    digest_of,
    is_made_by,
)
from gateway.store import Store
from tests.support import stores
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

DEFAULT_KEY = "a default key"
ADMINISTRATOR, PHONE = KeyIdentity(None, digest_of(DEFAULT_KEY)), KeyIdentity("phone", digest_of("of the phone"))


on_both_databases = pytest.mark.parametrize("store", stores.KINDS, indirect=True)
"""For tests of what the database decides."""


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    with stores.use(getattr(request, "param", stores.kind())):
        opened = await Store.open(stores.store_url(tmp_path))
        yield opened
        await opened.close()


async def a_daemon(store: Store, clock: Clock = SYSTEM_CLOCK) -> Credentials:
    """The credentials as one daemon has them. Two of them are nodes, or one is what another process does."""
    found = Credentials(clock)
    await found.open(store.credentials)
    return found


def counted(monkeypatch: pytest.MonkeyPatch, store: Store, name: str) -> list[str]:
    """Return a list that has an item for each later call of a method of the repository."""
    calls, method = list[str](), getattr(store.credentials, name)

    async def call(*arguments: Any) -> Any:
        calls.append(name)
        return await method(*arguments)

    monkeypatch.setattr(store.credentials, name, call)
    return calls


def hanging(monkeypatch: pytest.MonkeyPatch, store: Store) -> Callable[[], None]:
    """Let comparisons wait for a store that does not answer, until the function that is returned is called."""
    answers, change = asyncio.Event(), store.credentials.change

    async def hang() -> str | None:
        await answers.wait()
        return await change()

    monkeypatch.setattr(store.credentials, "change", hang)
    return answers.set


@on_both_databases
async def test_keys_hold_for_every_daemon(store: Store) -> None:
    one, two = await a_daemon(store), await a_daemon(store)
    key = await one.add_key("phone")
    assert one.name_of(key) == "phone" and two.name_of(key) is None
    await two.compare()
    assert two.name_of(key) == "phone" and two.name_of("pk-other") is None
    for invalid in ("", "x", "../api-key", digest_of(key)):
        assert two.name_of(invalid) is None
    with pytest.raises(ConfigError, match="there is a key 'phone' already"):
        await two.add_key("Phone")
    with pytest.raises(ConfigError, match="a key's name is letters"):
        await two.add_key("a b")
    assert [known.name for known in await two.keys()] == ["phone"]
    await two.remove_key("phone")
    with pytest.raises(ConfigError, match="there is no key 'phone'"):
        await one.remove_key("phone")
    assert two.name_of(key) is None
    await one.compare()
    assert one.name_of(key) is None and await one.keys() == []


@on_both_databases
async def test_a_check_knows_what_another_process_has_changed_before(store: Store) -> None:
    daemon, command = await a_daemon(store), NamedKeys(store.credentials)
    authenticator = Authenticator([DEFAULT_KEY], daemon)
    for _ in range(3):
        key = await command.add("phone")
        assert (await authenticator.check(f"Bearer {key}")).name == "phone"
        await command.remove("phone")
        with pytest.raises(WrongKey):
            await authenticator.check(f"Bearer {key}")
    made = await (await a_daemon(store)).begin_sign_in(ADMINISTRATOR)
    assert (await authenticator.check(OfferedSignIn((made.cookie,), made.token))).all_sessions


async def test_checks_share_a_comparison(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await a_daemon(store), await a_daemon(store)
    key = await one.add_key("phone")
    compared = counted(monkeypatch, store, "change")
    # The second one is for those that came when the first was under way: it may have read the store before them.
    await asyncio.gather(*(two.compare() for _ in range(100)))
    assert two.name_of(key) == "phone" and 1 <= len(compared) <= 2


async def test_a_comparison_that_has_read_the_store_before_a_change_does_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, command = await a_daemon(store), NamedKeys(store.credentials)
    key, has_read, goes_on, change = await daemon.add_key("phone"), asyncio.Event(), asyncio.Event(), store.credentials.change

    async def slow() -> str | None:
        found = await change()
        has_read.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(store.credentials, "change", slow)
    first = asyncio.create_task(daemon.compare())
    await has_read.wait()
    await command.remove("phone")
    second = asyncio.create_task(daemon.compare())
    goes_on.set()
    await asyncio.gather(first, second)
    assert daemon.name_of(key) is None


async def test_checks_of_a_stream_are_comparisons_now_and_then(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await a_daemon(store, clock)
    compared, authenticator = counted(monkeypatch, store, "change"), Authenticator([DEFAULT_KEY], daemon)
    key = await daemon.add_key("phone")
    for _ in range(10):
        await authenticator.check(f"Bearer {key}", again=True)
    assert not compared
    await authenticator.check(f"Bearer {key}")
    assert len(compared) == 1
    clock.now += 1.1 * AGAIN_SECONDS
    await authenticator.check(f"Bearer {DEFAULT_KEY}")
    assert len(compared) == 1, "a default key is not in the store"
    await authenticator.check(f"Bearer {key}", again=True)
    assert len(compared) == 2
    await NamedKeys(store.credentials).remove("phone")
    clock.now += 1.1 * AGAIN_SECONDS
    with pytest.raises(WrongKey):
        await authenticator.check(f"Bearer {key}", again=True)
    assert AGAIN_SECONDS <= 0.05


async def test_a_comparison_is_one_small_query(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = await a_daemon(store)
    read = counted(monkeypatch, store, "all")
    for _ in range(3):
        await daemon.compare()
    assert not read
    await NamedKeys(store.credentials).add("phone")
    await daemon.compare()
    await daemon.compare()
    assert len(read) == 1


@on_both_databases
async def test_one_of_several_processes_adds_a_name(store: Store) -> None:
    found = await asyncio.gather(*(NamedKeys(store.credentials).add("phone") for _ in range(8)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["ConfigError"] * 7 + ["str"]


async def test_a_use_is_stored_once_a_minute(store: Store, clock: ManualClock) -> None:
    daemon, command = await a_daemon(store, clock), NamedKeys(store.credentials)
    key = await daemon.add_key("phone")
    assert [known.used_at for known in await command.all()] == [None]

    async def stored(at: float) -> None:
        async def done() -> bool:
            return [known.used_at for known in await command.all()] == [at]

        await wait_until(done)

    for _ in range(3):
        assert daemon.name_of(key) == "phone"
    first = clock.time()
    assert [known.used_at for known in await daemon.keys()] == [first]
    await stored(first)
    clock.set_wall_clock(59)
    daemon.name_of(key)
    await daemon.close()
    assert [known.used_at for known in await command.all()] == [first]
    clock.set_wall_clock(2)
    daemon.name_of(key)
    await stored(clock.time())


async def test_a_use_that_could_not_be_stored_is_stored_later(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = await a_daemon(store, clock)
    phone, record = await daemon.add_key("phone"), store.credentials.record_uses

    async def fail(*_: Any) -> None:
        raise StoreUnavailable("the store cannot be written")

    monkeypatch.setattr(store.credentials, "record_uses", fail)
    daemon.name_of(phone)
    await wait_until(lambda: "the last use of API keys is not stored" in caplog.text)
    monkeypatch.setattr(store.credentials, "record_uses", record)
    await daemon.close()
    assert [known.used_at for known in await NamedKeys(store.credentials).all()] == [clock.time()]


async def test_a_copy_that_cannot_be_compared_is_not_used_for_long(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = await a_daemon(store, clock)
    key, made = await daemon.add_key("phone"), await daemon.begin_sign_in(ADMINISTRATOR)
    authenticator, change = Authenticator([DEFAULT_KEY], daemon), store.credentials.change
    given = [f"Bearer {key}", OfferedSignIn((made.cookie,), made.token)]

    async def fail() -> str | None:
        raise StoreUnavailable("the store cannot be read")

    monkeypatch.setattr(store.credentials, "change", fail)
    clock.now += STALE_SECONDS
    for authorization in given:
        await authenticator.check(authorization)
    clock.now += 0.1
    for authorization in given:
        with pytest.raises(KeysUnchecked, match="the store has not answered for 30 seconds"):
            await authenticator.check(authorization)
    await authenticator.check(f"Bearer {DEFAULT_KEY}")
    assert caplog.text.count("API keys are not compared with the store") == 1
    monkeypatch.setattr(store.credentials, "change", change)
    for authorization in given:
        await authenticator.check(authorization)


async def test_a_store_that_does_not_answer_is_waited_for_once(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await a_daemon(store, clock)
    key, authenticator = await daemon.add_key("phone"), Authenticator([DEFAULT_KEY], daemon)
    answer = hanging(monkeypatch, store)
    clock.now += 1
    check = asyncio.create_task(authenticator.check(f"Bearer {key}"))
    await clock.expire(ANSWER_SECONDS)
    assert (await check).name == "phone"
    # The comparison goes on, and no other check waits for it.
    assert (await authenticator.check(f"Bearer {key}")).name == "phone"
    # Without a copy that can be used, a check waits as any read does.
    clock.now += STALE_SECONDS
    check = asyncio.create_task(authenticator.check(f"Bearer {key}"))
    await clock.advance(ANSWER_SECONDS)
    assert not check.done()
    answer()
    assert (await check).name == "phone"


@on_both_databases
async def test_sign_ins_hold_for_every_daemon(store: Store, clock: ManualClock) -> None:
    one, two = await a_daemon(store, clock), await a_daemon(store, clock)
    made, other = await one.begin_sign_in(ADMINISTRATOR), await one.begin_sign_in(PHONE)
    await two.compare()
    found, named = two.find(made), two.find(other)
    assert found is not None and is_made_by(found, ADMINISTRATOR, made.cookie) and not is_made_by(found, PHONE, made.cookie)
    assert named is not None and is_made_by(named, PHONE, other.cookie)
    assert two.find(SignInSecrets(made.cookie, other.token)) is None and two.find(SignInSecrets("", "")) is None
    await two.end_sign_in(made)
    await one.compare()
    assert one.find(made) is None and two.find(made) is None and one.find(other) is not None


@on_both_databases
async def test_an_unused_sign_in_ends_after_thirty_days(store: Store, clock: ManualClock) -> None:
    one, two = await a_daemon(store, clock), await a_daemon(store, clock)
    made = await one.begin_sign_in(PHONE)
    await two.compare()
    clock.set_wall_clock(UNUSED_SECONDS - 60)
    found = two.find(made)
    assert found is not None and found.used_at == clock.time()
    await two.close()
    clock.set_wall_clock(120)
    await one.compare()
    assert one.find(made) is None, "the times of uses by others are no change"
    clock.now += RELOAD_SECONDS + 1
    await one.compare()
    assert one.find(made) is not None
    clock.set_wall_clock(UNUSED_SECONDS + 1)
    assert one.find(made) is None and two.find(made) is None and (await a_daemon(store, clock)).find(made) is None
    await one.begin_sign_in(PHONE)
    assert len((await store.credentials.all()).sign_ins) == 1, "one that has ended is deleted"


@on_both_databases
async def test_sign_ins_of_a_name_have_a_limit(store: Store, clock: ManualClock) -> None:
    daemon = await a_daemon(store, clock)
    administrator = await daemon.begin_sign_in(ADMINISTRATOR)
    made = []
    for _ in range(MAX_SIGN_INS + 1):
        clock.set_wall_clock(1)
        made.append(await daemon.begin_sign_in(PHONE))
    assert daemon.find(administrator) is not None
    assert daemon.find(made[0]) is None and all(daemon.find(one) is not None for one in made[1:])


@on_both_databases
async def test_a_code_is_used_once_over_all_daemons(store: Store) -> None:
    daemons = [await a_daemon(store) for _ in range(5)]
    code = await daemons[0].make_code(PHONE)
    used = await asyncio.gather(*(one.use_code(code) for one in daemons))
    assert sorted(map(str, used)) == sorted(map(str, [PHONE, None, None, None, None]))
    assert await daemons[0].use_code(code) is None and await daemons[1].use_code("") is None


async def test_the_digest_of_a_default_key_is_not_stored_with_a_code(store: Store) -> None:
    daemon = await a_daemon(store)
    code = await daemon.make_code(ADMINISTRATOR)
    stored = await store.credentials.use_code(digest_of(code))
    # A key that a person has chosen could be guessed from it.
    assert stored is not None and stored[1] != ADMINISTRATOR.digest
    assert await daemon.use_code(await daemon.make_code(ADMINISTRATOR)) == ADMINISTRATOR


@on_both_databases
async def test_codes_end_and_have_a_limit(store: Store, clock: ManualClock) -> None:
    daemon = await a_daemon(store)
    administrator = await daemon.make_code(ADMINISTRATOR)
    # A code is over by the database's clock, whatever those of the nodes are.
    await store.credentials.add_code("over", "phone", "digest", -1.0, MAX_CODES)
    assert await store.credentials.use_code("over") is None
    for name in ("valid", "older"):
        await store.credentials.add_code(name, "phone", "digest", CODE_SECONDS - 1, MAX_CODES)
    assert await store.credentials.use_code("valid") == ("phone", "digest")
    codes = [await daemon.make_code(PHONE) for _ in range(MAX_CODES)]
    assert await store.credentials.use_code("older") is None
    for code, identity in ((administrator, ADMINISTRATOR), *((code, PHONE) for code in codes)):
        assert await daemon.use_code(code) == identity
