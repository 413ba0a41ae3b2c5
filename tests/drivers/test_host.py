"""The client's services for a CLI: text files and terminals, in the working folder and nowhere else."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.host import Host
from drivers.process import Spawner
from drivers.process_tree import living, marked
from drivers.services import INVALID_PARAMS, NOT_FOUND, HostAnswer, HostRequest


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    found = Host(folder, {"PATH": os.environ["PATH"]}, Spawner("hosttest"))
    yield found
    await found.close()
    assert not living(marked("hosttest"))


async def ask(host: Host, method: str, **params: Any) -> HostAnswer:
    return await host.serve(HostRequest(1, method, params))


async def test_a_file_is_written_and_read_by_lines(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "work" / "new" / "file.txt"
    path = str(file)
    assert (await ask(host, "fs/write_text_file", path=path, content="one\ntwo\nthree\n")).error is None
    assert (await ask(host, "fs/read_text_file", path=path)).result == {"content": "one\ntwo\nthree\n"}
    assert (await ask(host, "fs/read_text_file", path=path, line=2, limit=1)).result == {"content": "two"}
    assert (await ask(host, "fs/write_text_file", path=path, content="x")).error is None
    assert file.read_text() == "x"


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file"])
@pytest.mark.parametrize("path", ["work/../secret.txt", "secret.txt", "work/link.txt", "work/folder/secret.txt", "work-two/x"])
async def test_no_path_leads_out(host: Host, tmp_path: Path, method: str, path: str) -> None:
    (tmp_path / "work" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "work" / "folder").symlink_to(tmp_path)
    answer = await ask(host, method, path=str(tmp_path / path), content="overwritten")
    assert answer.code == INVALID_PARAMS
    assert "not in the working folder" in (answer.error or "")
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert not (tmp_path / "work-two").exists()


async def test_the_other_folders_of_a_session(tmp_path: Path) -> None:
    for name in ("work", "more", "more-of"):
        (tmp_path / name).mkdir()
    (tmp_path / "more" / "link").symlink_to(tmp_path / "more-of")
    host = Host(tmp_path / "work", {"PATH": os.environ["PATH"]}, Spawner("hosttest"), (tmp_path / "more",))
    try:
        path = str(tmp_path / "more" / "new" / "file.txt")
        assert (await ask(host, "fs/write_text_file", path=path, content="one")).error is None
        assert (await ask(host, "fs/read_text_file", path=path)).result == {"content": "one"}
        for outside in ("more-of/x", "more/link/x", "more/../x"):
            answer = await ask(host, "fs/write_text_file", path=str(tmp_path / outside), content="x")
            assert f"or in {tmp_path / 'more'}" in (answer.error or "")
            assert not (tmp_path / outside).exists()
        created = await ask(host, "terminal/create", command="pwd", cwd=str(tmp_path / "more"))
        terminal = created.result["terminalId"]
        await ask(host, "terminal/wait_for_exit", terminalId=terminal)
        assert (await ask(host, "terminal/output", terminalId=terminal)).result["output"] == f"{tmp_path / 'more'}\n"
        # Where none is named, it is the working folder.
        created = await ask(host, "terminal/create", command="pwd")
        await ask(host, "terminal/wait_for_exit", terminalId=created.result["terminalId"])
        shown = await ask(host, "terminal/output", terminalId=created.result["terminalId"])
        assert shown.result["output"] == f"{tmp_path / 'work'}\n"
    finally:
        await host.close()


async def test_what_is_wrong_is_said(host: Host, tmp_path: Path) -> None:
    assert (await ask(host, "fs/read_text_file", path="relative.txt")).error == "'relative.txt' is not an absolute path"
    assert (await ask(host, "fs/read_text_file", path=str(tmp_path / "work" / "none"))).code == NOT_FOUND
    assert (await ask(host, "fs/read_text_file")).code == INVALID_PARAMS
    os.mkfifo(tmp_path / "work" / "fifo")
    assert "not a regular file" in ((await ask(host, "fs/read_text_file", path=str(tmp_path / "work" / "fifo"))).error or "")
    assert (await ask(host, "terminal/output", terminalId="none")).code == NOT_FOUND
    assert (await ask(host, "elicitation/create")).code == -32601


async def test_a_terminal_runs_a_command_line_in_the_folder(host: Host, tmp_path: Path) -> None:
    created = await ask(host, "terminal/create", command="pwd; echo err >&2; echo $X; exit 3", env=[{"name": "X", "value": "y"}])
    terminal = created.result["terminalId"]
    assert (await ask(host, "terminal/wait_for_exit", terminalId=terminal)).result == {"exitCode": 3, "signal": None}
    shown = (await ask(host, "terminal/output", terminalId=terminal)).result
    assert shown["output"] == f"{tmp_path / 'work'}\nerr\ny\n"
    assert shown["exitStatus"] == {"exitCode": 3, "signal": None}
    assert (await ask(host, "terminal/release", terminalId=terminal)).error is None
    assert (await ask(host, "terminal/output", terminalId=terminal)).code == NOT_FOUND


async def test_a_terminal_keeps_the_end_of_its_output(host: Host) -> None:
    created = await ask(host, "terminal/create", command="seq", args=["1", "1000"], outputByteLimit=9)
    terminal = created.result["terminalId"]
    await ask(host, "terminal/wait_for_exit", terminalId=terminal)
    shown = (await ask(host, "terminal/output", terminalId=terminal)).result
    assert (shown["output"], shown["truncated"]) == ("999\n1000\n", True)


async def test_a_killed_terminal_is_gone_with_all_it_started(host: Host) -> None:
    created = await ask(host, "terminal/create", command="setsid sleep 300 & echo started; sleep 300")
    terminal = created.result["terminalId"]
    await ask(host, "terminal/kill", terminalId=terminal)
    ended = (await ask(host, "terminal/wait_for_exit", terminalId=terminal)).result
    # The shell's child may get the signal first; then the shell tells of it by its exit code.
    assert ended["signal"] is not None or ended["exitCode"] == 128 + signal.SIGTERM
    assert not living(marked("hosttest"))


async def test_the_end_of_the_session_ends_its_terminals(host: Host) -> None:
    await ask(host, "terminal/create", command="sleep 300")
    assert living(marked("hosttest"))
    await host.close()
    assert not living(marked("hosttest"))
    assert (await ask(host, "terminal/create", command="sleep 300")).error == "the session has ended"


async def test_a_terminal_starts_in_the_folder_only(host: Host, tmp_path: Path) -> None:
    assert (await ask(host, "terminal/create", command="pwd", cwd=str(tmp_path))).code == INVALID_PARAMS
