"""`/v1/live-agents`: the agent processes that run, and ending one. The gateway's own API."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict

from gateway.app import Gateway
from gateway.protocols.aap.schema import iso_time
from gateway.protocols.authenticated_routes import CurrentCaller, authenticated_router
from gateway.protocols.operations.api_model import ApiModel
from gateway.protocols.route_metadata import errors
from gateway.sessions.live_agents import LiveAgentSummary, end_live_agent, live_agents


class LiveAgentInfo(ApiModel):
    """A live agent, of a session or of a task of `/v1/execute`. `key` is the name of its API key, null for a default key.

    `memory_bytes` is the resident memory of its processes, `cpu_percent` what they take of one processor. An agent whose CLI has
    a process in its turns only has none between them: `pid` and `started_at` are null then.
    """

    session_id: str | None = None
    task_id: str | None = None
    agent: str
    key: str | None = None
    pid: int | None = None
    processes: int
    memory_bytes: int
    cpu_percent: float
    started_at: str | None = None
    state: Literal["running", "waiting", "idle"]
    idle_since: str | None = None

    @classmethod
    def of(cls, one: LiveAgentSummary) -> LiveAgentInfo:
        use = one.use
        return cls(
            session_id=one.session_id,
            task_id=one.task_id,
            agent=one.agent,
            key=one.owner,
            pid=use.pid if use else None,
            processes=use.processes if use else 0,
            memory_bytes=use.memory if use else 0,
            cpu_percent=use.cpu if use else 0.0,
            started_at=iso_time(use.started_at) if use else None,
            state=one.state,
            idle_since=None if one.idle_since is None else iso_time(one.idle_since),
        )


class LiveAgentsResponse(ApiModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agents": [
                        {
                            "sessionId": "sess_0f4c1c9e2a7b4d5e8f90123456789abc",
                            "taskId": None,
                            "agent": "claude",
                            "key": None,
                            "pid": 4711,
                            "processes": 3,
                            "memoryBytes": 241172480,
                            "cpuPercent": 12.5,
                            "startedAt": "2026-11-20T09:30:00.000Z",
                            "state": "idle",
                            "idleSince": "2026-11-20T09:31:12.250Z",
                        }
                    ]
                }
            ]
        }
    )

    agents: list[LiveAgentInfo]


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/live-agents")
    async def list_live_agents(caller: CurrentCaller) -> LiveAgentsResponse:
        """The live agents of the caller's sessions and tasks, or of all for an administrator, with what their processes take."""
        found = await live_agents(gateway.sessions, gateway.tasks, caller)
        return LiveAgentsResponse(agents=[LiveAgentInfo.of(one) for one in found])

    @routes.delete("/v1/live-agents/{id}", status_code=204, responses=errors(404))
    async def end_agent(caller: CurrentCaller, id: str) -> Response:
        """End the agent of a session or a task, by its id. A run at work ends with an error; the next turn has a fresh one."""
        await end_live_agent(gateway.sessions, gateway.tasks, caller, id)
        return Response(status_code=204)

    return routes
