"""Configured agents: the driver, program, folder, environment and options of each entry of `[agents]`; and their discovery.

A session's running agent is in `gateway/sessions/live_agent.py`.
"""
