"""The real agent CLIs behind a real gateway, against scripted model servers on loopback. `make test-real` runs them.

Nothing of the machine's reaches a CLI: each test has its own empty home, and a key that no vendor knows.
"""
