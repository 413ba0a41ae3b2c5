"""What is found of the real codex: its version, whether it can be used, its models."""

from __future__ import annotations

import time

from tests.real.codex.conftest import Home
from tests.real.processes import of_home


async def test_a_provider_of_the_users_own_needs_no_login(home: Home) -> None:
    async with home.gateway() as running:
        before = time.monotonic()
        answer = (await running.client.get("/v1/drivers")).json()
        ((found,),) = [driver["agents"] for driver in answer["drivers"] if driver["driver"] == "codex"]
        assert time.monotonic() - before < 10
        assert (found["version"], found["problem"]) == ("0.169.0", None)
        assert "gpt-5.5" in found["models"]
        assert not of_home(home.path)


async def test_without_a_login_it_is_not_offered_and_with_a_key_it_is(home: Home) -> None:
    (home.codex / "config.toml").write_text("")
    async with home.gateway() as running:
        assert "codex" not in [agent["name"] for agent in (await running.client.get("/meta")).json()["agents"]]
    home.agent["options"] = {"api_key": "sk-option-0123456789"}
    async with home.gateway(server={"data_dir": str(home.base / "other")}) as running:
        assert "codex" in [agent["name"] for agent in (await running.client.get("/meta")).json()["agents"]]
