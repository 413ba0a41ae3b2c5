"""The real codex CLI behind a real gateway, against a scripted model server on loopback.

Nothing of the machine's reaches the CLI: each test has its own empty home, and a key that no vendor knows.
"""
