"""What outlives the daemon: sessions, messages, runs and events. The only SQL of the project stands in this folder."""

from gateway.store.records import RunRecord, SessionRecord
from gateway.store.store import Store

__all__ = ["RunRecord", "SessionRecord", "Store"]
