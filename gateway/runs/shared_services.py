"""SharedServices: what all sessions and tasks share. `app.py` builds it, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivers.contract.agent_specs import Limits
from drivers.contract.mcp_servers import McpServer
from drivers.contract.tool_server import ToolHost
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.observability.audit import AuditLog, log_decisions
from gateway.observability.metrics import Metrics
from gateway.observability.transcripts import Transcripts
from gateway.security.encryption import SecretEncryption
from gateway.security.redaction import Redactor
from gateway.store import Store
from gateway.worktrees.worktrees import Worktrees


@dataclass(frozen=True)
class SharedServices:
    """`states` is the folder of the private folders of sessions and tasks; `approval_timeout` is in seconds, 0 for none.

    `stored_first`: clients get an event once it is stored. `clock` is the clock of all limits of time.
    `program_starts` is called before an agent's program is started.
    `check_supported` raises AgentProblem for one that is older than the oldest supported version.
    """

    store: Store
    encryption: SecretEncryption
    redactor: Redactor
    spawner: Spawner
    limits: Limits
    states: Path
    metrics: Metrics
    tool_host: ToolHost
    audit: AuditLog
    transcripts: Transcripts
    program_starts: Callable[[ConfiguredAgent], None]
    check_supported: Callable[[ConfiguredAgent], Awaitable[None]]
    worktrees: Worktrees
    approval_timeout: float = 0.0
    stored_first: bool = False
    clock: Clock = SYSTEM_CLOCK

    async def audit_mcp_servers(
        self, session_id: str, agent: str, servers: Sequence[McpServer], *, denied: str | None = None
    ) -> None:
        """Store and log the MCP servers that a client brings for a session, or that were denied: before any of them runs."""
        if servers:
            rows = self.audit.mcp_server_records(session_id, agent, servers, denied=denied)
            await self.store.audit.append(rows)
            log_decisions(rows)
