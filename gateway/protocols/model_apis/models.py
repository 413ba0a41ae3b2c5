"""`GET /v1/models`, for clients of OpenAI and of Anthropic: a model for each agent, and one for each model that its CLI lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from drivers.contract.driver_info import EFFORT_OPTION, ToolSpec
from gateway.agents.agent_descriptions import AgentDescription
from gateway.app import Gateway
from gateway.conversations.conversations import other_agent
from gateway.errors import NotFound
from gateway.protocols.authenticated_routes import NEEDS_KEY, authenticated_router
from gateway.protocols.model_apis.vendor_requests import AnthropicErrorResponse, OpenAIErrorResponse, error_body, vendor_of
from gateway.protocols.route_metadata import errors, example
from gateway.security.authentication import Caller, request_is_forwarded


@dataclass(frozen=True, slots=True)
class Model:
    """A model of these APIs: an agent, with a value of its option `model` or without one. `name` is for people."""

    id: str
    agent: str
    options: dict[str, str]
    name: str


class UnknownModel(NotFound):
    """No agent has the name of a requested model."""


def find_model(gateway: Gateway, model_id: str) -> Model:
    """Return the model with the id `AGENT` or `AGENT/MODEL`. Raises UnknownModel.

    A model that the CLI does not list is not refused: CLIs take more names than they list. Raises SessionElsewhere if only
    another node of the cluster has the agent.
    """
    name, _, model = model_id.partition("/")
    agent = gateway.agents.find(name)
    if agent is None:
        if (elsewhere := gateway.agent_elsewhere(name)) is not None:
            raise elsewhere
        known = ", ".join(agent.name for agent in gateway.agents if agent.usable)
        raise UnknownModel(f"model: there is no agent {name!r} here; use one of {known}, or AGENT/MODEL (GET /v1/models has all)")
    return Model(model_id, name, {"model": model} if model else {}, agent.title)


async def find_model_of_session(gateway: Gateway, caller: Caller, model_id: str, session_id: str | None) -> Model:
    """Return a model as `find_model`, for a request that may name a session. Raises BadRequest if that is of another agent.

    Where only other nodes of the cluster have the agent, the request goes to the one that has the session: each of the others
    could only refuse it.
    """
    name, forwarded = agent_name(model_id), request_is_forwarded.get()
    if session_id is not None and gateway.is_node and gateway.agents.find(name) is None:
        agent = await gateway.sessions.agent_of(caller, session_id)
        if agent == name:
            await gateway.sessions.get(caller, session_id)
        elif forwarded or gateway.agent_elsewhere(name) is not None:
            raise other_agent(session_id, agent)
    return find_model(gateway, model_id)


def agent_name(model_id: str) -> str:
    """Return the name of the agent in `AGENT` or `AGENT/MODEL`."""
    return model_id.partition("/")[0]


def effort_options(gateway: Gateway, model: Model, effort: str | None) -> dict[str, str]:
    """Return the option with a level of effort; nothing if the agent does not list that level, or the option is locked."""
    agent = gateway.agents.get(model.agent)
    return {EFFORT_OPTION: effort} if effort in agent.efforts and EFFORT_OPTION not in agent.locked else {}


def usable_tools(gateway: Gateway, model: Model, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """Return the tools of an application, none if the agent takes none: many clients send some with each request."""
    return tools if gateway.agents.get(model.agent).info.capabilities.app_tools else ()


async def _models(gateway: Gateway) -> list[Model]:
    return [model for agent in await gateway.offered_agents() for model in _models_of(agent)]


def _models_of(agent: AgentDescription) -> Iterator[Model]:
    name = agent.name
    yield Model(name, name, {}, agent.title)
    if agent.locked_model:
        return
    for value in agent.listed["model"]:
        yield Model(f"{name}/{value}", name, {"model": value}, f"{agent.title}: {agent.model_names.get(value, value)}")


_EXAMPLE = {"id": "claude/sonnet", "object": "model", "created": 1735689600, "owned_by": "claude", "name": "Claude Code: Sonnet"}
_errors = partial(errors, models=(OpenAIErrorResponse, AnthropicErrorResponse))


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "OpenAI and Anthropic: models", errors=_errors)

    @routes.get("/v1/models", dependencies=[NEEDS_KEY], responses={200: example({"object": "list", "data": [_EXAMPLE]})})
    async def list_models(request: Request) -> JSONResponse:
        """List the models: an agent with its own settings (`AGENT`), or with one of its models (`AGENT/MODEL`)."""
        models = await _models(gateway)
        if vendor_of(request.scope) == "anthropic":
            ids = {"first_id": models[0].id if models else None, "last_id": models[-1].id if models else None}
            return JSONResponse({"data": [_of_anthropic(model) for model in models], "has_more": False, **ids})
        return JSONResponse({"object": "list", "data": [_of_openai(model) for model in models]})

    @routes.get("/v1/models/{model_id:path}", dependencies=[NEEDS_KEY], responses={**_errors(404), 200: example(_EXAMPLE)})
    async def get_model(request: Request, model_id: str) -> JSONResponse:
        """A model by its id."""
        vendor = vendor_of(request.scope)
        found = next((model for model in await _models(gateway) if model.id == model_id), None)
        if found is None:
            text = f"there is no model {model_id!r} here; GET /v1/models has all"
            return JSONResponse(error_body(vendor or "openai", 404, text, code="model_not_found", param="model"), 404)
        return JSONResponse(_of_anthropic(found) if vendor == "anthropic" else _of_openai(found))

    return routes


CREATED = 1735689600
"""A time for the field `created`, in seconds since the epoch (2025-01-01): the CLIs do not tell when a model was made."""


def _of_openai(model: Model) -> dict[str, Any]:
    return {"id": model.id, "object": "model", "created": CREATED, "owned_by": model.agent, "name": model.name}


def _of_anthropic(model: Model) -> dict[str, Any]:
    created = "2025-01-01T00:00:00Z"
    return {"type": "model", "id": model.id, "display_name": model.name, "created_at": created, "lifecycle": "active"}
