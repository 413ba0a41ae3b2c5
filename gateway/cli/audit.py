"""`portico audit`: prints decisions about tool calls from the store, whether the daemon runs or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.cli.output import say
from gateway.config import Settings
from gateway.store import AuditRecord, Store
from gateway.store.sqlite import sqlite_url
from gateway.terminal_text import json_text, one_line


@click.command()
@CONFIG
@DATA_DIR
@click.option("--session", help="Only those of this session.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def audit(config: Path | None, data_dir: Path | None, session: str | None, limit: int, as_json: bool) -> None:
    """Print the decisions about tool calls: time, tool, who decided and why."""
    with config_errors():
        for line in _lines(load_settings(config, data_dir), session, limit, as_json=as_json):
            say(line)


def _lines(settings: Settings, session: str | None, limit: int, *, as_json: bool) -> Iterator[str]:
    """Yield the newest decisions, oldest first, one line each."""
    if not settings.store.url and not (settings.data_dir / "portico.db").exists():
        return
    for record in asyncio.run(_read(settings, session, limit)):
        yield json_text(json.dumps(asdict(record), ensure_ascii=False)) if as_json else _line(record)


async def _read(settings: Settings, session: str | None, limit: int) -> list[AuditRecord]:
    store = await Store.open_unchanged(settings.store.url or sqlite_url(settings.data_dir))
    try:
        with store.explained_errors():
            return await store.audit.newest(limit, session)
    finally:
        await store.close()


def _line(record: AuditRecord) -> str:
    when = datetime.fromtimestamp(record.at).astimezone().isoformat(timespec="milliseconds")
    why = f" ({record.reason})" if record.reason else ""
    who = f"{record.outcome} by {record.by}{why}"
    # Line breaks in the fields are replaced: one decision is one line.
    line = f"{when} {record.session_id} {record.agent} {record.tool} {record.call_id} {who} {record.arguments}"
    return one_line(" ".join(line.split()))
