"""Logs, metrics, readiness, the audit log of decisions, and recorded transcripts."""
