"""The test suite: what Portico promises, checked from outside where possible."""
