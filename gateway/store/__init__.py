"""The store: sessions, messages, runs, events and the audit in an SQL database. All SQL of the project is in this package.

It does not know what the stored JSON means: callers encode and decode it.
"""

from gateway.store.audit import AuditFilter
from gateway.store.idempotency_keys import KeyStored
from gateway.store.rows import (
    EXECUTION_PREFIX,
    AuditRecord,
    ConversationRecord,
    Cursor,
    EventRow,
    FailureRecord,
    KeyRecord,
    MessageRow,
    QueuedRow,
    ResponseRecord,
    RunRecord,
    RunTimes,
    SessionDetails,
    SessionListRow,
    SessionMetadataRecord,
    SessionRecord,
    SettingsRecord,
    WorktreeRecord,
)
from gateway.store.store import Store
from gateway.store.transactions import IntegrityError

__all__ = [
    "EXECUTION_PREFIX",
    "AuditFilter",
    "AuditRecord",
    "ConversationRecord",
    "Cursor",
    "EventRow",
    "FailureRecord",
    "IntegrityError",
    "KeyRecord",
    "KeyStored",
    "MessageRow",
    "QueuedRow",
    "ResponseRecord",
    "RunRecord",
    "RunTimes",
    "SessionDetails",
    "SessionListRow",
    "SessionMetadataRecord",
    "SessionRecord",
    "SettingsRecord",
    "Store",
    "WorktreeRecord",
]
