"""Logging: one format for all loggers, those of libraries included, with request and session ids, and with secrets redacted."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from gateway.private_files import private_file
from gateway.security.redaction import Redactor, current_redactor, redact_patterns, redactor_of_session
from gateway.terminal_text import json_text, one_line

MAX_LOG_FILE = 8 * 1024 * 1024
"""Bytes of a log file at which the next one begins."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
session_id: ContextVar[str | None] = ContextVar("session_id", default=None)


def bind_session_id(name: str, redactor: Redactor | None = None) -> None:
    """Set the session id (or task id of `/v1/execute`) for the log lines of this asyncio task and of tasks that it starts.

    `redactor` is that of the session, for these lines and for errors.
    """
    session_id.set(name)
    redactor_of_session.set(redactor)


class LogFormatter(logging.Formatter):
    """Redacts whole lines, tracebacks included. `fields` in the `extra` of a record are added to its JSON object.

    With `audit` in the `extra`, secrets of the session are not redacted: its client chooses them.
    """

    default_msec_format = "%s.%03d"

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def _clean(self, text: str, record: logging.LogRecord) -> str:
        redactor = self._redactor if getattr(record, "audit", False) else current_redactor(self._redactor)
        return redact_patterns(redactor.clean(text))

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class TextFormatter(LogFormatter):
    """`TIME LEVEL LOGGER [REQUEST SESSION]: MESSAGE`, with `-` for a missing id. Lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        # Line breaks are escaped: input of a client or an agent must not be able to forge a line of the log.
        ids = f"{request_id.get() or '-'} {session_id.get() or '-'}"
        message = self._clean(record.getMessage(), record)
        line = one_line(f"{self.formatTime(record)} {record.levelname} {record.name} [{ids}]: {message}")
        trace = self._clean(self._trace(record), record)
        return line + "".join(f"\n    {one_line(row)}" for row in trace.splitlines())


class JsonFormatter(LogFormatter):
    """One JSON object a line, with control characters as JSON's own escape sequences."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": request_id.get(),
            "session_id": session_id.get(),
            "message": self._clean(record.getMessage(), record),
        }
        for name, value in getattr(record, "fields", {}).items():
            line[name] = self._clean(value, record) if isinstance(value, str) else value
        if trace := self._trace(record):
            line["exception"] = self._clean(trace, record)
        return json_text(json.dumps(line))


class _LogFile(logging.FileHandler):
    """A file of mode 0600. When it has MAX_LOG_FILE bytes it is renamed to NAME.1, which replaces the previous one."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # `emit` is called under the handler's lock.
        if self.stream is not None and self.stream.tell() >= MAX_LOG_FILE:
            self.close()
            with suppress(OSError):
                os.replace(self.baseFilename, f"{self.baseFilename}.1")

    def _open(self) -> TextIOWrapper:
        return open(private_file(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8", errors="replace")


def set_up_logging(level: str, form: str, redactor: Redactor, file: Path | None = None) -> logging.Handler:
    """Log to standard error, or to a file, and what is a warning or worse to standard error too.

    `level` is a name such as `info`, `form` is `text` or `json`. Returns the handler of standard error. Raises OSError if the
    file cannot be opened.
    """
    errors = logging.StreamHandler()
    handlers: list[logging.Handler] = [errors]
    if file is not None:
        handlers.append(_LogFile(file))
        errors.setLevel(logging.WARNING)
    for handler in handlers:
        handler.setFormatter((JsonFormatter if form == "json" else TextFormatter)(redactor))
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    logging.captureWarnings(True)
    for chatty in ("sse_starlette", "asyncio", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    return errors
