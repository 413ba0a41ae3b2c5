"""Parts that codecs share: JSON lines, JSON-RPC, tracking of tool calls, deduplication. They do no I/O."""
