"""House: what all sessions and tasks share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivers.base import Limits, ToolHost
from drivers.process import Spawner
from gateway.audit import Audit
from gateway.metrics import Metrics
from gateway.redaction import Redactor
from gateway.store import Store
from gateway.transcripts import Transcripts
from gateway.vault import Vault


@dataclass(frozen=True)
class House:
    """`states` is the folder in which each session and each task has a private one; `answer_limit` is in seconds, 0 for none."""

    store: Store
    vault: Vault
    redactor: Redactor
    spawner: Spawner
    limits: Limits
    states: Path
    metrics: Metrics
    tool_host: ToolHost
    audit: Audit
    transcripts: Transcripts
    answer_limit: float = 0.0
