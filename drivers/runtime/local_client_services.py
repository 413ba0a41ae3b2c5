"""Handles what a CLI requests of its client: text files and terminals, in the session's folders only.

A request goes to the session's client where that supports it, else it is handled on this machine. Methods and parameters are
those of the Agent Client Protocol. Whether the CLI may make a request is the codec's decision.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from drivers.contract.client_services import (
    CHECK_PATHS,
    CREATE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    READ,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    WAIT,
    ClientRequest,
    ClientResponse,
    ClientServices,
)
from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.confined_files import ConfinedFolders, NotRegularFile, OutsideFolders, regular_file
from drivers.runtime.file_threads import in_thread
from drivers.runtime.process import Process, Spawner

Result = TypeVar("Result")

OUTLIVE_RUN = frozenset({WAIT, "terminal/kill", "terminal/release"})
"""The requests that are not cancelled with the run: a terminal may outlive it, and an agent may release one as its last act."""
MAX_PENDING, MAX_PENDING_BYTES = 1000, 64 * 1024 * 1024
"""Requests of an agent that may be pending, and the bytes of text in them; a single one may be larger."""
LARGE_RESPONSES, MAX_AT_ONCE = frozenset({READ, "terminal/output"}), 4
"""Methods with long responses, and how many of their requests are handled at a time; the others wait."""
MAX_TERMINALS = 32
"""Terminals of an agent that it has not released."""
MAX_ACCESSES = 4
"""File accesses of an agent at a time; the others wait."""
CHECK_SECONDS = 5.0
"""Seconds for the check of a patch's paths: a file system may not answer."""
MAX_FILE = 32 * 1024 * 1024
MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of a terminal's output that are kept; older output is dropped."""


TOO_MANY = ClientResponse(
    error=f"{MAX_PENDING} requests or {MAX_PENDING_BYTES // 1024 // 1024} MiB in them are pending already; wait for responses",
    code=INTERNAL_ERROR,
)


class RequestError(Exception):
    """A request that fails, with a code of JSON-RPC."""

    def __init__(self, message: str, code: int = INVALID_PARAMS) -> None:
        super().__init__(message)
        self.code = code


class Terminal:
    """A command that runs for the CLI, and the end of its output."""

    def __init__(self, process: Process, limit: int) -> None:
        self.process, self.truncated = process, False
        self.exit: dict[str, Any] | None = None
        self._limit = limit
        self._output = bytearray()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while chunks := await self.process.read_lines():
            self._output += b"".join(chunks)
            if len(self._output) > self._limit:
                del self._output[: len(self._output) - self._limit]
                self.truncated = True
        code = await self.process.exit_code()
        name = signal.Signals(-code).name if -code in set(signal.Signals) else None
        self.exit = {"exitCode": None, "signal": name or str(-code)} if code < 0 else {"exitCode": code, "signal": None}

    @property
    def output(self) -> str:
        # The first character may be cut: the rest of it is dropped.
        kept = self._output.lstrip(bytes(range(0x80, 0xC0))) if self.truncated else self._output
        return kept.decode("utf-8", "replace")

    async def wait(self) -> dict[str, Any]:
        await asyncio.shield(self._reader)
        return self.exit or {"exitCode": None, "signal": None}

    async def end(self) -> None:
        await self.process.close(0.0)
        await self.wait()


class ClientRequests:
    """The requests of one agent. `close` ends every terminal and cancels the requests that wait for the client.

    Parameters:
        folder: The working folder, as a real path.
        env: The environment of terminals.
        others: Folders besides the working folder that requests may use, as real paths.
        client: Handles the requests that the session's client supports.
        wait_until_writable: Returns once the CLI can get a large response, because it has read those before.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        spawner: Spawner,
        others: Sequence[Path] = (),
        client: ClientServices | None = None,
        wait_until_writable: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._folder, self._env, self._spawner, self._client = folder, env, spawner, client
        self._files = ConfinedFolders((folder, *others))
        self._terminals: dict[str, Terminal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_run: set[asyncio.Task[None]] = set()
        self._forwarded: dict[asyncio.Task[ClientResponse], ClientRequest] = {}
        self._closed = False
        self._wait_until_writable = wait_until_writable
        self._large, self._accessing = asyncio.Semaphore(MAX_AT_ONCE), asyncio.Semaphore(MAX_ACCESSES)
        self._pending_bytes = self._creating = self._runs = 0

    @property
    def busy(self) -> bool:
        """Whether the CLI waits for a request of the run under way."""
        return bool(self._in_run)

    def begin(self, request: ClientRequest, answered: Callable[[ClientRequest, ClientResponse], None]) -> None:
        """Handle a request, concurrently with others. `answered` is called with the response.

        It is an error while MAX_PENDING requests, or MAX_PENDING_BYTES, are pending.
        """
        if self._closed:
            # From the last lines of a CLI that has ended.
            return
        refused = len(self._tasks) >= MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES
        task = asyncio.create_task(self._do(request, answered, refused))
        for held in (self._tasks, self._in_run):
            held.add(task)
            task.add_done_callback(held.discard)

    def end_run(self) -> None:
        """Cancel the requests that wait for the client, except those in OUTLIVE_RUN. The CLI gets a response."""
        self._in_run.clear()
        self._runs += 1
        for task, request in self._forwarded.items():
            if request.method not in OUTLIVE_RUN:
                task.cancel()

    async def _do(self, request: ClientRequest, answered: Callable[[ClientRequest, ClientResponse], None], refused: bool) -> None:
        if refused:
            return self._respond(request, TOO_MANY, answered)
        size = _size(request.params)
        self._pending_bytes += size
        try:
            if request.method in LARGE_RESPONSES:
                await self._do_large(request, answered, self._runs)
            else:
                self._respond(request, await self.serve(request), answered)
        finally:
            self._pending_bytes -= size

    async def _do_large(
        self, request: ClientRequest, answered: Callable[[ClientRequest, ClientResponse], None], run: int
    ) -> None:
        """Handle a request whose response is held until the CLI has read the responses before it."""
        async with self._large:
            await self._writable()
            if self._closed:
                return
            if run != self._runs and self._client is not None and self._client.supports(request):
                answer = _run_over(request)
            else:
                answer = await self.serve(request)
            await self._writable()
            self._respond(request, answer, answered)

    async def _writable(self) -> None:
        if self._wait_until_writable is not None:
            await self._wait_until_writable()

    def _respond(
        self, request: ClientRequest, answer: ClientResponse, answered: Callable[[ClientRequest, ClientResponse], None]
    ) -> None:
        # The CLI does not wait any more.
        self._in_run.discard(asyncio.current_task())
        if not self._closed:
            answered(request, answer)

    async def serve(self, request: ClientRequest) -> ClientResponse:
        """The response to a request. Errors are responses too."""
        handler = _HANDLERS.get(request.method)
        try:
            if handler is None:
                raise RequestError(f"{request.method}: not a method of this client", METHOD_NOT_FOUND)
            client = self._client if self._client is not None and self._client.supports(request) else None
            if client is None and request.client_only:
                raise RequestError(f"{request.method}: the session's client does not support it", METHOD_NOT_FOUND)
            params = request.params if request.method == CHECK_PATHS else _validated(request)
            if client is not None:
                run, request = self._runs, await self._confined(request)
                over = (run != self._runs and request.method not in OUTLIVE_RUN) or self._closed
                return _run_over(request) if over else await self._forward(client, request)
            return ClientResponse(await handler(self, params))
        except RequestError as error:
            return ClientResponse(error=str(error), code=error.code)
        except OutsideFolders as error:
            return ClientResponse(error=str(error), code=INVALID_PARAMS)
        except NotRegularFile:
            return ClientResponse(error=f"{request.params['path']!r} is not a regular file", code=INVALID_PARAMS)
        except FileNotFoundError as error:
            return ClientResponse(error=f"{error.filename!r} does not exist", code=RESOURCE_NOT_FOUND)
        except (OSError, AgentUnavailable) as error:
            return ClientResponse(error=str(error), code=INTERNAL_ERROR)
        except ValueError as error:
            return ClientResponse(error=f"{request.method}: bad parameters: {error}", code=INVALID_PARAMS)

    async def close(self) -> None:
        """End every terminal. Idempotent."""
        closed, self._closed = self._closed, True
        self._in_run.clear()
        for task in self._forwarded:
            task.cancel()
        if self._client is not None and not closed:
            # Once: the next agent of the session has the same client.
            self._client.release_terminals()
        terminals, self._terminals = list(self._terminals.values()), {}
        await asyncio.gather(*(terminal.end() for terminal in terminals))

    async def _in_thread(self, access: Callable[[], Result]) -> Result:
        async with self._accessing:
            return await in_thread(access)

    async def _confined(self, request: ClientRequest) -> ClientRequest:
        """The request as it is sent to the client, with a path that is allowed here too.

        Raises OutsideFolders, OSError, ValueError.
        """
        name = "cwd" if request.method == CREATE else "path"
        path = request.params.get(name)
        if request.method == CREATE:
            path = path or str(self._folder)
        if path is None:
            return request
        return replace(request, params={**request.params, name: await self._in_thread(lambda: self._normalized(path))})

    def _normalized(self, path: str) -> str:
        # Without `..`: many clients remove it before they follow links, and would open another file than is checked here.
        path = os.path.normpath(path)
        self._files.exists(path)
        return path

    async def _forward(self, client: ClientServices, request: ClientRequest) -> ClientResponse:
        """The client's response. Clients have various errors for a file that does not exist: they get one code."""
        task = asyncio.create_task(client.serve(request))
        self._forwarded[task] = request
        try:
            await asyncio.wait([task])
        finally:
            del self._forwarded[task]
            task.cancel()
        if task.cancelled():
            return _run_over(request)
        answer = task.result()
        if (
            answer.error is None
            or request.method != READ
            or await self._in_thread(lambda: self._files.exists(request.params["path"]))
        ):
            return answer
        return replace(answer, code=RESOURCE_NOT_FOUND)

    async def _read_file(self, params: Mapping[str, Any]) -> dict[str, Any]:
        text = await self._in_thread(lambda: _read(self._files, params["path"]))
        line, limit = params.get("line"), params.get("limit")
        if line is not None or limit is not None:
            start = max((line or 1) - 1, 0)
            text = "\n".join(text.split("\n")[start : None if limit is None else start + limit])
        return {"content": text}

    async def _write_file(self, params: Mapping[str, Any]) -> dict[str, Any]:
        await self._in_thread(lambda: _write(self._files, params["path"], params["content"]))
        return {}

    async def _check_paths(self, params: Mapping[str, Any]) -> dict[str, Any]:
        def check() -> None:
            for path in params["paths"]:
                self._files.exists(os.path.join(self._folder, path))

        try:
            async with self._spawner.clock.timeout(CHECK_SECONDS):
                await self._in_thread(check)
        except TimeoutError:
            raise RequestError(f"the paths could not be checked within {CHECK_SECONDS:g} s", INTERNAL_ERROR) from None
        return {}

    async def _create(self, params: Mapping[str, Any]) -> dict[str, Any]:
        # The spawner opens it without following a link that has been created since.
        folder = await self._in_thread(lambda: self._files.real_path(params["cwd"])) if params.get("cwd") else self._folder
        given = {variable["name"]: variable["value"] for variable in params.get("env") or ()}
        argv = _shell(params["command"], params.get("args") or ())
        limit = params.get("outputByteLimit")
        if len(self._terminals) + self._creating >= MAX_TERMINALS:
            raise RequestError(
                f"{MAX_TERMINALS} terminals are not released yet; release one with terminal/release", INTERNAL_ERROR
            )
        self._creating += 1
        try:
            process = await self._spawner.spawn(Command(argv, folder, {**self._env, **given}, stdin=b""), lines=False)
        finally:
            self._creating -= 1
        terminal = Terminal(process, MAX_OUTPUT if limit is None else min(limit, MAX_OUTPUT))
        if self._closed:
            await terminal.end()
            raise RequestError("the session has ended", INTERNAL_ERROR)
        terminal_id = f"term_{uuid.uuid4().hex}"
        self._terminals[terminal_id] = terminal
        return {"terminalId": terminal_id}

    async def _output(self, params: Mapping[str, Any]) -> dict[str, Any]:
        terminal = self._terminal(params)
        ended = {"exitStatus": terminal.exit} if terminal.exit is not None else {}
        return {"output": terminal.output, "truncated": terminal.truncated, **ended}

    async def _wait(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._terminal(params).wait()

    async def _kill(self, params: Mapping[str, Any]) -> dict[str, Any]:
        await self._terminal(params).end()
        return {}

    async def _release(self, params: Mapping[str, Any]) -> dict[str, Any]:
        terminal = self._terminal(params)
        del self._terminals[params["terminalId"]]
        await terminal.end()
        return {}

    def _terminal(self, params: Mapping[str, Any]) -> Terminal:
        if params["terminalId"] not in self._terminals:
            raise RequestError(f"there is no terminal {params['terminalId']!r}", RESOURCE_NOT_FOUND)
        return self._terminals[params["terminalId"]]


def _validated(request: ClientRequest) -> dict[str, Any]:
    from drivers.runtime.client_request_params import validated

    return validated(request)


def _size(params: object) -> int:
    """The length of the text in the parameters of a request, whatever an agent has sent as such."""
    return sum(len(value) for value in params.values() if isinstance(value, str)) if isinstance(params, Mapping) else 0


def _run_over(request: ClientRequest) -> ClientResponse:
    return ClientResponse(error=f"{request.method}: the run is over", code=REQUEST_CANCELLED)


def _shell(command: str, args: Any) -> tuple[str, ...]:
    """Both outputs combined, as on a terminal. A command without arguments may be a whole shell line."""
    if args:
        return "/bin/sh", "-c", 'exec "$0" "$@" 2>&1', command, *args
    return "/bin/sh", "-c", f"exec 2>&1\n{command}"


def _read(files: ConfinedFolders, path: str) -> str:
    with regular_file(files.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE:
            raise RequestError(f"{path!r} has more than {MAX_FILE // 1024 // 1024} MiB")
        return file.read().decode("utf-8", "replace")


def _write(files: ConfinedFolders, path: str, content: str) -> None:
    with regular_file(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, parents=True), "wb") as file:
        file.truncate()
        file.write(content.encode())


_HANDLERS: dict[str, Callable[[ClientRequests, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    CHECK_PATHS: ClientRequests._check_paths,
    "fs/read_text_file": ClientRequests._read_file,
    "fs/write_text_file": ClientRequests._write_file,
    "terminal/create": ClientRequests._create,
    "terminal/output": ClientRequests._output,
    "terminal/wait_for_exit": ClientRequests._wait,
    "terminal/kill": ClientRequests._kill,
    "terminal/release": ClientRequests._release,
}
