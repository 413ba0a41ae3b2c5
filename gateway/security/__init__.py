"""Authentication by API keys, encryption of secrets at rest, and redaction of secrets in logs and errors."""
