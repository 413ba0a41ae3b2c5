"""The figures of this gateway, each against a floor that is measured in the same run: `python -m benchmarks`."""
