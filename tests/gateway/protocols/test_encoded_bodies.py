"""Compressed bodies, and bodies of other encodings than UTF-8."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.daemon import RunningGateway, gateway_config, run_gateway

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/execute": {"driver": "echo", "task": "hi"},
    "/v1/responses": {"model": "echo", "input": "hi"},
}


async def test_compressed_bodies_are_decoded(portico: RunningGateway) -> None:
    for path in PATHS:
        for encoding, compress in (("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)):
            body = compress(json.dumps(PATHS[path]).encode())  # type: ignore[operator]
            headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
            answer = await portico.client.post(path, content=body, headers=headers)
            assert answer.status_code == 200 and "hi" in answer.text, (path, encoding)
    # A body in parts.
    compressed = gzip.compress(json.dumps(CHAT).encode())

    async def parts() -> AsyncIterator[bytes]:
        for n in range(0, len(compressed), 7):
            yield compressed[n : n + 7]

    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = await portico.client.post("/v1/chat/completions", content=parts(), headers=headers)
    assert answer.status_code == 200
    # A byte order mark of UTF-8 is left out.
    body = json.dumps(CHAT).encode("utf-8-sig")
    answer = await portico.client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


UNREADABLE: list[Any] = [
    ("br", b"x", 415, "'br' cannot be read here; send it without, or as gzip or deflate"),
    ("zstd", b"x", 415, "'zstd'"),
    ("gzip, gzip", b"x", 415, "'gzip, gzip'"),
    ("gzip", b"{}", 400, "not what its Content-Encoding says"),
    ("gzip", gzip.compress(b"{}" * 99, mtime=0)[:-9], 400, "it ends too early"),
    ("gzip", gzip.compress(b"{}", mtime=0) + b"more", 400, "goes on behind its end"),
]


async def test_what_cannot_be_decoded_is_refused(portico: RunningGateway) -> None:
    for encoding, body, status, text in UNREADABLE:
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        answer = await portico.client.post("/v1/chat/completions", content=body, headers=headers)
        assert (answer.status_code, text in answer.json()["error"]["message"]) == (status, True), answer.text
        assert ("accept-encoding" in answer.headers) == (status == 415), (encoding, body)
    # Other encodings are named.
    for encoding, text in (
        ("utf-16", "it is UTF-16; send it as UTF-8"),
        ("utf-16-le", "it is UTF-16 or UTF-32"),
        ("utf-32", "it is UTF-32; send it as UTF-8"),
        ("latin-1", "it is not UTF-8, by the byte 0xe9 at position"),
    ):
        body = json.dumps({**CHAT, "user": "café"}, ensure_ascii=False).encode(encoding)
        answer = await portico.client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and text in answer.json()["error"]["message"], (encoding, text)


async def test_the_limit_is_that_of_the_decoded_body(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 100_000})) as portico:
        bomb = gzip.compress(b" " * 50_000_000)
        assert len(bomb) < 100_000
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        answer = await portico.client.post("/v1/chat/completions", content=bomb, headers=headers)
        assert answer.status_code == 413 and "decoded body is larger than 100000 bytes (server.max_body)" in answer.text
        whole = {**CHAT, "user": "x" * 99_000}
        answer = await portico.client.post(
            "/v1/chat/completions", content=gzip.compress(json.dumps(whole).encode()), headers=headers
        )
        assert answer.status_code == 200


async def test_a_wrong_base_url_is_told_with_the_right_one(portico: RunningGateway) -> None:
    for path, vendor in (
        ("/chat/completions", "openai"),
        ("/responses", "openai"),
        ("/v1/v1/chat/completions", "openai"),
        ("/openai/v1/models", "openai"),
        ("/v1/chat/completions/chat/completions", "openai"),
        ("/messages", "anthropic"),
        ("/v1/v1/messages", "anthropic"),
        ("/anthropic/v1/messages/count_tokens", "anthropic"),
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = await portico.client.post(path, json=CHAT, headers=headers)
            assert answer.status_code == 404, (path, vendor)
            error = answer.json()["error"]
            assert f"clients of OpenAI is {portico.url}/v1, that of clients of Anthropic is {portico.url}" in error["message"], (
                path,
                vendor,
            )
            assert (answer.json().get("type") == "error") == (vendor == "anthropic"), (path, vendor)
    # Paths of the gateway keep their errors.
    for path in ("/aap/v3/sessions/x/messages/y", "/sessionx/messages/y", "/nothing"):
        answer = await portico.client.post(path, json={})
        assert isinstance(answer.json()["error"], str) and "wrong base URL" not in answer.text
