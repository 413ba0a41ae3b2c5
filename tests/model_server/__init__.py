"""Scripted model servers for tests that run a real agent CLI without a vendor.

One module per wire dialect (`anthropic`), each with a `model_server()` that starts a
server on a free loopback port inside the running event loop. What is answered is
decided in `scenarios`, which knows nothing about any dialect; `serving` owns the port
and the record of requests.
"""
