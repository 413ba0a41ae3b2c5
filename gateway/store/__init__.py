"""What outlives the daemon: sessions, messages, runs, events and the audit. The only SQL of the project stands in this folder."""

from gateway.store.records import AuditRecord, EventRow, KeyRecord, RunRecord, SessionRecord
from gateway.store.store import Store

__all__ = ["AuditRecord", "EventRow", "KeyRecord", "RunRecord", "SessionRecord", "Store"]
