"""Nodes whose database has a full disk, or is away for longer than a lease lasts."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drivers.contract.events import SessionEnd
from gateway.errors import StoreFull, StoreUnavailable
from gateway.runs import run as run_module
from gateway.store.leases import LeaseRepository
from tests.gateway.nodes.three_nodes import begin, rest, run_nodes, say, until
from tests.gateway.store.expiry import expire, silence
from tests.support import run_folder, stores
from tests.support.postgresql import start_own_server

WriteScenario = Callable[..., str]


class SmallDisk:
    """A folder with a file system of its own, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab") as file:
            while free := os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize:
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free)

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_writes_are_refused_while_the_disk_of_the_database_is_full_and_no_session_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "x" * 100_000}])
    with small_disk(run_folder.current() / "disk", 96) as disk:
        server = start_own_server(disk.folder, 1, min_wal_size="2MB", max_wal_size="4MB")
        try:
            url = server.url(server.create_database())
            monkeypatch.setattr(stores, "store_url", lambda _: url)
            async with run_nodes(tmp_path, "a", "b") as (a, b):
                idle, busy = await a.create(), await a.create("script", scenario=scenario)
                await say(idle)
                turn = await begin(busy)
                await until(turn, "working")
                await busy.log.written()
                last = idle.log.last
                disk.fill()
                with pytest.raises(StoreFull, match="No space left"):
                    # The server compresses what repeats itself.
                    await begin(idle, secrets.token_hex(500_000))
                assert idle.log.last == last and idle.state == "idle"
                assert len(await a.gateway.sessions.summaries_of([idle.id, busy.id])) == 2
                for session in (idle, busy):
                    with suppress(StoreFull):
                        await expire(a.gateway.store, session.id)
                (tmp_path / "scenes" / "go").touch()
                a.clock.now += 15.0
                for _ in range(4):
                    for node in (a, b):
                        with suppress(StoreFull):
                            await node.node.beat()
                    assert await b.look(2.0) == 0
                disk.free()
                for node in (a, b):
                    await node.node.beat()
                end = (await rest(turn))[-1]
                assert isinstance(end, SessionEnd) and end.stop_reason == "end_turn"
                assert await a.get(idle.id) is idle and await a.get(busy.id) is busy
                await say(idle, "again")
        finally:
            server.close()
            (disk.folder / "ballast").unlink(missing_ok=True)
    disk.folder.rmdir()


async def test_a_node_that_cannot_renew_its_leases_says_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await silence(b.gateway.store, a.id)

        async def full(*_: object) -> Mapping[str, int]:
            raise StoreFull("no space left on the device")

        monkeypatch.setattr(a.gateway.store.nodes, "beat", full)
        with pytest.raises(StoreFull):
            await a.node.beat()
        assert await b.look(0.0, 2.0, 2.0, 2.0) == 0
        monkeypatch.undo()
        await a.node.beat()
        assert session.lease is not None and session.lease.held


async def test_a_run_waits_for_a_database_that_is_away_for_longer_than_its_lease(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RETRY", 0.01)
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "in time"}])
    async with run_nodes(tmp_path, "a") as (a,):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        renew, tried = LeaseRepository.renew, asyncio.Event()
        left = 3

        async def away(self: LeaseRepository, node: str, seconds: float) -> dict[str, int]:
            nonlocal left
            if left:
                left -= 1
                raise StoreUnavailable("the server does not answer")
            tried.set()
            return await renew(self, node, seconds)

        monkeypatch.setattr(LeaseRepository, "renew", away)
        a.clock.now += 15.0
        (tmp_path / "scenes" / "go").touch()
        end = (await rest(turn))[-1]
        assert isinstance(end, SessionEnd) and end.stop_reason == "end_turn" and tried.is_set()
