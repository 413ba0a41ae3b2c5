"""The web console in a real browser, with a daemon of its own for each module."""
