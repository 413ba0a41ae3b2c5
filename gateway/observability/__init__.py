"""Logs, metrics, health, the audit of decisions, and recorded transcripts. It decides nothing."""
