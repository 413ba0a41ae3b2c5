"""The real codex in the web console: a command with its output while it runs, a patch as a diff, and a restart of the daemon."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.conftest import write_config
from tests.console.checked_pages import Windows
from tests.model_server.openai import model_server
from tests.model_server.openai_scenarios import SCENARIOS
from tests.real.codex.conftest import Home
from tests.real.codex.test_codex_calls import CALLS
from tests.real.console_windows import ANSWER_MS, begin, expect_end, send, use_console, waiting_call


@pytest.fixture
async def model() -> Any:
    async with model_server({**SCENARIOS, **CALLS}) as server:
        yield server


async def test_a_patch_is_a_diff_with_line_numbers(home: Home) -> None:
    path = home.work / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))

    def steps(windows: Windows) -> None:
        page = begin(windows, "Codex", "[[update]]")
        card = waiting_call(page)
        for text in ("line 19", "twenty", "20"):
            expect(card.locator(".diff")).to_contain_text(text)
        card.get_by_role("button", name="Allow", exact=False).first.click()
        expect_end(page, "Done.")
        assert "twenty" in path.read_text()

    await use_console((await home.daemon()).url, steps)


async def test_output_is_seen_while_the_command_runs(home: Home) -> None:
    # The CLI first runs an allowed command in its own sandbox, which an installed bwrap 0.8 cannot make below /tmp.
    home.agent["options"]["sandbox"] = "danger-full-access"
    done = home.work / "done"
    # The CLI does not report what a command puts out in its first milliseconds.
    line = f"sleep 0.5; echo one; until test -e {done}; do sleep 0.05; done; echo two"

    def steps(windows: Windows) -> None:
        page = begin(windows, "Codex", f"[[run:{line}]]")
        waiting_call(page).get_by_role("button", name="Allow", exact=False).first.click()
        tool = page.locator(".tool")
        expect(tool.locator(".tool-section").last).to_contain_text("one", timeout=ANSWER_MS)
        expect(tool).to_contain_text("Running")
        done.touch()
        expect_end(page, "The command ran.")
        expect(tool.locator(".tool-section").last).to_contain_text("two")

    await use_console((await home.daemon()).url, steps)


async def test_a_session_goes_on_after_the_daemon_was_killed(home: Home) -> None:
    daemon, loop = await home.daemon(), asyncio.get_running_loop()

    async def restart() -> None:
        await daemon.kill()
        # At the same address.
        write_config(home.base, home.config(server={"port": urlsplit(daemon.url).port}))
        await daemon.start()

    def steps(windows: Windows) -> None:
        page = begin(windows, "Codex", "[[plain]] one")
        expect_end(page, "Hello from the model")
        windows.expect("ERR_|Failed to load")
        asyncio.run_coroutine_threadsafe(restart(), loop).result(60)
        send(page, "[[recall]] two")
        expect(page.get_by_role("main")).to_contain_text("Before this one: [[plain]] one", timeout=ANSWER_MS)

    await use_console(daemon.url, steps)
