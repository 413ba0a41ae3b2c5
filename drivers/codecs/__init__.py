"""Parts that codecs share: JSON lines, JSON-RPC, tool calls, held events, deduplication, slash commands. They do no I/O."""
