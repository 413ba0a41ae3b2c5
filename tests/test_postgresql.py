"""The server of PostgreSQL for tests: one that does not start says why, once, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import postgresql, run_folder
from tests.support.postgresql import NotStarted, PostgresqlServer

WRONG = {"shared_buffers": "nonsense"}


@pytest.fixture
def another_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run in which no server has been started."""
    folder = run_folder.make(Path(os.environ["TMPDIR"]))
    (folder / "memory").mkdir()
    (folder / "memory").chmod(0o711)
    monkeypatch.setenv(run_folder.VARIABLE, str(folder))
    monkeypatch.setattr(postgresql, "_server", None)
    postgresql._programs.cache_clear()
    yield folder
    postgresql._programs.cache_clear()
    os.close(run_folder._begun.pop(folder))
    run_folder.remove(folder)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for each time that a server, which cannot start, was launched."""
    found: list[int] = []
    launch = PostgresqlServer.launch
    monkeypatch.setattr(PostgresqlServer, "launch", lambda server: found.append(server.port) or launch(server))  # type: ignore[func-returns-value]
    monkeypatch.setattr(postgresql, "SETTINGS", {**postgresql.SETTINGS, **WRONG})
    return found


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(another_run: Path) -> None:
    with pytest.raises(NotStarted, match=r'invalid value for parameter "shared_buffers": "nonsense"'):
        PostgresqlServer(**WRONG)
    assert list((another_run / "memory").iterdir()) == []


def test_a_server_without_data_says_why_and_leaves_nothing(another_run: Path) -> None:
    with pytest.raises(NotStarted, match=r"initdb.*wal-segsize"):
        PostgresqlServer(segment=3)
    assert list((another_run / "memory").iterdir()) == []


def test_tests_that_need_a_server_that_does_not_start_are_skipped(
    another_run: Path, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    for _ in range(3):
        with pytest.raises(pytest.skip.Exception, match=r'does not start: .*"nonsense"'):
            postgresql.server()
    with pytest.raises(pytest.skip.Exception, match="does not start"):
        postgresql.start_own_server()
    assert len(starts) == postgresql.LAUNCHES
    assert list((another_run / "memory").iterdir()) == []


def test_in_ci_the_first_such_test_fails(another_run: Path, starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r'does not start: .*"nonsense"'):
        postgresql.server()
    with pytest.raises(pytest.skip.Exception, match="does not start"):
        postgresql.server()
    assert len(starts) == postgresql.LAUNCHES


def test_a_server_gets_another_port_if_somebody_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    free = postgresql._free_port
    ports = [postgresql.server().port]
    monkeypatch.setattr(postgresql, "_free_port", lambda: ports.pop() if ports else free())
    server = PostgresqlServer()
    try:
        assert server.execute("SELECT 1") == [(1,)] and server.port != postgresql.server().port
    finally:
        server.close()


def test_memory_that_its_processes_share_is_in_its_folder() -> None:
    server = PostgresqlServer(debug_parallel_query="on", min_parallel_table_scan_size="0")
    try:
        with psycopg.connect(server.connection_parameters("postgres")) as connection:
            assert connection.execute("SHOW dynamic_shared_memory_type").fetchone() == ("mmap",)
            assert connection.execute("SELECT count(*) > 0 FROM pg_class").fetchone() == (True,)
            assert connection.execute("SELECT pg_ls_dir('pg_dynshmem')").fetchall()
    finally:
        server.close()


def test_programs_work_for_another_account_whatever_the_modes_of_the_installed_ones(another_run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root needs another account")
    programs = postgresql._programs()
    assert programs.is_relative_to(another_run)
    for path in (*programs.parents[2].rglob("*"), programs.parents[2]):
        assert path.stat().st_mode & 0o777 == 0o755
    assert list(programs.parents[2].glob("*.libs/libpq*"))
