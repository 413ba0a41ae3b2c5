"""The tables, in SQLAlchemy Core's portable types; nothing here is SQLite's own.

PostgreSQL compares texts by their bytes, as SQLite does, and enforces the lengths of columns, which SQLite does not: there they
have none.
"""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import DDL, BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, event
from sqlalchemy.types import TypeEngine

VERSION = 1
"""The version of the tables. The program uses a database of this version only."""
UNFINISHED_COPY = 1_000_000_000
"""The version of a database to which another is being copied."""
metadata = MetaData()


def String(length: int) -> TypeEngine[str]:
    """Returns the type of a short text."""
    return sqlalchemy.String(length).with_variant(sqlalchemy.String(collation="C"), "postgresql")


Text = sqlalchemy.Text().with_variant(sqlalchemy.Text(collation="C"), "postgresql")
Number = Integer().with_variant(BigInteger(), "postgresql")
"""A number that the database gives to a row."""

store_version = Table(
    "store_version",
    metadata,
    Column("version", Integer, nullable=False),
)

# `config` is JSON (options, tools) without secret option values; `secrets` has those, encrypted.
sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("agent", String(64), nullable=False),
    Column("config", Text, nullable=False),
    Column("secrets", LargeBinary),
    Column("native_id", String(255)),
    Column("created_at", Float, nullable=False),
    # The name of the API key that created it; null for a key without a name, or for none.
    Column("owner", String(64)),
    # The id of the session whose messages it began with, which may have been deleted since.
    Column("forked_from", String(64)),
    Index("sessions_newest", "created_at", "id"),
    # Nodes of a cluster count the sessions of an owner at each creation.
    Index("sessions_owner", "owner").ddl_if(dialect="postgresql"),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    # The number of the event that completed it: records.MessageRow.
    Column("seq", BigInteger),
)

# The last compaction of a session's conversation by its CLI: the first message that is kept, and the summary of those before.
compactions = Table(
    "compactions",
    metadata,
    Column("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("first_kept", Integer, nullable=False),
    Column("summary", Text, nullable=False),
)

# What an agent has reported about its session: a title, and the event with its slash commands. `chosen_title` is the user's.
session_metadata = Table(
    "session_metadata",
    metadata,
    Column("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("title", Text),
    Column("commands", Text),
    Column("chosen_title", Text),
)

# What the index of the search has of a session: the messages before `next_position`, and a title. The number identifies the
# session in the index, which is a virtual table of SQLite (gateway/store/search.py). It outlives its session until the index has
# nothing of that any more.
search_sessions = Table(
    "search_sessions",
    metadata,
    Column("number", Number, primary_key=True),
    Column("session", String(64), nullable=False, unique=True),
    Column("next_position", Integer, nullable=False),
    Column("title", Text),
)

# A run belongs to a log: that of a session or of an execution, with its id.
runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("log_id", String(64), nullable=False, index=True),
    Column("state", String(16), nullable=False, index=True),
    Column("stop_reason", String(32)),
    Column("first_seq", BigInteger, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    # Since when it has been waiting for the client; null if it is not.
    Column("waiting_since", Float),
)

# Why runs of sessions failed: rows.FailureRecord. The messages of the session before `position` are older.
failures = Table(
    "failures",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("session_id", String(64), nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("without_text", Boolean, nullable=False),
)

# What the agent of a session has used in all its turns. 0 is nothing, or not reported.
session_usage = Table(
    "session_usage",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cache_read", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
)

# Answers of sessions that clients name by an id of their own (OpenAI's Responses): rows.ResponseRecord. `body` is JSON.
responses = Table(
    "responses",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("first_seq", BigInteger, nullable=False),
    # Null until the answer is over, and where the gateway was killed before it had stored that.
    Column("last_seq", BigInteger),
    Column("created_at", Float, nullable=False),
    Column("completed_at", Float),
    Column("conversation_id", String(64), index=True),
    Column("body", Text, nullable=False),
)

# Names of conversations, which such answers may belong to: rows.ConversationRecord.
conversations = Table(
    "conversations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", String(64)),
    Column("created_at", Float, nullable=False),
    Column("body", Text, nullable=False),
)

# One row holds the events first..last of a log, one JSON a line: rows follow the writes, not the events.
events = Table(
    "events",
    metadata,
    Column("log_id", String(64), primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# What was started under an idempotency key: hashes of the key and of the request, and the event that the answer begins with.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("log_id", String(64), nullable=False, index=True),
    Column("first_seq", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
)

# Every decision about a tool call. There is no foreign key: it outlives its session.
audit = Table(
    "audit",
    metadata,
    Column("id", Number, primary_key=True),
    Column("at", Float, nullable=False, index=True),
    Column("session_id", String(64), nullable=False, index=True),
    Column("run_id", String(64), nullable=False),
    Column("agent", String(64), nullable=False),
    Column("tool", String(255), nullable=False),
    Column("call_id", String(255), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("by", String(80), nullable=False),
    Column("reason", Text),
    Column("arguments", Text, nullable=False),
)

# Running agent processes. Those that are here when a daemon starts were left running by a killed one.
processes = Table(
    "processes",
    metadata,
    Column("marker", String(128), primary_key=True),
    Column("pid", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
)

# Worktrees of sessions: rows.WorktreeRecord. There is no foreign key: one that has work of its own outlives its session.
worktrees = Table(
    "worktrees",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("owner", String(64)),
    Column("agent", String(64), nullable=False),
    Column("repository", Text, nullable=False),
    Column("git_dir", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("branch", String(255), nullable=False),
    # Null where the folder had a commit checked out, and no branch.
    Column("base_branch", Text),
    Column("base_commit", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    # False until the session and all files of the worktree are there.
    Column("ready", Boolean, nullable=False),
)

# The nodes of a cluster. Times are of the database's clock, in seconds since the epoch; lists and `digests` are JSON.
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("address", String(255), nullable=False),
    Column("agents", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("folders", Text, nullable=False),
    Column("version", String(32), nullable=False),
    # 'ready' or 'draining'.
    Column("state", String(16), nullable=False),
    Column("live_agents", Integer, nullable=False),
    Column("running_turns", Integer, nullable=False),
    Column("agent_slots", Integer, nullable=False),
    Column("digests", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
)

# Which node may write a log, until `expires_at` of the database's clock; 0 once it is released. The row stays, so that the token
# only grows, and shows the last node. It is deleted with its log.
leases = Table(
    "leases",
    metadata,
    Column("log_id", String(64), primary_key=True),
    Column("node", String(64), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Float, nullable=False),
)
# Few of the rows are in it: those that are not released.
# As text: arguments of a dialect would import that of PostgreSQL into each daemon (30 ms).
_LEASES_HELD = DDL("CREATE INDEX leases_held ON leases (node) WHERE expires_at > 0")  # type: ignore[no-untyped-call]
event.listen(leases, "after_create", _LEASES_HELD)

# What follows is used in a cluster of nodes only (gateway/store/shared.py). Values that all nodes share.
shared_values = Table(
    "shared_values",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# Named API keys by their SHA-256. Names differ in more than their case.
named_keys = Table(
    "named_keys",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("folded_name", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float),
)

# Sign-ins of the console by the SHA-256 of their cookie: security/sign_ins.SignIn.
sign_ins = Table(
    "sign_ins",
    metadata,
    Column("cookie", String(64), primary_key=True),
    Column("name", String(64)),
    Column("key", String(64), nullable=False),
    Column("token", String(64), nullable=False),
    Column("used_at", Float, nullable=False),
)

# Codes that sign in once, by their SHA-256, until `expires_at` of the database's clock.
sign_in_codes = Table(
    "sign_in_codes",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("name", String(64)),
    Column("key", String(64), nullable=False),
    Column("expires_at", Float, nullable=False),
)

# Turns that count for the limit of their key, from before their start to their end. `owner` is the name of the key, empty for all
# default keys. Those of a node without a heartbeat do not count.
turn_slots = Table(
    "turn_slots",
    metadata,
    Column("log_id", String(64), primary_key=True),
    Column("owner", String(64), nullable=False, index=True),
    Column("node", String(64), nullable=False),
)

OF_RUNNING_NODES = (nodes, leases, sign_in_codes, turn_slots)
"""Tables whose rows mean nothing without the processes that have stored them."""
