"""The probe of the real codex: its version, its login and its models."""

from __future__ import annotations

import time

from tests.real.codex.conftest import Home
from tests.real.processes import processes_of


async def test_a_custom_provider_needs_no_login(home: Home) -> None:
    async with home.gateway() as running:
        before = time.monotonic()
        answer = (await running.client.get("/v1/drivers")).json()
        ((found,),) = [driver["agents"] for driver in answer["drivers"] if driver["driver"] == "codex"]
        assert time.monotonic() - before < 10
        assert (found["version"], found["problem"]) == ("0.171.0", None)
        assert "gpt-5.5" in found["models"]
        assert not processes_of(home.path)


async def test_codex_is_listed_only_with_a_login_or_a_key(home: Home) -> None:
    (home.codex / "config.toml").write_text("")
    async with home.gateway() as running:
        assert "codex" not in [agent["name"] for agent in (await running.client.get("/meta")).json()["agents"]]
    home.agent["options"] = {"api_key": "sk-option-0123456789"}
    async with home.gateway(server={"data_dir": str(home.base / "other")}) as running:
        assert "codex" in [agent["name"] for agent in (await running.client.get("/meta")).json()["agents"]]
