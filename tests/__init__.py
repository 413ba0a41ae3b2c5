"""The test suite. Tests use the public interfaces where possible."""
