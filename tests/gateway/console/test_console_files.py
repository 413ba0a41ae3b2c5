"""The files of the console: how they are served, what the vendored ones are, and how large all are together."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.console.static_files import ROOT, StaticFiles
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

VENDOR = ROOT / "vendor"
OWN = {"LICENSES", "vendor.json", "dompurify.js", "highlight.js"}
"""Files in the folder of the vendored ones that are this project's."""
MAX_BYTES = 400_000
"""The limit of all files together, compressed."""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with run_gateway(gateway_config(tmp_path)) as running:
        yield running


async def without_key(gateway: RunningGateway, method: str, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        return await client.request(method, path, headers={"Accept-Encoding": "identity", **headers})


async def test_pages_and_files_of_the_console(gateway: RunningGateway) -> None:
    # Every path of the console is its page.
    for path in ("/console/", "/console/sessions/sess_1", "/console/a/b/c.html"):
        response = await without_key(gateway, "GET", path)
        assert response.status_code == 200 and response.headers["content-type"] == "text/html; charset=utf-8", path
        assert response.content == (ROOT / "index.html").read_bytes(), path
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert response.headers.get_list("x-content-type-options") == ["nosniff"], path
        assert response.headers["referrer-policy"] == "no-referrer", path
        head = await without_key(gateway, "HEAD", path)
        assert (
            head.status_code == 200 and head.headers["content-length"] == response.headers["content-length"] and not head.content
        ), path
    # Files have their types and are compressed.
    plain = await without_key(gateway, "GET", "/console/assets/vendor/marked.js")
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8" and "content-encoding" not in plain.headers
    async with (
        httpx.AsyncClient(base_url=gateway.url) as client,
        client.stream("GET", "/console/assets/vendor/marked.js", headers={"Accept-Encoding": "gzip"}) as response,
    ):
        assert response.headers["content-encoding"] == "gzip" and response.headers["vary"] == "Accept-Encoding"
        sent = b"".join([chunk async for chunk in response.aiter_raw()])
    assert gzip.decompress(sent) == plain.content and len(sent) < len(plain.content) / 2
    assert response.headers["etag"] != plain.headers["etag"]
    # A file that has not changed is not sent again.
    first = await without_key(gateway, "GET", "/console/assets/vendor/marked.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await without_key(gateway, "GET", "/console/assets/vendor/marked.js", **{"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content and again.headers["etag"] == first.headers["etag"]
    other = await without_key(gateway, "GET", "/console/assets/vendor/marked.js", **{"If-None-Match": '"other"'})
    assert other.status_code == 200
    # Other paths of files are not found.
    for path in (
        "none.js",
        "../routes.py",
        "..%2froutes.py",
        "%2e%2e/routes.py",
        "vendor",
        "vendor/",
        "//etc/passwd",
        ".git",
        "a%00",
    ):
        response = await without_key(gateway, "GET", f"/console/assets/{path}")
        # The client removes dots of a path itself, and what is left is a path of the page.
        assert response.status_code == 404 or response.content == (ROOT / "index.html").read_bytes(), path
    # Browsers are led to the console and programs are not.
    for path in ("/", "/console"):
        led = await without_key(gateway, "GET", path, Accept="text/html,application/xhtml+xml")
        assert (led.status_code, led.headers["location"]) == (307, "/console/")
    program = await without_key(gateway, "GET", "/")
    assert program.status_code == 404 and "error" in program.json()


def test_no_path_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.js").write_text("secret")
    root = tmp_path / "static"
    root.mkdir()
    (root / "inside.js").write_text("shown")
    (root / ".hidden.js").write_text("hidden")
    files = StaticFiles(root)
    found = files.find("inside.js")
    assert found is not None and found.content == b"shown"
    for path in (
        "../outside.js",
        "./inside.js",
        "/inside.js",
        str(tmp_path / "outside.js"),
        ".hidden.js",
        "inside.js\0",
        "",
        "x\n",
    ):
        assert files.find(path) is None


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text("one")
    files = StaticFiles(tmp_path)
    before = files.find("page.js")
    (tmp_path / "page.js").write_text("three")
    after = files.find("page.js")
    assert before is not None and after is not None
    assert (before.content, after.content) == (b"one", b"three") and before.etag != after.etag


async def test_the_console_can_be_switched_off(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"console": False})) as gateway:
        for path in ("/", "/console", "/console/", "/console/assets/vendor/marked.js"):
            assert (await without_key(gateway, "GET", path, Accept="text/html")).status_code == 404


def test_vendored_files_are_the_released_ones() -> None:
    listed = {entry["file"]: entry for entry in json.loads((VENDOR / "vendor.json").read_text())}
    files = {str(file.relative_to(VENDOR)) for file in VENDOR.rglob("*") if file.is_file()}
    assert files == listed.keys() | OWN
    for name, entry in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert (
            entry["name"] and entry["version"] and entry["source"] and entry["licence"] in {"MIT", "BSD-3-Clause", "Apache-2.0"}
        )
    licences = (VENDOR / "LICENSES").read_text()
    for name in ("Preact", "marked", "streaming-markdown", "highlight.js", "DOMPurify", "htm "):
        assert name in licences


def test_all_files_are_small_as_they_are_sent() -> None:
    files, sizes = StaticFiles(), {}
    for path in (str(file.relative_to(ROOT)) for file in ROOT.rglob("*") if file.is_file()):
        found = files.find(path)
        assert found is not None, path
        sizes[path] = len(found.compressed or found.content)
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:10]
    assert sum(sizes.values()) < MAX_BYTES, f"{sum(sizes.values())} bytes; the largest are {largest}"
