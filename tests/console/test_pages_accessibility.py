"""The pages with what they show when they are used: axe-core finds nothing, and nothing is wider than a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.test_accessibility import AXE, violations
from tests.console.test_agents_page import NODES

RULES = [{"tool": "shell", "when": {"command": "rm *"}, "decide": "deny", "reason": "No."}, {"tool": "lookup", "decide": "allow"}]
LONG = "a_long_name_without_any_space_" * 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    """A daemon with rules, and with an agent that cannot be used."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make .clis/console/.installed")
    agents = {"guarded": {"driver": "script", "policy": RULES}, "broken": {"driver": "claude", "program": f"/opt/{LONG}"}}
    found = ConsoleDaemon(tmp_path_factory.mktemp("daemon"), agents=agents).start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def session(daemon: ConsoleDaemon) -> str:
    call = {"name": "shell", "id": "call", "input": {"command": f"echo {LONG}", "list": [{"a": 1}, None]}, "result": LONG}
    steps = [{"thinking": "hm"}, {"text": f"Some text {LONG}"}, {"tool_call": call}, {"title": f"A title {LONG}"}]
    found = daemon.new_session(steps, agent_fields={"tools": [{"name": "shell", "trust": True}]})
    daemon.send(found, f"begin {LONG}")
    return found


def opened_event(page: Page) -> None:
    page.locator(".row-list-row", has_text="tool_call").first.click()
    expect(page.locator(".row-list-detail")).to_be_visible()


def frames(page: Page) -> None:
    page.get_by_role("tab", name="As frames").click()
    expect(page.locator(".event-kind", has_text="turn_stop")).to_be_visible()


def requests(page: Page) -> None:
    page.get_by_role("tab", name="As curl").click()
    expect(page.locator("[data-request=turn]")).to_be_visible()


def replay(page: Page) -> None:
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("Speed of the replay").select_option("steps")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("button", name="Next event")).to_be_enabled()


def known_agents(page: Page) -> None:
    expect(page.get_by_role("article", name="broken")).to_be_visible()
    expect(page.get_by_role("region", name="Live agents", exact=True)).to_be_visible()


def nodes(page: Page) -> None:
    shown = [{**node, "labels": [LONG], "agents": [LONG, "echo"]} for node in NODES]
    page.route("**/v1/nodes", lambda route: route.fulfill(json={"nodes": shown}))
    page.reload()
    expect(page.get_by_role("heading", name="Nodes 3")).to_be_visible()
    known_agents(page)


def stop(page: Page) -> None:
    page.get_by_role("button", name="Stop script").first.click()


def checked_command(page: Page) -> None:
    page.get_by_label("Command", exact=True).fill(f"git status && rm {LONG} | sh")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".check-answer")).to_be_visible()


def opened_decision(page: Page) -> None:
    page.locator(".audit-line").first.click()
    expect(page.locator(".audit-detail")).to_be_visible()


def charts(page: Page) -> None:
    expect(page.locator("figure").first).to_be_visible()


def tables(page: Page) -> None:
    page.get_by_role("button", name="Show as tables").click()


def new_key(page: Page) -> None:
    page.get_by_label("Name of the client").fill(f"key{page.evaluate('Date.now()')}")
    page.get_by_role("button", name="Add a key").click()
    expect(page.get_by_test_id("new-key")).to_be_visible()


STATES: list[tuple[str, Callable[[Page], None]]] = [
    ("events", opened_event),
    ("events", frames),
    ("events", requests),
    ("events", replay),
    ("agents", known_agents),
    ("agents", nodes),
    ("agents", stop),
    ("policy", checked_command),
    ("audit", opened_decision),
    ("metrics", charts),
    ("metrics", tables),
    ("keys", new_key),
]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light"), (820, "dark")])
@pytest.mark.parametrize(("where", "use"), STATES, ids=[use.__name__ for _, use in STATES])
def test_what_a_page_shows(
    windows: Windows, session: str, where: str, use: Callable[[Page], None], width: int, scheme: Any
) -> None:
    path = f"sessions/{session}/events" if where == "events" else where
    page = windows.open(f"/console/{path}", viewport={"width": width, "height": 900}, color_scheme=scheme)
    use(page)
    assert not violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
