"""The audit: one line for every decision about a tool call, in the log and in the store. It decides nothing itself."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from gateway.policy.decisions import CLIENT, Decision
from gateway.security.authentication import current_key_name
from gateway.security.redaction import Redactor
from gateway.store import AuditRecord, Store

log = logging.getLogger(__name__)

LONGEST_ARGUMENTS = 500
LONGEST_REASON = 500


class AuditLog:
    """Writes decisions down."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store, self._redactor = store, redactor

    async def write(self, session_id: str, run_id: str, agent: str, decisions: Sequence[Decision]) -> None:
        """Log and store some decisions of a run. They are on disk when it returns."""
        now = time.time()
        records = [
            AuditRecord(
                now,
                session_id,
                run_id,
                agent,
                self._text(decision.tool, 255),
                self._text(decision.call_id, 255),
                decision.outcome,
                _who(decision.by),
                self._text(decision.reason, LONGEST_REASON) if decision.reason else None,
                self._text(json.dumps(decision.arguments, ensure_ascii=False, default=str), LONGEST_ARGUMENTS),
            )
            for decision in decisions
        ]
        for record in records:
            log.info(
                "%s %s of %s (call %s, session %s, run %s) by %s%s: %s", record.outcome, record.tool, agent, record.call_id,
                session_id, run_id, record.by, f" because {record.reason!r}" if record.reason else "", record.arguments,
            )  # fmt: skip
        await self._store.audit.append(records)

    def _text(self, text: str, longest: int) -> str:
        # Cleaned as a whole: half a secret would not be found.
        clean = self._redactor.clean(text)
        return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def _who(by: str) -> str:
    """A client that has a key of its own is told from others by the key's name."""
    name = current_key_name.get() if by == CLIENT else None
    return by if name is None else f"{by} {name}"
