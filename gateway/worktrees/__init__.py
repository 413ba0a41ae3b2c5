"""Worktrees: a checkout of the repository for each session, by the user's `git`."""
