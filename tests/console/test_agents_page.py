"""The agents page: what is known of each agent, the agents that run and their end, and the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.named_key import open_with_named_key

BROKEN = "/opt/no-such-folder/claude"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleDaemon]:
    """A daemon with an agent whose program is missing, and agents that run in different places."""
    agents = {
        "broken": {"driver": "claude", "program": BROKEN},
        "contained": {"driver": "echo", "run_in": "docker", "container": {"image": "localhost/app:1"}, "worktree": True},
        "enclosed": {"driver": "echo", "run_in": "bwrap"},
    }
    found = ConsoleDaemon(tmp_path_factory.mktemp("daemon"), agents=agents).start()
    yield found
    found.stop()


@pytest.fixture
def agents(windows: Windows) -> Page:
    context = windows.context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return windows.open("/console/agents", context)


def test_each_agent_has_what_is_known_of_it(agents: Page, daemon: ConsoleDaemon) -> None:
    known = {agent["name"]: agent for driver in daemon.api.get("/v1/drivers").json()["drivers"] for agent in driver["agents"]}
    card = agents.get_by_role("article", name="script")
    expect(card).to_contain_text("can be used")
    expect(card).to_contain_text(known["script"]["version"])
    broken = agents.get_by_role("article", name="broken")
    expect(broken).to_contain_text("cannot be used")
    expect(broken).to_contain_text(known["broken"]["problem"])
    for name in (name for name, agent in known.items() if not agent["installed"] and not agent["configured"]):
        expect(agents.locator(".missing li", has_text=name).first).to_be_visible()


def test_each_agent_has_where_it_runs_and_whether_it_has_worktrees(agents: Page) -> None:
    for name, place in (
        ("script", "on this machine, without a sandbox"),
        ("contained", "in a container of its own (docker, localhost/app:1)"),
        ("enclosed", "in namespaces of its own (bwrap)"),
    ):
        card = agents.get_by_role("article", name=name)
        expect(card).to_contain_text(f"Runs{place}")
        if name == "contained":
            expect(card).to_contain_text("each session works in one of its own")
        else:
            expect(card).not_to_contain_text("Worktrees")


def test_the_mending_command_is_copied(agents: Page, daemon: ConsoleDaemon) -> None:
    (driver,) = [driver for driver in daemon.api.get("/v1/drivers").json()["drivers"] if driver["driver"] == "claude"]
    button = agents.get_by_role("article", name="broken").get_by_role("button", name="Copy the command for broken")
    button.click()
    expect(agents.get_by_role("article", name="broken").get_by_role("button", name="Copied")).to_be_visible()
    assert agents.evaluate("navigator.clipboard.readText()") == driver["install"]


def test_probe_reads_the_programs_anew(agents: Page) -> None:
    expect(agents.get_by_role("article", name="script")).to_be_visible()
    with agents.expect_response(lambda response: response.url.endswith("/v1/drivers?refresh=true")) as answer:
        agents.get_by_role("button", name="Probe all programs").click()
    assert answer.value.ok
    expect(agents.get_by_role("button", name="Probe all programs")).to_be_enabled()
    expect(agents.get_by_role("article", name="script")).to_be_visible()


def test_a_live_agent_is_shown_and_stopped(agents: Page, daemon: ConsoleDaemon) -> None:
    session = daemon.new_session([{"text": "ready"}, {"hang": {}}])
    daemon.send(session, "a live one", wait=False)
    line = agents.get_by_role("row", name="a live one")
    expect(line).to_contain_text("running")
    expect(line).to_contain_text("MiB")
    (live,) = [agent for agent in daemon.api.get("/v1/live-agents").json()["agents"] if agent["sessionId"] == session]
    expect(line).to_contain_text(str(live["pid"]))
    line.get_by_role("button", name="Stop script").click()
    dialog = agents.get_by_role("dialog", name="Stop script?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    agents.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert daemon.session(session)["x-portico"]["state"] == "running"
    line.get_by_role("button", name="Stop script").click()
    dialog.get_by_role("button", name="Stop the agent").click()
    expect(line).to_be_hidden()
    assert not psutil.pid_exists(live["pid"])
    assert daemon.session(session)["x-portico"]["stopReason"] == "error"


def test_an_agent_that_waits_links_to_its_session(agents: Page, daemon: ConsoleDaemon) -> None:
    steps = [{"tool_call": {"name": "lookup", "input": {"query": "x"}}}]
    session = daemon.new_session(steps, agent_fields={"tools": [{"name": "lookup"}]})
    daemon.send(session, "one that waits")
    line = agents.get_by_role("row", name="one that waits")
    expect(line).to_contain_text("waits for its client")
    line.get_by_role("link", name="one that waits").click()
    expect(agents).to_have_url(f"{daemon.url}/console/sessions/{session}")


def test_the_diagnosis(agents: Page, daemon: ConsoleDaemon) -> None:
    report = daemon.api.get("/v1/diagnosis").json()
    agents.get_by_role("button", name="Run the diagnosis").click()
    checks = agents.locator(".check-item")
    expect(checks.filter(has_text=report["checks"][0]["name"]).first).to_be_visible(timeout=30_000)
    expect(checks).to_have_count(len(report["checks"]) + len(report["agents"]))
    expect(checks.filter(has_text=BROKEN).first).to_contain_text("problem")


def test_a_named_key_sees_its_own_agents_and_no_diagnosis(windows: Windows, daemon: ConsoleDaemon) -> None:
    windows.expect("403")
    session = daemon.new_session([{"text": "ready"}])
    daemon.send(session, "of the administrator")
    page = open_with_named_key(windows, daemon, "/console/agents")
    expect(page.get_by_role("article", name="script")).to_be_visible()
    expect(page.get_by_text("No agent is running now")).to_be_visible()
    page.get_by_role("button", name="Run the diagnosis").click()
    expect(page.get_by_text("Only for the administrator")).to_be_visible()


NODES = [
    {
        "id": f"{number}be5e2a1f0c94d6f8f4c1c9e2a7b4d5e",
        "address": f"http://10.0.0.{number}:7700",
        "own": number == 1,
        "state": state,
        "agents": ["claude", "echo"],
        "labels": ["gpu"],
        "folders": [],
        "version": "0.1.0",
        "liveAgents": 3,
        "runningTurns": 1,
        "agentSlots": 16,
        "sessions": 4,
        "differs": differs,
        "startedAt": "2026-11-23T09:30:00.000Z",
        "heartbeatAt": "2026-11-23T10:12:41.512Z",
        "heartbeatAge": age,
    }
    for number, state, differs, age in ((1, "ready", [], 1.4), (2, "draining", ["policy"], 2.0), (3, "silent", [], 75.2))
]
"""As `/v1/nodes` of a cluster answers."""


def test_the_nodes_of_a_cluster_are_shown(windows: Windows) -> None:
    context = windows.context(viewport={"width": 1440, "height": 900})
    context.route("**/v1/nodes", lambda route: route.fulfill(json={"nodes": NODES}))
    page = windows.open("/console/agents", context)
    table = page.get_by_role("region", name="Nodes").get_by_role("table")
    expect(page.get_by_role("heading", name="Nodes 3")).to_be_visible()
    first, second, third = (table.get_by_role("row", name=f"http://10.0.0.{number}:7700") for number in (1, 2, 3))
    for text in ("this one", "gpu", "1be5e2a1", "ready", "3 of 16", "claude, echo", "0.1.0", "1 s ago"):
        expect(first).to_contain_text(text)
    expect(second).to_contain_text("draining")
    expect(second).to_contain_text("other policy")
    expect(third).to_contain_text("silent")
    expect(third).to_contain_text("1 min 15 s ago")
    expect(third).not_to_contain_text("this one")


def test_a_daemon_that_is_no_node_shows_no_nodes(windows: Windows) -> None:
    context = windows.context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    with page.expect_response(lambda response: response.url.endswith("/v1/nodes")) as answer:
        page.goto("/console/agents")
    assert answer.value.json() == {"nodes": []}
    expect(page.get_by_role("article", name="script")).to_be_visible()
    expect(page.get_by_role("heading", name="Nodes")).to_have_count(0)
