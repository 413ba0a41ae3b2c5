"""The query behind a list of sessions: what each is about, where it works, and when it was used last."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select, tuple_

from gateway.store import schema


def newest_cards(agent: str, owner: str | None, limit: int, after: tuple[float, str] | None) -> Select[Any]:
    """The columns of SessionCard of one agent's sessions, newest first; of an owner only, if one is given."""
    table, said, done = schema.sessions, schema.messages, schema.runs
    # Messages are stored with their role first.
    users = select(said.c.body).where(said.c.session_id == table.c.id, said.c.body.like('{"role":"user"%'))
    used = select(func.max(func.coalesce(done.c.ended_at, done.c.started_at))).where(done.c.log_id == table.c.id)
    query = (
        select(
            table.c.id,
            table.c.config,
            table.c.created_at,
            func.coalesce(used.scalar_subquery(), table.c.created_at).label("used_at"),
            select(schema.notes.c.title).where(schema.notes.c.session_id == table.c.id).scalar_subquery().label("title"),
            users.order_by(said.c.position).limit(1).scalar_subquery().label("first_words"),
        )
        .where(table.c.agent == agent)
        .order_by(table.c.created_at.desc(), table.c.id.desc())
        .limit(limit)
    )
    if owner is not None:
        query = query.where(table.c.owner == owner)
    return query if after is None else query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
