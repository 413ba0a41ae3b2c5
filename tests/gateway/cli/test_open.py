"""`portico open`: the link that signs a browser in, and how the browser gets it."""

from __future__ import annotations

import html
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import write_config
from tests.support.daemon import Daemon, gateway_config
from tests.support.portico_command import PorticoCommand


@pytest.fixture
async def serving(daemon: Daemon) -> AsyncIterator[Daemon]:
    yield await daemon.start()


def open_command(daemon: Daemon, *arguments: str, **env: str) -> PorticoCommand:
    return PorticoCommand(daemon.home, "open", "--port", str(urlsplit(daemon.url).port), *arguments, env=env)


async def sign_in(url: str, link: str) -> int:
    page, _, code = link.partition("#code=")
    assert page == f"{url}/console/"
    async with httpx.AsyncClient(base_url=url) as client:
        return (await client.post("/v1/sign-ins", json={"code": code})).status_code


def link_in(file: Path) -> str:
    """Return where a page leads that nobody else can read."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = re.search(r'content="0; url=([^"]+)"', file.read_text())
    assert found is not None
    return html.unescape(found[1])


async def test_the_printed_link_signs_in_once(serving: Daemon) -> None:
    code, out, err = await open_command(serving, "--print").run()
    assert (code, err) == (0, "")
    assert [await sign_in(serving.url, out.strip()) for _ in range(2)] == [201, 401]


async def test_without_a_screen_the_link_is_printed(serving: Daemon) -> None:
    code, out, _ = await open_command(serving).run()
    assert code == 0 and "no browser here" in out
    assert await sign_in(serving.url, out.split()[-1]) == 201


async def test_the_browser_gets_a_private_file_and_never_the_code(serving: Daemon, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}\n')
    browser.chmod(0o700)
    code, out, err = await open_command(serving, BROWSER=str(browser)).run()
    assert code == 0, err
    [argument] = seen.read_text().split()
    assert argument.startswith("file:///") and "code" not in argument
    link = link_in(Path(urlsplit(argument).path))
    assert link == out.split()[-1] and await sign_in(serving.url, link) == 201


async def test_what_is_missing_is_said(serving: Daemon, tmp_path: Path) -> None:
    port = str(urlsplit(serving.url).port)
    other = PorticoCommand(tmp_path, "open", "--port", port, env={"PORTICO_API_KEY": "another-key-0123456789"})
    code, _, err = await other.run()
    assert code == 1 and "does not know this key" in err
    code, _, err = await PorticoCommand(tmp_path, "open", "--port", "0").run()
    assert code == 1 and "--port" in err
    await serving.stop()
    code, _, err = await open_command(serving).run()
    assert code == 1 and "portico serve" in err
    write_config(tmp_path, gateway_config(tmp_path, server={"console": False}))
    code, _, err = await open_command(serving).run()
    assert code == 1 and "server.console" in err
