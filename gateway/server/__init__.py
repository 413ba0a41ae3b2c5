"""The HTTP server: the FastAPI app, the daemon's lifecycle, access log, Host and Origin checks, and limits of headers and bodies.

It knows no protocol's paths or shapes.
"""
