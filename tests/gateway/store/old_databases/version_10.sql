CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	run_id VARCHAR(64) NOT NULL, 
	agent VARCHAR(64) NOT NULL, 
	tool VARCHAR(255) NOT NULL, 
	call_id VARCHAR(255) NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	"by" VARCHAR(80) NOT NULL, 
	reason TEXT, 
	arguments TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE compactions (
	session_id VARCHAR(64) NOT NULL, 
	first_kept INTEGER NOT NULL, 
	summary TEXT NOT NULL, 
	PRIMARY KEY (session_id), 
	FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE conversations (
	id VARCHAR(64) NOT NULL, 
	owner VARCHAR(64), 
	created_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE events (
	log_id VARCHAR(64) NOT NULL, 
	first BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (log_id, first)
);
CREATE TABLE failures (
	run_id VARCHAR(64) NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	position INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	without_text BOOLEAN NOT NULL, 
	PRIMARY KEY (run_id)
);
CREATE TABLE idempotency_keys (
	"key" VARCHAR(64) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	log_id VARCHAR(64) NOT NULL, 
	first_seq BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE leases (
	log_id VARCHAR(64) NOT NULL, 
	node VARCHAR(64) NOT NULL, 
	token BIGINT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	PRIMARY KEY (log_id)
);
CREATE TABLE messages (
	session_id VARCHAR(64) NOT NULL, 
	position INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	seq BIGINT, 
	PRIMARY KEY (session_id, position), 
	FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE named_keys (
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	folded_name VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	used_at FLOAT, 
	PRIMARY KEY (digest), 
	UNIQUE (folded_name)
);
CREATE TABLE nodes (
	id VARCHAR(64) NOT NULL, 
	address VARCHAR(255) NOT NULL, 
	agents TEXT NOT NULL, 
	labels TEXT NOT NULL, 
	folders TEXT NOT NULL, 
	version VARCHAR(32) NOT NULL, 
	store_version INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	live_agents INTEGER NOT NULL, 
	running_turns INTEGER NOT NULL, 
	agent_slots INTEGER NOT NULL, 
	digests TEXT NOT NULL, 
	started_at FLOAT NOT NULL, 
	heartbeat_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE notes (
	session_id VARCHAR(64) NOT NULL, 
	title TEXT, 
	commands TEXT, 
	chosen_title TEXT, 
	PRIMARY KEY (session_id), 
	FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE processes (
	marker VARCHAR(128) NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at FLOAT NOT NULL, 
	PRIMARY KEY (marker)
);
CREATE TABLE responses (
	id VARCHAR(64) NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	first_seq BIGINT NOT NULL, 
	last_seq BIGINT, 
	created_at FLOAT NOT NULL, 
	completed_at FLOAT, 
	conversation_id VARCHAR(64), 
	body TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE runs (
	id VARCHAR(64) NOT NULL, 
	log_id VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	stop_reason VARCHAR(32), 
	first_seq BIGINT NOT NULL, 
	started_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	waiting_since FLOAT, 
	PRIMARY KEY (id)
);
CREATE TABLE schema_version (
	version INTEGER NOT NULL
);
CREATE TABLE search_sessions (
	number INTEGER NOT NULL, 
	session VARCHAR(64) NOT NULL, 
	next_position INTEGER NOT NULL, 
	title TEXT, 
	PRIMARY KEY (number), 
	UNIQUE (session)
);
CREATE TABLE session_usage (
	session_id VARCHAR(64) NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	cache_read BIGINT NOT NULL, 
	cache_write BIGINT NOT NULL, 
	reasoning_tokens BIGINT NOT NULL, 
	cost_usd FLOAT NOT NULL, 
	PRIMARY KEY (session_id)
);
CREATE TABLE sessions (
	id VARCHAR(64) NOT NULL, 
	agent VARCHAR(64) NOT NULL, 
	config TEXT NOT NULL, 
	secrets BLOB, 
	native_id VARCHAR(255), 
	created_at FLOAT NOT NULL, 
	owner VARCHAR(64), 
	forked_from VARCHAR(64), 
	PRIMARY KEY (id)
);
CREATE TABLE shared_values (
	name VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE sign_in_codes (
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(64), 
	"key" VARCHAR(64) NOT NULL, 
	expires_at FLOAT NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE sign_ins (
	cookie VARCHAR(64) NOT NULL, 
	name VARCHAR(64), 
	"key" VARCHAR(64) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	used_at FLOAT NOT NULL, 
	PRIMARY KEY (cookie)
);
CREATE TABLE turn_slots (
	log_id VARCHAR(64) NOT NULL, 
	owner VARCHAR(64) NOT NULL, 
	node VARCHAR(64) NOT NULL, 
	PRIMARY KEY (log_id)
);
CREATE TABLE worktrees (
	session_id VARCHAR(64) NOT NULL, 
	owner VARCHAR(64), 
	agent VARCHAR(64) NOT NULL, 
	repository TEXT NOT NULL, 
	git_dir TEXT NOT NULL, 
	path TEXT NOT NULL, 
	branch VARCHAR(255) NOT NULL, 
	base_branch TEXT, 
	base_commit VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	ready BOOLEAN NOT NULL, 
	PRIMARY KEY (session_id)
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_session_id ON audit (session_id);
CREATE INDEX ix_failures_session_id ON failures (session_id);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
CREATE INDEX ix_idempotency_keys_log_id ON idempotency_keys (log_id);
CREATE INDEX ix_responses_conversation_id ON responses (conversation_id);
CREATE INDEX ix_responses_session_id ON responses (session_id);
CREATE INDEX ix_runs_log_id ON runs (log_id);
CREATE INDEX ix_runs_state ON runs (state);
CREATE INDEX ix_turn_slots_owner ON turn_slots (owner);
CREATE INDEX leases_held ON leases (node) WHERE expires_at > 0;
CREATE INDEX sessions_newest ON sessions (created_at, id);
INSERT INTO "events" VALUES('sess_a',1,3,X'7B226B696E64223A227475726E5F7374617274222C226D65737361676573223A5B7B22726F6C65223A2275736572222C22636F6E74656E74223A2268656C6C6F227D5D7D0A7B226B696E64223A226167656E745F746F6B656E222C2274657874223A2268656C6C6F227D0A7B226B696E64223A2273657373696F6E5F656E64222C22657869745F636F6465223A307D');
INSERT INTO "messages" VALUES('sess_a',0,'{"role":"user","content":"hello"}',-1);
INSERT INTO "messages" VALUES('sess_a',1,'{"role":"assistant","content":"hello"}',-1);
INSERT INTO "messages" VALUES('sess_a',2,'{"role":"user","content":"again"}',-1);
INSERT INTO "runs" VALUES('run_0','sess_a','ended','end_turn',1,1763800001.0,1763800002.0,NULL);
INSERT INTO "runs" VALUES('run_1','sess_a','running',NULL,4,1763800002.0,NULL,NULL);
INSERT INTO "runs" VALUES('run_2','exec_b','waiting',NULL,1,1763800003.0,NULL,1763800004.0);
INSERT INTO "schema_version" VALUES(10);
INSERT INTO "sessions" VALUES('sess_a','echo','{"options": {}}',NULL,'native',1763800000.5,'phone',NULL);
