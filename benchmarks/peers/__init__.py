"""Compares the gateway with other programs that serve agents: `make bench-peers`. docs/benchmarks.md has the results."""
