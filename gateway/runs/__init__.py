"""Runs: one agent at work on one prompt. Also one-shot tasks, admission control, idempotency, and recovery after a crash.

A run does not know which protocol asked for it.
"""
