"""Transcripts: the input and output of a session's CLI, line by line, for bug reports. Off unless an agent's `record` is true."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.private_files import private_directory, private_file
from gateway.security.redaction import SHORTEST, Redactor, redact_patterns

log = logging.getLogger(__name__)

FILE_BYTES = 32 * 1024 * 1024
"""Size at which a file is renamed to `NAME.1.jsonl`, which replaces the previous one: at most two files exist."""
LINE_BYTES = 1024 * 1024
"""Longer lines are cut."""
MIN_SECRET = 8
"""Shorter values of an agent's own variables are not redacted: they are words rather than secrets."""


class Transcripts:
    """The transcripts of a data directory, one file for each session or task."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder, self._redactor = folder, redactor

    def spawner(self, spawner: Spawner, name: str, agent: ConfiguredAgent, redactor: Redactor | None = None) -> Spawner:
        """Return the spawner for a session's processes. It records them if the agent's `record` is true.

        `redactor` is that of the session, by default the gateway's.
        """
        if not agent.settings.record:
            return spawner
        of_agent = Redactor()
        of_agent.register(value for value in agent.settings.env.values() if len(value) >= max(MIN_SECRET, SHORTEST))
        return spawner.with_recorder(Transcript(self._folder / f"{name}.jsonl", (redactor or self._redactor, of_agent)))

    def sessions(self) -> set[str]:
        """Return the ids of the sessions with a transcript."""
        return {file.name.partition(".")[0] for file in self._folder.glob("sess_*.jsonl")}

    def forget(self, name: str) -> None:
        """Delete a session's transcript."""
        for file in _both(self._folder / f"{name}.jsonl"):
            file.unlink(missing_ok=True)

    def forget_tasks(self, before: float) -> None:
        """Delete transcripts of tasks that ended before a time, in seconds since the epoch."""
        for file in self._folder.glob("exec_*.jsonl"):
            if file.stat().st_mtime < before:
                file.unlink(missing_ok=True)


class Transcript:
    """One file of JSON lines: `time`, `pid`, `direction` and `line`.

    drivers/runtime/traffic_recorder.py defines when each method is called.
    """

    def __init__(
        self, file: Path, redactors: Iterable[Redactor], file_bytes: int = FILE_BYTES, line_bytes: int = LINE_BYTES
    ) -> None:
        self._file, self._redactors = file, tuple(redactors)
        self._file_bytes, self._line_bytes = file_bytes, line_bytes
        self._broken = False

    def started(self, pid: int, argv: Sequence[str]) -> None:
        self._add(pid, "start", [" ".join(argv)])

    def sent(self, pid: int, data: bytes) -> None:
        self._add(pid, "to_agent", [_text(line) for line in data.removesuffix(b"\n").split(b"\n")])

    def received(self, pid: int, lines: Sequence[bytes]) -> None:
        self._add(pid, "from_agent", [_text(line) for line in lines])

    def ended(self, pid: int, exit_code: int, stderr: Sequence[str]) -> None:
        self._add(pid, "stderr", stderr)
        self._add(pid, "exit", [str(exit_code)])

    def _add(self, pid: int, direction: str, lines: Sequence[str]) -> None:
        if self._broken or not lines:
            return
        now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds")
        rows = [{"time": now, "pid": pid, "direction": direction, "line": self._clean(line)} for line in lines]
        try:
            self._append("".join(json.dumps(row) + "\n" for row in rows))
        except OSError as error:
            # A transcript that cannot be written must not fail the turn.
            self._broken = True
            log.warning("the transcript %s cannot be written, and ends here: %s", self._file, error.strerror)

    def _append(self, text: str) -> None:
        if not self._file.parent.is_dir():
            private_directory(self._file.parent)
        with suppress(FileNotFoundError):
            if self._file.stat().st_size + len(text) > self._file_bytes:
                os.replace(self._file, _both(self._file)[1])
        with open(private_file(self._file, os.O_WRONLY | os.O_APPEND), "a") as file:
            file.write(text)

    def _clean(self, line: str) -> str:
        for redactor in self._redactors:
            line = redactor.clean(line)
        line = redact_patterns(line)
        # Cut after redaction: a part of a secret would not be found.
        most = self._line_bytes
        return line if len(line) <= most else f"{line[:most]} … and {len(line) - most} more characters"


def _both(file: Path) -> tuple[Path, Path]:
    return file, file.with_suffix(".1.jsonl")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
