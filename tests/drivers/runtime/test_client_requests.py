"""The client's services for a CLI: text files and terminals, in the working folder and nowhere else."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.client_services import (
    INVALID_PARAMS,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    WAIT,
    ClientRequest,
    ClientResponse,
    ClientServices,
)
from drivers.runtime import local_client_services
from drivers.runtime.local_client_services import MAX_PENDING, ClientRequests
from drivers.runtime.process import Spawner
from tests.drivers.small_programs import marked
from tests.support.waiting import wait_until

INSTANCE = f"hosttest{os.getpid()}"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ClientRequests]:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    found = ClientRequests(folder, {"PATH": os.environ["PATH"]}, Spawner(INSTANCE))
    yield found
    await found.close()
    assert not marked(INSTANCE)


async def ask(host: ClientRequests, method: str, **params: Any) -> ClientResponse:
    return await host.serve(ClientRequest(1, method, params))


async def test_a_file_is_written_and_read_by_lines(host: ClientRequests, tmp_path: Path) -> None:
    file = tmp_path / "work" / "new" / "file.txt"
    path = str(file)
    assert (await ask(host, "fs/write_text_file", path=path, content="one\ntwo\nthree\n")).error is None
    assert (await ask(host, "fs/read_text_file", path=path)).result == {"content": "one\ntwo\nthree\n"}
    assert (await ask(host, "fs/read_text_file", path=path, line=2, limit=1)).result == {"content": "two"}
    assert (await ask(host, "fs/write_text_file", path=path, content="x")).error is None
    assert file.read_text() == "x"


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file"])
@pytest.mark.parametrize("path", ["work/../secret.txt", "secret.txt", "work/link.txt", "work/folder/secret.txt", "work-two/x"])
async def test_paths_outside_of_the_folder_are_rejected(host: ClientRequests, tmp_path: Path, method: str, path: str) -> None:
    (tmp_path / "work" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "work" / "folder").symlink_to(tmp_path)
    answer = await ask(host, method, path=str(tmp_path / path), content="overwritten")
    assert answer.code == INVALID_PARAMS
    assert "not in the working folder" in (answer.error or "")
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert not (tmp_path / "work-two").exists()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fs/read_text_file", {"path": "work/sub/file"}),
        ("fs/write_text_file", {"path": "work/sub/file", "content": "overwritten"}),
        ("fs/write_text_file", {"path": "work/sub/new/file", "content": "created"}),
        ("terminal/create", {"cwd": "work/sub", "command": "pwd; touch created"}),
    ],
)
async def test_a_folder_replaced_by_a_link_after_the_check_of_its_path(
    host: ClientRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, params: dict[str, str]
) -> None:
    sub, outside, resolve = tmp_path / "work" / "sub", tmp_path / "outside", os.path.realpath
    for folder in (sub, outside):
        folder.mkdir()
        (folder / "file").write_text(folder.name)

    def resolve_and_replace(path: str, **options: bool) -> str:
        found = resolve(path, **options)
        if str(path).startswith(str(sub)) and not sub.is_symlink():
            sub.rename(tmp_path / "work" / "moved")
            sub.symlink_to(outside)
        return found

    monkeypatch.setattr(os.path, "realpath", resolve_and_replace)
    answer = await ask(host, method, **{name: str(tmp_path / text) if "/" in text else text for name, text in params.items()})
    assert sub.is_symlink()
    if method == "terminal/create" and answer.error is None:
        await ask(host, "terminal/wait_for_exit", terminalId=answer.result["terminalId"])
    assert answer.error is not None
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "outside"


async def test_the_other_folders_of_a_session(tmp_path: Path) -> None:
    for name in ("work", "more", "more-of"):
        (tmp_path / name).mkdir()
    (tmp_path / "more" / "link").symlink_to(tmp_path / "more-of")
    host = ClientRequests(tmp_path / "work", {"PATH": os.environ["PATH"]}, Spawner(INSTANCE), (tmp_path / "more",))
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
        # The default is the working folder.
        created = await ask(host, "terminal/create", command="pwd")
        await ask(host, "terminal/wait_for_exit", terminalId=created.result["terminalId"])
        shown = await ask(host, "terminal/output", terminalId=created.result["terminalId"])
        assert shown.result["output"] == f"{tmp_path / 'work'}\n"
    finally:
        await host.close()


async def test_file_accesses_do_not_wait_for_the_default_threads(host: ClientRequests, tmp_path: Path) -> None:
    path, blocked = str(tmp_path / "work" / "file"), threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(blocked.wait)
    try:
        async with asyncio.timeout(30):
            assert (await ask(host, "fs/write_text_file", path=path, content="x")).error is None
            assert (await ask(host, "fs/read_text_file", path=path)).result == {"content": "x"}
            created = await ask(host, "terminal/create", command="true", cwd=str(tmp_path / "work"))
            assert (await ask(host, "terminal/release", terminalId=created.result["terminalId"])).error is None
    finally:
        blocked.set()


async def test_invalid_requests_are_errors(host: ClientRequests, tmp_path: Path) -> None:
    assert (await ask(host, "fs/read_text_file", path="relative.txt")).error == "'relative.txt' is not an absolute path"
    assert (await ask(host, "fs/read_text_file", path=str(tmp_path / "work" / "none"))).code == RESOURCE_NOT_FOUND
    assert (await ask(host, "fs/read_text_file")).code == INVALID_PARAMS
    os.mkfifo(tmp_path / "work" / "fifo")
    assert "not a regular file" in ((await ask(host, "fs/read_text_file", path=str(tmp_path / "work" / "fifo"))).error or "")
    assert (await ask(host, "terminal/output", terminalId="none")).code == RESOURCE_NOT_FOUND
    assert (await ask(host, "elicitation/create")).code == -32601


async def test_a_path_that_is_no_regular_file_leaves_no_descriptor_open(host: ClientRequests, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "work" / "fifo")
    before = len(os.listdir("/dev/fd"))
    for name in ("", "fifo"):
        for method in ("fs/read_text_file", "fs/write_text_file"):
            assert (await ask(host, method, path=str(tmp_path / "work" / name), content="x")).error is not None
    assert "not a regular file" in ((await ask(host, "fs/read_text_file", path=str(tmp_path / "work"))).error or "")
    assert len(os.listdir("/dev/fd")) == before


async def test_a_terminal_runs_a_command_line_in_the_folder(host: ClientRequests, tmp_path: Path) -> None:
    created = await ask(host, "terminal/create", command="pwd; echo err >&2; echo $X; exit 3", env=[{"name": "X", "value": "y"}])
    terminal = created.result["terminalId"]
    assert (await ask(host, "terminal/wait_for_exit", terminalId=terminal)).result == {"exitCode": 3, "signal": None}
    shown = (await ask(host, "terminal/output", terminalId=terminal)).result
    assert shown["output"] == f"{tmp_path / 'work'}\nerr\ny\n"
    assert shown["exitStatus"] == {"exitCode": 3, "signal": None}
    assert (await ask(host, "terminal/release", terminalId=terminal)).error is None
    assert (await ask(host, "terminal/output", terminalId=terminal)).code == RESOURCE_NOT_FOUND


async def test_a_terminal_keeps_the_end_of_its_output(host: ClientRequests) -> None:
    created = await ask(host, "terminal/create", command="seq", args=["1", "1000"], outputByteLimit=9)
    terminal = created.result["terminalId"]
    await ask(host, "terminal/wait_for_exit", terminalId=terminal)
    shown = (await ask(host, "terminal/output", terminalId=terminal)).result
    assert (shown["output"], shown["truncated"]) == ("999\n1000\n", True)


async def test_output_without_newlines_is_kept_as_it_is(host: ClientRequests) -> None:
    created = await ask(host, "terminal/create", command="yes | head -c 3000000 | tr -d '\n'; printf end", outputByteLimit=9)
    terminal = created.result["terminalId"]
    assert (await ask(host, "terminal/wait_for_exit", terminalId=terminal)).result == {"exitCode": 0, "signal": None}
    shown = (await ask(host, "terminal/output", terminalId=terminal)).result
    assert (shown["output"], shown["truncated"]) == ("yyyyyyend", True)


async def test_the_number_of_terminals_is_limited(host: ClientRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_client_services, "MAX_TERMINALS", 2)
    create = ClientRequest(1, "terminal/create", {"command": "true"})
    answers = await asyncio.gather(*(host.serve(create) for _ in range(3)))
    (refused,) = [answer for answer in answers if answer.error]
    assert refused.error == "2 terminals are not released yet; release one with terminal/release"
    (first, _) = [answer.result["terminalId"] for answer in answers if not answer.error]
    # One that has ended counts too: its output is kept.
    await ask(host, "terminal/wait_for_exit", terminalId=first)
    assert (await host.serve(create)).error == refused.error
    await ask(host, "terminal/release", terminalId=first)
    assert (await host.serve(create)).error is None


async def test_a_killed_terminal_is_gone_with_all_it_started(host: ClientRequests) -> None:
    created = await ask(host, "terminal/create", command="setsid sleep 300 & echo started; sleep 300")
    terminal = created.result["terminalId"]
    await ask(host, "terminal/kill", terminalId=terminal)
    ended = (await ask(host, "terminal/wait_for_exit", terminalId=terminal)).result
    # If the child of the shell gets the signal first, the exit code of the shell contains it.
    assert ended["signal"] is not None or ended["exitCode"] == 128 + signal.SIGTERM
    assert not marked(INSTANCE)


async def test_the_end_of_the_session_ends_its_terminals(host: ClientRequests) -> None:
    await ask(host, "terminal/create", command="sleep 300")
    # The environment of a process is empty for a moment while it executes its program.
    await wait_until(lambda: marked(INSTANCE))
    await host.close()
    assert not marked(INSTANCE)
    assert (await ask(host, "terminal/create", command="sleep 300")).error == "the session has ended"


async def test_a_terminal_starts_in_the_folder_only(host: ClientRequests, tmp_path: Path) -> None:
    assert (await ask(host, "terminal/create", command="pwd", cwd=str(tmp_path))).code == INVALID_PARAMS


# -- requests that the client serves ---------------------------------------------------------------------------------


class Editor(ClientServices):
    """Supports every method; the test provides the answers."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[ClientRequest] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        self.cancelled_requests: asyncio.Queue[str] = asyncio.Queue()
        self.left = 0

    def supported_methods(self) -> frozenset[str]:
        return frozenset()

    def supports(self, request: ClientRequest) -> bool:
        return True

    async def serve(self, request: ClientRequest) -> ClientResponse:
        self.asked.put_nowait(request)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled_requests.put_nowait(request.method)
            raise
        return ClientResponse({"content": "hers"})

    def release_terminals(self) -> None:
        self.left += 1


@pytest.fixture
def editor() -> Editor:
    return Editor()


@pytest.fixture
async def edited(tmp_path: Path, editor: Editor) -> AsyncIterator[ClientRequests]:
    """Client requests that the editor serves."""
    (tmp_path / "work").mkdir()
    found = ClientRequests(tmp_path / "work", {}, Spawner(INSTANCE), client=editor)
    yield found
    await found.close()


async def test_the_client_receives_the_resolved_path(edited: ClientRequests, editor: Editor, tmp_path: Path) -> None:
    """A client that takes `..` out of a path before it follows links must not open another file."""
    editor.may_answer.set()
    work = tmp_path / "work"
    (work / "deep" / "deeper").mkdir(parents=True)
    (work / "link").symlink_to(work / "deep" / "deeper")
    for path in ("link/../../../secret.txt", "link/../../secret.txt"):
        answer = await ask(edited, "fs/write_text_file", path=f"{work}/{path}", content="x")
        assert "not in the working folder" in (answer.error or "")
    assert editor.asked.empty()
    assert (await ask(edited, "fs/read_text_file", path=f"{work}/deep/../a.txt")).error is None
    assert editor.asked.get_nowait().params["path"] == f"{work}/a.txt"


async def test_a_terminal_of_the_client_is_in_the_working_folder_too(
    edited: ClientRequests, editor: Editor, tmp_path: Path
) -> None:
    editor.may_answer.set()
    await ask(edited, "terminal/create", command="pwd")
    assert editor.asked.get_nowait().params == {"command": "pwd", "cwd": str(tmp_path / "work")}


async def test_a_link_to_itself_is_rejected(edited: ClientRequests, editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "work" / "loop").symlink_to("loop")
    answer = await ask(edited, "fs/read_text_file", path=str(tmp_path / "work" / "loop" / "x"))
    assert answer.code == INVALID_PARAMS
    assert editor.asked.empty()


async def test_the_end_of_a_run_cancels_its_client_requests(edited: ClientRequests, editor: Editor, tmp_path: Path) -> None:
    answers: asyncio.Queue[ClientResponse] = asyncio.Queue()
    for n, method in enumerate((WAIT, "fs/read_text_file")):
        request = ClientRequest(n, method, {"path": str(tmp_path / "work" / "a"), "terminalId": "t"})
        edited.begin(request, lambda _, answer: answers.put_nowait(answer))
        await editor.asked.get()
    assert edited.busy
    edited.end_run()
    assert not edited.busy
    # The CLI receives an error; terminals and requests that wait for their end continue.
    assert (await answers.get()).code == REQUEST_CANCELLED
    assert await editor.cancelled_requests.get() == "fs/read_text_file"
    editor.may_answer.set()
    assert (await answers.get()).error is None


@pytest.mark.parametrize("sent_before", [True, False])
async def test_a_terminal_that_is_released_at_the_end_of_a_run_is_released(
    edited: ClientRequests, editor: Editor, sent_before: bool
) -> None:
    answers: asyncio.Queue[ClientResponse] = asyncio.Queue()
    edited.begin(ClientRequest(1, "terminal/release", {"terminalId": "t"}), lambda _, answer: answers.put_nowait(answer))
    if sent_before:
        await editor.asked.get()
    edited.end_run()
    editor.may_answer.set()
    assert (await answers.get()).error is None
    assert sent_before or editor.asked.get_nowait().method == "terminal/release"


async def test_requests_after_close_are_not_sent_to_the_client(edited: ClientRequests, editor: Editor) -> None:
    edited.begin(ClientRequest(1, WAIT, {"terminalId": "t"}), lambda *_: None)
    await editor.asked.get()
    await edited.close()
    edited.begin(ClientRequest(2, WAIT, {"terminalId": "t"}), lambda *_: None)
    assert not edited.busy
    await edited.close()
    assert await editor.cancelled_requests.get() == WAIT
    assert editor.asked.empty()
    assert editor.left == 1


class Silent(ClientServices):
    """A client that supports every method and never answers."""

    def supported_methods(self) -> frozenset[str]:
        return frozenset({"fs/read_text_file"})

    def supports(self, request: ClientRequest) -> bool:
        return True

    async def serve(self, request: ClientRequest) -> ClientResponse:
        return await asyncio.Event().wait() or ClientResponse()

    def release_terminals(self) -> None:
        pass


async def test_the_number_of_pending_client_requests_is_limited(tmp_path: Path) -> None:
    host = ClientRequests(tmp_path, {}, Spawner(INSTANCE), client=Silent())
    answers: asyncio.Queue[ClientResponse] = asyncio.Queue()
    for n in range(MAX_PENDING + 1):
        host.begin(
            ClientRequest(n, "fs/read_text_file", {"path": str(tmp_path / "a")}), lambda _, answer: answers.put_nowait(answer)
        )
    assert "are pending already" in str((await answers.get()).error)
    assert answers.empty()
    await host.close()


async def test_the_text_in_pending_client_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_client_services, "MAX_PENDING_BYTES", 1000)
    host = ClientRequests(tmp_path, {}, Spawner("hosttest"), client=Silent())
    answers: asyncio.Queue[int] = asyncio.Queue()
    for n, size in enumerate((5000, 1)):
        request = ClientRequest(n, "fs/write_text_file", {"path": str(tmp_path / "a"), "content": "x" * size})
        host.begin(request, lambda request, answer: answers.put_nowait(int(request.id)))
        await asyncio.sleep(0)
    # A single request may be larger.
    assert await answers.get() == 1
    assert answers.empty()
    await host.close()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("terminal/create", {"command": "touch made", "outputByteLimit": "many"}),
        ("terminal/create", {"command": "touch made", "outputByteLimit": -1}),
        ("terminal/create", {"command": "touch", "args": ["made", 5]}),
        ("terminal/create", {"command": "touch made", "args": "made"}),
        ("terminal/create", {"command": "touch made", "env": [{"name": "A"}]}),
        ("terminal/create", {"command": "touch made", "env": {"A": "b"}}),
        ("terminal/create", {"command": "touch made", "cwd": 5}),
        ("terminal/create", {"command": ["touch", "made"]}),
        ("terminal/create", {}),
        ("terminal/create", ["touch made"]),
        ("terminal/create", "touch made"),
        ("terminal/create", None),
        ("terminal/output", {"terminalId": ["x"]}),
        ("terminal/release", []),
        ("fs/read_text_file", {"path": "/x", "line": "two"}),
        ("fs/read_text_file", [1]),
        ("fs/write_text_file", {"path": "/x", "content": 5}),
    ],
)
async def test_parameters_are_validated_before_anything_runs(
    host: ClientRequests, tmp_path: Path, method: str, params: Any
) -> None:
    answer = await host.serve(ClientRequest(1, method, params))
    assert answer.code == INVALID_PARAMS and f"{method}: bad parameters" in str(answer.error)
    assert not (tmp_path / "work" / "made").exists()
    assert not marked(INSTANCE)


async def test_a_limit_in_digits_is_a_number(host: ClientRequests) -> None:
    created = (await ask(host, "terminal/create", command="echo 12345", outputByteLimit="3")).result["terminalId"]
    assert (await ask(host, WAIT, terminalId=created)).result["exitCode"] == 0
    assert (await ask(host, "terminal/output", terminalId=created)).result["truncated"]
    assert (await ask(host, "terminal/release", terminalId=created)).error is None
