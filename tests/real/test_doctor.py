"""`portico doctor --try` with the real claude and gemini, in its own process and by a daemon."""

from __future__ import annotations

import json

import pytest

from tests.conftest import write_config
from tests.real.conftest import DUMMY_KEY, Home
from tests.real.gemini import KEY, Gemini
from tests.real.processes import processes_of
from tests.real.test_claude_meta import PINNED
from tests.support.doctor_report import doctor_command


@pytest.mark.parametrize("served", [False, True], ids=["here", "daemon"])
async def test_claude(home: Home, served: bool) -> None:
    write_config(home.base, home.config())
    port = (await home.daemon()).url.rpartition(":")[2] if served else "0"
    report = await doctor_command(home.base, "--try", "--port", port)
    assert report.is_well and (report["daemon"] is not None) is served
    [claude] = [agent for agent in report["agents"] if agent["driver"] == "claude"]
    assert (claude["state"]["version"], claude["state"]["logged_in"]) == (PINNED, True)
    assert claude["state"]["models"]
    assert claude["trial"]["answer"] and claude["trial"]["error"] is None
    assert DUMMY_KEY not in json.dumps(report)
    if not served:
        assert not processes_of(home.path)


async def test_claude_without_its_server(home: Home) -> None:
    # Nothing listens on the port 9.
    home.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    write_config(home.base, home.config())
    report = await doctor_command(home.base, "--try")
    found = report.check("claude")
    assert (report.code, found["status"]) == (1, "problem")
    assert "failed after" in found["details"][-1] and "connect" in found["details"][-1].lower(), found
    assert found["command"].endswith(f"run --config {home.base}/config.toml claude hello")


async def test_claude_without_a_login(home: Home) -> None:
    del home.env["ANTHROPIC_API_KEY"]
    write_config(home.base, home.config())
    report = await doctor_command(home.base, "--try")
    found = report.check("claude")
    assert (report.code, found["status"], found["command"]) == (1, "problem", "claude auth login --claudeai")
    assert "not logged in" in found["text"]


async def test_gemini(gemini: Gemini) -> None:
    write_config(gemini.base, gemini.config())
    report = await doctor_command(gemini.base, "--try")
    assert report.is_well
    [found] = [agent for agent in report["agents"] if agent["driver"] == "gemini"]
    assert found["state"]["version"] and found["state"]["models"]
    assert found["trial"]["answer"] and found["trial"]["error"] is None
    assert KEY not in json.dumps(report)
    assert not processes_of(gemini.home)


async def test_gemini_without_a_login(gemini: Gemini) -> None:
    # With an address of its own, the CLI needs no login.
    del gemini.env["GEMINI_API_KEY"], gemini.env["GOOGLE_GEMINI_BASE_URL"]
    write_config(gemini.base, gemini.config())
    report = await doctor_command(gemini.base)
    found = report.check("gemini")
    assert (report.code, found["status"], found["command"]) == (1, "problem", "gemini")
    assert "not logged in" in found["text"]
