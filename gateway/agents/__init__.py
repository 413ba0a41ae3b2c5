"""Configured agents: the driver, program, directory, environment and options of each entry of `[agents]`; and their discovery.

The running agent of a session is in `gateway/sessions/live_agent.py`.
"""
