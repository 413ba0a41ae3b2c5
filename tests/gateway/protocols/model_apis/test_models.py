"""`GET /v1/models`: the agents that can run, and the models that their programs list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivers.contract.driver_info import ModelName, Probe
from tests.support.daemon import RunningGateway, gateway_config, run_gateway


async def get(portico: RunningGateway, path: str = "/v1/models", **headers: str) -> Any:
    return (await portico.client.get(path, headers=headers)).json()


@pytest.fixture
async def listing(portico: RunningGateway) -> RunningGateway:
    """A gateway whose agent `script` lists two models, one of them with a name."""
    # It waits for the probes of the start, whose results would replace this one.
    await get(portico, "/v1/drivers")
    names = (ModelName("big/one", "The big one"),)
    portico.gateway.agents.get("script").apply_probe(Probe(models=("big/one", "small"), model_names=names))
    return portico


async def test_the_list_has_the_agents_and_their_models(listing: RunningGateway) -> None:
    answer = await get(listing)
    assert answer["object"] == "list"
    found = {model["id"]: model for model in answer["data"]}
    assert [model for model in found if model.startswith("script")] == ["script", "script/big/one", "script/small"]
    assert "echo" in found
    assert found["script/big/one"] == {
        "id": "script/big/one",
        "object": "model",
        "created": found["script"]["created"],
        "owned_by": "script",
        "name": found["script"]["name"] + ": The big one",
    }
    # A model by its id.
    for model in (await get(listing))["data"]:
        assert await get(listing, f"/v1/models/{model['id']}") == model
    # The shape of Anthropic.
    headers = {"anthropic-version": "2023-06-01"}
    answer = await get(listing, **headers)
    ids = [model["id"] for model in answer["data"]]
    assert (answer["first_id"], answer["last_id"], answer["has_more"]) == (ids[0], ids[-1], False)
    assert {model["type"] for model in answer["data"]} == {"model"}
    assert (await get(listing, "/v1/models/small", **headers))["type"] == "error"
    assert (await get(listing, "/v1/models/script/small", **headers))["id"] == "script/small"
    echo = {"type": "model", "id": "echo", "display_name": "Echo", "created_at": "2025-01-01T00:00:00Z", "lifecycle": "active"}
    assert answer["data"][-1] == await get(listing, "/v1/models/echo", **headers) == echo
    # Models that a session may not choose are not listed.
    listing.gateway.agents.get("script").locked = frozenset({"model"})
    assert [model["id"] for model in (await get(listing))["data"] if model["owned_by"] == "script"] == ["script"]


async def test_what_is_unknown_or_cannot_run_is_not_found(portico: RunningGateway) -> None:
    # An unknown model is not found.
    answer = await portico.client.get("/v1/models/gpt-4o")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")
    # The model of a request is the agents option. Here with an agent that has no such option; CLIs have one.
    body = {"model": "script/small", "messages": [{"role": "user", "content": "hello"}]}
    error = (await portico.client.post("/v1/chat/completions", json=body)).json()["error"]
    assert "has no option 'model'" in error["message"]


async def test_an_agent_that_cannot_run_is_not_listed(tmp_path: Path) -> None:
    missing = {"driver": "claude", "program": str(tmp_path / "no-such-program")}
    async with run_gateway(gateway_config(tmp_path, agents={"missing": missing})) as portico:
        assert "missing" not in {model["owned_by"] for model in (await get(portico))["data"]}
        assert (await portico.client.get("/v1/models/missing")).status_code == 404
