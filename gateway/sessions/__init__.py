"""Sessions: settings, history, live agent, pending approvals, turn queue. `registry.py` creates, finds and evicts them."""
