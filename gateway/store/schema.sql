-- The tables of version 1. `{text}`, `{float}`, `{bytes}`, `{long}` and `{number}` are types, which each database calls otherwise
-- (sql.py). The index of the messages' words is in search.py.
-- The order is that of `portico store copy`: a table comes behind those that it refers to.

CREATE TABLE store_version (
    version INTEGER NOT NULL
);

-- `config` is JSON (options, tools) without secret option values; `secrets` has those, encrypted.
CREATE TABLE sessions (
    id {text} NOT NULL PRIMARY KEY,
    agent {text} NOT NULL,
    config {text} NOT NULL,
    secrets {bytes},
    native_id {text},
    created_at {float} NOT NULL,
    -- The name of the API key that created it; null for a key without a name, or for none.
    owner {text},
    -- The id of the session whose messages it began with, which may have been deleted since.
    forked_from {text},
    -- Why its queued messages wait until a client says to go on: 'cancelled' or an error; null if they do not.
    queue_stopped {text},
    -- The digest of the conversation of a stateless API that it has answered last (gateway/conversations); null if it has none.
    conversation {bytes}
);
CREATE INDEX sessions_conversation ON sessions (conversation);
CREATE INDEX sessions_newest ON sessions (created_at, id);
CREATE INDEX sessions_owner ON sessions (owner, created_at, id);

-- A number for each session. The row outlives its session until the events and messages of the session are deleted, in parts.
CREATE TABLE histories (
    number {number},
    session_id {text} NOT NULL UNIQUE
);

CREATE TABLE messages (
    -- Of its history and its position, so that the order of the numbers is that of sessions and messages (messages.py).
    number {long} PRIMARY KEY,
    session_id {text} NOT NULL REFERENCES histories (session_id),
    position INTEGER NOT NULL,
    body {text} NOT NULL,
    -- The number of the event that completed it: rows.MessageRow.
    seq BIGINT,
    -- What the search finds it by (words.py). Empty for messages that are not searched.
    words {text} NOT NULL,
    UNIQUE (session_id, position)
);

-- Messages that wait for their turns in a session, in the order of `position`: rows.QueuedRow.
CREATE TABLE queued_messages (
    id {text} NOT NULL PRIMARY KEY,
    session_id {text} NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    message {text} NOT NULL,
    -- The settings that the turn changes, as in `sessions`; null if it changes none.
    config {text},
    secrets {bytes},
    -- Hashes of the request's idempotency key and of the request; null without a key.
    key {text},
    digest {text},
    created_at {float} NOT NULL
);
CREATE INDEX ix_queued_messages_session_id ON queued_messages (session_id, position);

-- The last compaction of a session's conversation by its CLI: the first message that is kept, and the summary of those before.
CREATE TABLE compactions (
    session_id {text} NOT NULL PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    first_kept INTEGER NOT NULL,
    summary {text} NOT NULL
);

-- What an agent has reported about its session: a title, and the event with its slash commands. `chosen_title` is the user's.
-- `words` are those of the title that is displayed (words.py).
CREATE TABLE session_metadata (
    session_id {text} NOT NULL PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    title {text},
    chosen_title {text},
    words {text} NOT NULL DEFAULT '',
    commands {text}
);

-- A run belongs to a log: that of a session or of an execution, with its id.
CREATE TABLE runs (
    id {text} NOT NULL PRIMARY KEY,
    log_id {text} NOT NULL,
    state {text} NOT NULL,
    stop_reason {text},
    first_seq BIGINT NOT NULL,
    started_at {float} NOT NULL,
    ended_at {float},
    -- Since when it has been waiting for the client; null if it is not.
    waiting_since {float}
);
CREATE INDEX ix_runs_log_id ON runs (log_id);
CREATE INDEX ix_runs_state ON runs (state);

-- Why runs of sessions failed: rows.FailureRecord. The messages of the session before `position` are older.
CREATE TABLE failures (
    run_id {text} NOT NULL PRIMARY KEY,
    session_id {text} NOT NULL,
    position INTEGER NOT NULL,
    reason {text} NOT NULL,
    without_text BOOLEAN NOT NULL
);
CREATE INDEX ix_failures_session_id ON failures (session_id);

-- What the agent of a session has used in all its turns. 0 is nothing, or not reported.
CREATE TABLE session_usage (
    session_id {text} NOT NULL PRIMARY KEY,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cache_read BIGINT NOT NULL,
    cache_write BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    cost_usd {float} NOT NULL
);

-- Answers of sessions that clients name by an id of their own (OpenAI's Responses): rows.ResponseRecord. `body` is JSON.
CREATE TABLE responses (
    id {text} NOT NULL PRIMARY KEY,
    session_id {text} NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    first_seq BIGINT NOT NULL,
    -- Null until the answer is over, and where the gateway was killed before it had stored that.
    last_seq BIGINT,
    created_at {float} NOT NULL,
    completed_at {float},
    conversation_id {text},
    body {text} NOT NULL
);
CREATE INDEX ix_responses_conversation_id ON responses (conversation_id);
CREATE INDEX ix_responses_session_id ON responses (session_id);

-- Names of conversations, which such answers may belong to: rows.ConversationRecord.
CREATE TABLE conversations (
    id {text} NOT NULL PRIMARY KEY,
    owner {text},
    created_at {float} NOT NULL,
    body {text} NOT NULL
);

-- One row holds the events first..last of a log, one JSON a line: rows follow the writes, not the events.
CREATE TABLE events (
    log_id {text} NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (log_id, first)
);

-- What was started under an idempotency key: hashes of the key and of the request, and the event that the answer begins with.
CREATE TABLE idempotency_keys (
    key {text} NOT NULL PRIMARY KEY,
    digest {text} NOT NULL,
    log_id {text} NOT NULL,
    first_seq BIGINT NOT NULL,
    created_at {float} NOT NULL
);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
CREATE INDEX ix_idempotency_keys_log_id ON idempotency_keys (log_id);

-- Every decision about a tool call. There is no foreign key: it outlives its session.
CREATE TABLE audit (
    id {number},
    at {float} NOT NULL,
    session_id {text} NOT NULL,
    run_id {text} NOT NULL,
    agent {text} NOT NULL,
    tool {text} NOT NULL,
    call_id {text} NOT NULL,
    outcome {text} NOT NULL,
    "by" {text} NOT NULL,
    reason {text},
    arguments {text} NOT NULL
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_session_id ON audit (session_id);

-- Running agent processes. Those that are here when a daemon starts were left running by a killed one.
CREATE TABLE processes (
    marker {text} NOT NULL PRIMARY KEY,
    pid INTEGER NOT NULL,
    started_at {float} NOT NULL
);

-- Worktrees of sessions: rows.WorktreeRecord. There is no foreign key: one that has work of its own outlives its session.
CREATE TABLE worktrees (
    session_id {text} NOT NULL PRIMARY KEY,
    owner {text},
    agent {text} NOT NULL,
    repository {text} NOT NULL,
    git_dir {text} NOT NULL,
    path {text} NOT NULL,
    branch {text} NOT NULL,
    -- Null where the folder had a commit checked out, and no branch.
    base_branch {text},
    base_commit {text} NOT NULL,
    created_at {float} NOT NULL,
    -- False until the session and all files of the worktree are there.
    ready BOOLEAN NOT NULL
);

-- Values that all daemons of a database share, by their names.
CREATE TABLE shared_values (
    name {text} NOT NULL PRIMARY KEY,
    value {text} NOT NULL
);

-- Named API keys by their SHA-256. Names differ in more than their case.
CREATE TABLE named_keys (
    digest {text} NOT NULL PRIMARY KEY,
    name {text} NOT NULL,
    folded_name {text} NOT NULL UNIQUE,
    created_at {float} NOT NULL,
    used_at {float}
);

-- Sign-ins of the console by the SHA-256 of their cookie: credentials.SignInRow.
CREATE TABLE sign_ins (
    cookie {text} NOT NULL PRIMARY KEY,
    name {text},
    key {text} NOT NULL,
    token {text} NOT NULL,
    used_at {float} NOT NULL
);

-- Codes that sign in once, by their SHA-256, until `expires_at` of the database's clock.
CREATE TABLE sign_in_codes (
    digest {text} NOT NULL PRIMARY KEY,
    name {text},
    key {text} NOT NULL,
    expires_at {float} NOT NULL
);

-- The nodes of a cluster. Times are of the database's clock, in seconds since the epoch; lists and `digests` are JSON.
CREATE TABLE nodes (
    id {text} NOT NULL PRIMARY KEY,
    address {text} NOT NULL,
    agents {text} NOT NULL,
    labels {text} NOT NULL,
    folders {text} NOT NULL,
    version {text} NOT NULL,
    -- 'ready' or 'draining'.
    state {text} NOT NULL,
    live_agents INTEGER NOT NULL,
    running_turns INTEGER NOT NULL,
    agent_slots INTEGER NOT NULL,
    digests {text} NOT NULL,
    started_at {float} NOT NULL,
    heartbeat_at {float} NOT NULL
);

-- Which node may write a log, until `expires_at` of the database's clock; 0 once it is released. The row stays, so that the token
-- only grows, and shows the last node. It is deleted with its log.
CREATE TABLE leases (
    log_id {text} NOT NULL PRIMARY KEY,
    node {text} NOT NULL,
    token BIGINT NOT NULL,
    expires_at {float} NOT NULL
);
CREATE INDEX leases_held ON leases (node) WHERE expires_at > 0;

-- Turns that count for the limit of their key, from before their start to their end. `owner` is the name of the key, empty for all
-- default keys. Those of a node without a heartbeat do not count.
CREATE TABLE turn_slots (
    log_id {text} NOT NULL PRIMARY KEY,
    owner {text} NOT NULL,
    node {text} NOT NULL
);
CREATE INDEX ix_turn_slots_owner ON turn_slots (owner);
