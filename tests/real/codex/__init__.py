"""Tests with the real codex CLI behind a gateway, against a scripted model server on loopback."""
