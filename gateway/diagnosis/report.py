"""What a diagnosis reports: one check a subject, each with what was found and the command that solves its problem."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.agents.driver_states import AgentState

Status = Literal["ok", "info", "warning", "problem"]
"""`info`: nothing is wrong, but something is not there. `warning`: it works, but something is to be noticed."""


class Check(BaseModel):
    """One subject. `command` is a shell command that solves the problem, or what the text suggests; None where none is known."""

    name: str
    status: Status
    text: str
    command: str | None = None
    details: list[str] = []


class Trial(BaseModel):
    """One short task of an agent.

    `answer` is the first line of its text; `error` is why the task failed, or was refused, which says nothing about the agent.
    """

    seconds: float
    answer: str | None = None
    error: str | None = None
    refused: bool = False


class AgentReport(BaseModel):
    """One agent: the result, what `GET /v1/drivers` reports of it, and its task, where one was run."""

    check: Check
    driver: str
    state: AgentState
    trial: Trial | None = None


class Report(BaseModel):
    """A whole diagnosis. `daemon` is the URL of the daemon that has reported the agents; None if this process has probed them."""

    version: str
    daemon: str | None
    checks: list[Check]
    agents: list[AgentReport] = Field(default_factory=list)

    @property
    def all_checks(self) -> list[Check]:
        return [*self.checks, *(agent.check for agent in self.agents)]

    @property
    def problems(self) -> int:
        """The number of problems."""
        return sum(check.status == "problem" for check in self.all_checks)
