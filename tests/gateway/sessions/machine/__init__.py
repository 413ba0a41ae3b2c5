"""The parts of the state machine test of sessions: its event loop, its agents, its daemon, and what must hold."""
