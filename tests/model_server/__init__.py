"""Scripted model servers for tests that run a real agent CLI without a vendor.

One module per wire dialect (`anthropic`, `gemini`, `openai`), each with a `model_server()` that starts a
server on a free loopback port inside the running event loop. The replies are
decided in `scenarios`, which is independent of the dialects; `serving` owns the port
and the record of requests.
"""
