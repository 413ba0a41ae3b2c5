"""The HTTP server: the FastAPI app, the daemon's lifecycle, access log, Host and Origin checks, OpenAPI.

It knows no protocol's paths and message formats.
"""
