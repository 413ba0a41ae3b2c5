"""Sessions: settings, history, live agent, turns and their queue. `session.py` takes turns; `registry.py` creates and finds."""
