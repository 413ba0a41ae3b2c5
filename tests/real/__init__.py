"""Tests with the real agent CLIs behind a gateway, against scripted model servers on loopback. `make test-real` runs them.

Each test has an empty home folder and a dummy key; the environment of the machine is not passed to a CLI.
"""
