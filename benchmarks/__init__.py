"""Benchmarks of the gateway. Each is compared with a baseline, the floor, of the same run: `python -m benchmarks`."""
