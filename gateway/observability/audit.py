"""The audit log: every decision about a tool call as a line of the log and a row of the store. It does not store the rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence

from drivers.contract.mcp_servers import McpServer
from gateway.agents.client_mcp_servers import audit_arguments
from gateway.policy.decision_record import CLIENT, Decision, Outcome
from gateway.security.authentication import current_key_name
from gateway.security.redaction import Redactor
from gateway.store import AuditRecord

log = logging.getLogger(__name__)

MCP_SERVER, MCP = "mcp server", "mcp"
"""The tool, and the decider, of rows about MCP servers that clients bring."""
MAX_ARGUMENTS = 500
MAX_REASON = 500
MAX_NAME = 255
"""Characters that are stored of the arguments, the reason, and the names of tools and calls."""


class AuditLog:
    """Makes the rows of decisions. Runs store and log them.

    `redactor` is the gateway's. Secrets of a session are not redacted: its client chooses them, and could hide what it does.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def records(self, session_id: str, run_id: str, agent: str, decisions: Sequence[Decision]) -> list[AuditRecord]:
        """Return the rows of decisions of a run."""
        now = time.time()
        return [
            AuditRecord(
                now,
                session_id,
                run_id,
                agent,
                self._text(decision.tool, MAX_NAME),
                self._text(decision.call_id, MAX_NAME),
                decision.outcome,
                _decided_by(decision.by),
                self._text(decision.reason, MAX_REASON) if decision.reason else None,
                self._text(json.dumps(decision.arguments, ensure_ascii=False, default=str), MAX_ARGUMENTS),
            )
            for decision in decisions
        ]

    def mcp_server_records(
        self, session_id: str, agent: str, servers: Iterable[McpServer], *, denied: str | None = None
    ) -> list[AuditRecord]:
        """Return the rows of MCP servers that a client brings for a session, or that were denied for a reason."""
        outcome: Outcome = "configured" if denied is None else "denied"
        by = CLIENT if denied is None else MCP
        decisions = [Decision(outcome, by, MCP_SERVER, server.name, audit_arguments(server), denied) for server in servers]
        return self.records(session_id, "", agent, decisions)

    def _text(self, text: str, limit: int) -> str:
        # Redacted before it is cut: a part of a secret would not be found.
        clean = self._redactor.clean(text)
        return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _decided_by(by: str) -> str:
    """Return who decided; for a client with a named key, with the name of the key."""
    name = current_key_name.get() if by == CLIENT else None
    return by if name is None else f"{by} {name}"


def log_decisions(records: Iterable[AuditRecord]) -> None:
    """Log decisions that are stored."""
    for record in records:
        log.info(
            "%s %s of %s (call %s, session %s, run %s) by %s%s: %s", record.outcome, record.tool, record.agent, record.call_id,
            record.session_id, record.run_id, record.by, f" because {record.reason!r}" if record.reason else "", record.arguments,
            extra={"audit": True},
        )  # fmt: skip
