"""Runs checks with releases of the real CLIs: `python -m tests.matrix` writes drivers/compatibility.json and its page."""
