"""The HTTP server: uvicorn by its public settings, and what one connection and one request may take."""
