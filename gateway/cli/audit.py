"""`portico audit`: what was decided about tool calls, from the store; the daemon may run or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

from gateway.config import Settings
from gateway.store import AuditRecord, Store
from gateway.store.sqlite import sqlite_url


def audit_lines(settings: Settings, session: str | None, limit: int, *, as_json: bool) -> Iterator[str]:
    """The newest decisions, oldest first: a line of JSON each, or one for people."""
    if not settings.store.url and not (settings.data_dir / "portico.db").exists():
        return
    for record in asyncio.run(_read(settings, session, limit)):
        yield json.dumps(asdict(record), ensure_ascii=False) if as_json else _line(record)


async def _read(settings: Settings, session: str | None, limit: int) -> list[AuditRecord]:
    store = await Store.open(settings.store.url or sqlite_url(settings.data_dir))
    try:
        return await store.audit.newest(limit, session)
    finally:
        await store.close()


def _line(record: AuditRecord) -> str:
    when = datetime.fromtimestamp(record.at).astimezone().isoformat(timespec="milliseconds")
    why = f" ({record.reason})" if record.reason else ""
    who = f"{record.outcome} by {record.by}{why}"
    # One line each, whatever stands in them.
    return " ".join(f"{when} {record.session_id} {record.agent} {record.tool} {record.call_id} {who} {record.arguments}".split())
