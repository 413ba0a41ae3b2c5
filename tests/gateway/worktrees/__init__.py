"""Tests of worktrees, with real git."""
