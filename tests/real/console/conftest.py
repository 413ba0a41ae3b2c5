"""Fixtures: for each module, a daemon with the real claude and codex, their model servers, and a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Browser, Page, sync_playwright

from tests.console.checked_pages import Windows
from tests.console.conftest import FLAGS
from tests.console.console_daemon import ConsoleDaemon
from tests.model_server import openai
from tests.model_server.openai import OpenAIServer
from tests.model_server.scenarios import Dialogue, Failure, Scenario, Step, ToolUse, text_step
from tests.real import conftest as claude_fixtures
from tests.real.browser import find_browser
from tests.real.clis import BIN, require
from tests.real.codex import conftest as codex_fixtures
from tests.real.console_windows import WIDE
from tests.real.models import Model, model_on_loopback
from tests.real.processes import tear_down


def _read_mentioned(dialogue: Dialogue) -> Step:
    """Call the tool Read for the file that the user's last message mentions."""
    mention = re.search(r"@(\S+)", dialogue[-1].last_text)
    assert mention is not None, dialogue[-1]
    return Step((ToolUse("Read", {"file_path": mention[1]}),), chunk=5000)


def _overloaded(dialogue: Dialogue) -> Step:
    """Fail, unless it is a message that was sent before."""
    sent = sum("[[overloaded]]" in text for turn in dialogue for text in turn.texts)
    if sent > 1:
        return text_step("Now it works.")
    return Step(failure=Failure(429, "overloaded_error", "The servers are overloaded."))


OVERLOADED = {"overloaded": Scenario((_overloaded,))}
CALLS = {**OVERLOADED, "readmentioned": Scenario((_read_mentioned, text_step("I have read it.")))}

RULES = [{"tool": "Bash", "when": {"command": "rm *"}, "decide": "deny", "reason": "Move it to the trash."}]


@dataclass
class Real:
    """The daemon, and for each CLI its model server and its folders."""

    daemon: ConsoleDaemon
    claude: Model
    codex: OpenAIServer
    claude_home: claude_fixtures.Home
    codex_home: codex_fixtures.Home


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own: that of the tests has none while Playwright runs in it."""
    with start_blocking_portal() as found:
        yield found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, portal: BlockingPortal) -> Iterator[Real]:
    """A daemon with the agents `claude`, `codex` and `guarded`, which is claude with rules. It has probed them."""
    folder = tmp_path_factory.mktemp("real")
    for name in ("claude", "codex"):
        (folder / name).mkdir()
    with (
        portal.wrap_async_context_manager(model_on_loopback(CALLS)) as claude_model,
        portal.wrap_async_context_manager(openai.model_server(OVERLOADED)) as codex_model,
    ):
        claude_home = claude_fixtures.make_home(folder / "claude", require(BIN / "claude"), claude_model.url)
        # The CLI repeats a request that fails ten times, for minutes.
        claude_home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
        codex_home = codex_fixtures.make_home(folder / "codex", require(BIN / "codex"), codex_model.url)
        # The CLI first runs an allowed command in its own sandbox, which an installed bwrap 0.8 cannot make below /tmp. It
        # repeats the command without a sandbox only if the failure comes within some milliseconds.
        codex_home.agent["options"]["sandbox"] = "danger-full-access"
        guarded = {**claude_home.agent, "policy": RULES}
        agents = {"claude": claude_home.agent, "codex": codex_home.agent, "guarded": guarded}
        daemon = ConsoleDaemon(folder / "daemon", agents=agents).start()
        try:
            daemon.api.timeout = 120
            assert daemon.api.get("/meta").status_code == 200
            yield Real(daemon, claude_model, codex_model, claude_home, codex_home)
        finally:
            daemon.stop()
            # No process of a CLI remains.
            for home in (claude_home.path, codex_home.path):
                portal.call(tear_down, home, [])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium. It ends with the module: the thread of its driver has no other event loop."""
    program = find_browser()
    if program is None:
        pytest.skip("no chromium or chrome on PATH; on Debian: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def windows(browser: Browser, real: Real) -> Iterator[Windows]:
    """Opens windows. At the end, the test fails for any error of their pages, and any request to another host."""
    found = Windows(browser, real.daemon.url)
    yield found
    found.close()
    assert not found.problems


@pytest.fixture
def page(windows: Windows) -> Page:
    """The console in a wide window, signed in."""
    return windows.open(viewport=WIDE)
