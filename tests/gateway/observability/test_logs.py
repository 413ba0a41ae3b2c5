"""The log: request and session ids, text and JSON format, and redaction of secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.observability.logs import JsonFormatter, LogFormatter, TextFormatter, bind_session_id, request_id
from gateway.security import redaction
from gateway.security.redaction import HIDDEN, Redactor, redact_patterns
from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, RunningGateway, gateway_config
from tests.support.requests import create_session, execute, send_turn, session_body, user_message

WriteScenario = Callable[..., str]
SECRET = "registered-secret-1"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ [\w.]+ \[\S+ \S+\]: .+")


def record(text: str, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("gateway.x", logging.INFO, __file__, 1, text, args, None)
    made.fields = fields
    return made


def raised(error: Exception) -> logging.LogRecord:
    made = record("failed")
    try:
        raise error
    except Exception:
        made.exc_info = sys.exc_info()
    return made


def formatters() -> list[LogFormatter]:
    redactor = Redactor()
    redactor.register([SECRET, 'qu"ote-secret-é', KEY])
    return [TextFormatter(redactor), JsonFormatter(redactor)]


@pytest.mark.parametrize("formatter", formatters(), ids=["text", "json"])
@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (record("key %s end", SECRET), "end"),
        (record("%r", {"Authorization": f"Bearer {KEY}"}), "Authorization"),
        (record("Authorization: Bearer never-seen-before-77"), "Authorization"),
        (record("GET /x?api_key=never-seen-before-77&after=12"), "after=12"),
        (record("GET /x?token=never-seen-before-77"), "token="),
        (record("sk-ant-never-seen-before-77 was refused"), "was refused"),
        (record("proxy http://me:never-seen-before-77@host:80/"), "@host:80/"),
        (record('body {"authToken": "never-seen-before-77", "n": 1}'), '"n": 1'),
        (record("field", extra=f"a {SECRET} b"), "field"),
        (record("%s", 'qu"ote-secret-é'), ""),
        (raised(ValueError(f"no login with {SECRET}")), "ValueError"),
        (raised(RuntimeError("Bearer never-seen-before-77")), "RuntimeError"),
    ],
)
def test_secrets_are_redacted_in_log_lines(formatter: LogFormatter, line: logging.LogRecord, kept: str) -> None:
    written = formatter.format(line)
    seen = json.dumps(json.loads(written), ensure_ascii=False) if written.startswith("{") else written
    for secret in (SECRET, KEY, "never-seen-before-77", "ote-secret"):
        assert secret not in seen
    if isinstance(formatter, JsonFormatter) or not vars(line)["fields"]:
        assert HIDDEN in seen
    assert kept in seen.replace('\\"', '"')


@pytest.mark.parametrize(
    "text", ["a key = value", "monkey business", "tokens: 12", '{"input_tokens": 12}', "http://host:80/x", "skill"]
)
def test_text_without_secrets_is_not_changed(text: str) -> None:
    assert redact_patterns(text) == text


@pytest.mark.parametrize("word", ["a", "a-", "ab://", "key", '"secret": "', "bearer ", "sk-", "://a:"])
def test_redaction_time_is_linear_in_the_length_of_the_text(word: str) -> None:
    began = time.process_time()
    redact_patterns(word * 20_000)
    assert time.process_time() - began < 1


async def test_ids_are_inherited_by_tasks() -> None:
    text, structured = formatters()

    async def later() -> str:
        return structured.format(record("x"))

    async def work() -> tuple[str, str]:
        request_id.set("req_1")
        bind_session_id("sess_1")
        return text.format(record("x")), await asyncio.create_task(later())

    line, other = await asyncio.create_task(work())
    assert line.endswith("INFO gateway.x [req_1 sess_1]: x")
    assert {"request_id": "req_1", "session_id": "sess_1"}.items() <= json.loads(other).items()
    assert text.format(record("x")).endswith("[- -]: x")


async def test_secrets_of_a_session_are_redacted_in_its_lines_only() -> None:
    of_session = Redactor(Redactor())
    of_session.register(["secret-of-session-1"])
    audited = record("rm secret-of-session-1")
    audited.audit = True

    async def work() -> None:
        bind_session_id("sess_1", of_session)
        for formatter in formatters():
            assert "rm ***" in formatter.format(record("rm secret-of-session-1"))
            # A client must not be able to hide a decision.
            assert "rm secret-of-session-1" in formatter.format(audited)

    await asyncio.create_task(work())
    for formatter in formatters():
        assert "rm secret-of-session-1" in formatter.format(record("rm secret-of-session-1"))


def test_line_breaks_in_messages_are_escaped() -> None:
    text, structured = formatters()
    for line in (text.format(record("a\n2026-11-20 INFO forged\r")), structured.format(record("a\nb"))):
        assert "\n" not in line
    trace = text.format(raised(ValueError("a\nERROR forged"))).splitlines()
    assert all(row.startswith("    ") for row in trace[1:])


async def test_every_response_has_a_request_id(portico: RunningGateway) -> None:
    for path in ("/healthz", "/nothing", "/session/none", "/sessions?limit=x"):
        made = (await portico.client.get(path)).headers["x-request-id"]
        assert re.fullmatch(r"req_[0-9a-f]{16}", made)
    refused = await portico.client.put("/session", json={}, headers={"X-Request-Id": "mine-1:2/3"})
    assert refused.headers["x-request-id"] == "mine-1:2/3"
    for odd in ("", "a b", "x" * 129, "é", "a;b", '"'):
        answer = await portico.client.get("/healthz", headers={"X-Request-Id": odd.encode("latin-1")})
        assert answer.headers["x-request-id"].startswith("req_"), odd


async def test_internal_error_is_logged_once_and_counted(
    portico: RunningGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(portico.gateway.sessions, "page", broken)
    answer = await portico.client.get("/sessions", headers={"X-Request-Id": "mine-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-1")
    assert sum("out of order" in str(line.exc_info) for line in caplog.records) == 1
    labels = {"method": "GET", "route": "/sessions", "status": "500"}
    assert portico.gateway.metrics.registry.get_sample_value("portico_http_requests_total", labels) == 1


@pytest.mark.parametrize("form", ["text", "json"])
async def test_daemon_logs_only_in_the_configured_format(
    daemon: Daemon, tmp_path: Path, write_scenario: WriteScenario, form: str
) -> None:
    name = write_scenario(
        {"when": "fail", "steps": [{"stop": {"reason": "error", "message": "bad {options.token}"}}]}, [{"text": "ok"}]
    )
    write_config(tmp_path, gateway_config(tmp_path, server={"log_format": form, "log_level": "debug"}))
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name, "token": SECRET}))["sessionId"]
        await send_turn(client, session, "fail", agent={"options": {"token": "later-secret-22"}})
        await send_turn(client, session, "x", headers={})
        await execute(client, "x", "echo")
        await client.get(f"/session/{session}?api_key=in-the-query-333", headers={"Authorization": "Bearer unknown-key-4444"})
        await client.put("/session", json=session_body(options={"scenario": "later-secret-22"}))
        await client.post(f"/session/{session}", json={"messages": [user_message("x")]}, headers={"X-Request-Id": "mine-5"})
    # Data that is not HTTP, which uvicorn itself logs.
    _, writer = await asyncio.open_connection("127.0.0.1", int(daemon.url.rsplit(":", 1)[1]))
    writer.write(b"\x00\x01 nonsense\r\n\r\n")
    await writer.drain()
    writer.close()
    assert await daemon.stop() == 0
    lines = daemon.stderr.decode().splitlines()
    for secret in (KEY, SECRET, "later-secret-22", "in-the-query-333", "unknown-key-4444"):
        assert secret not in daemon.stderr.decode()
    if form == "text":
        assert all(LINE.fullmatch(line) or line.startswith("    ") for line in lines), lines
        assert any(f"[mine-5 {session}]: POST /session/{session}: 200" in line for line in lines)
        return
    found = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "request_id", "session_id", "message"} <= line.keys() for line in found)
    (turn,) = [line for line in found if line["request_id"] == "mine-5" and line["logger"] == "gateway.access_log"]
    assert (turn["session_id"], turn["route"], turn["status"]) == (session, "/session/{session_id}", 200)
    assert any(line["logger"].startswith("uvicorn") for line in found)


FRAGMENTS = (
    *("bearer", "sk-", "pk-", "rk-", "aiza", "key", "key=", "token", "token=", "secret", "secret=", "password", "password="),
    *("api_key", "access_token", "authorization", '"', ":", "=", '\\"', "://", "u:p@", "@", "/", " ", "\t", "-", "_", "x"),
    *("0123456789abcdefghijklmnopqrstuvwxyz", "en", "tok", "\u00e9", "\u0130", "\u0131", "\u00df"),
)
"""Parts of what the patterns match, and letters whose upper or lower case has several letters or is ASCII."""
SAME_LETTERS = str.maketrans({"s": "\u017f", "k": "\u212a"})
"""Letters other than ASCII's that match as `s` and `k` where case is ignored."""


def _varied(fragment: str, chosen: random.Random) -> str:
    return chosen.choice((str, str.upper, str.title, lambda text: text.translate(SAME_LETTERS)))(fragment)


def test_texts_that_are_not_searched_for_patterns_have_none() -> None:
    chosen, redacted, unchanged = random.Random(7), 0, 0
    for _ in range(5_000):
        text = "".join(_varied(chosen.choice(FRAGMENTS), chosen) for _ in range(chosen.randint(1, 7)))
        expected = redaction._PATTERNS.sub(lambda found: "".join(part for part in found.groups() if part) + HIDDEN, text)
        assert redact_patterns(text) == expected, ascii(text)
        redacted, unchanged = redacted + (expected != text), unchanged + (expected == text and text.isascii())
    assert redacted > 100 and unchanged > 100


@pytest.mark.parametrize("text", ["S\u212a-", "\u017fk-", "to\u212aen=", "\u212aey=", "\u017fecret=", "pa\u017fsword="])
def test_letters_that_match_as_ascii_letters_hide_no_secret(text: str) -> None:
    assert "0123456789abcdefghij" not in redact_patterns(text + "0123456789abcdefghij")


async def test_the_first_bodies_cause_no_warning(daemon: Daemon) -> None:
    """Their models are built then (gateway/protocols/json_bodies.py)."""
    await daemon.start()
    async with daemon.client() as client:
        for path, body in (("/aap/v3/sessions", {"agent": {"name": "echo"}}), ("/v1/keys", {"name": "phone"})):
            assert (await client.post(path, json=body)).status_code == 201
        assert (await client.get("/openapi.json")).status_code == 200
    assert await daemon.stop() == 0
    assert b"WARNING" not in daemon.stderr
