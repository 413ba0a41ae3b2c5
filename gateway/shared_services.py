"""SharedServices: what all sessions and tasks share. `gateway.py` builds it, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivers.contract.agent_specs import Limits
from drivers.contract.tool_server import ToolHost
from drivers.runtime.process import Spawner
from gateway.observability.audit import AuditLog
from gateway.observability.metrics import Metrics
from gateway.observability.transcripts import Transcripts
from gateway.security.encryption import SecretEncryption
from gateway.security.redaction import Redactor
from gateway.store import Store


@dataclass(frozen=True)
class SharedServices:
    """`states` is the folder of the private folders of sessions and tasks; `approval_timeout` is in seconds, 0 for none.

    `stored_first`: clients get an event once it is stored.
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
    approval_timeout: float = 0.0
    stored_first: bool = False
