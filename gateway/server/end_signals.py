"""The signals that end a process which has agents, so that it ends them first."""

from __future__ import annotations

import signal


def end_signals() -> tuple[signal.Signals, ...]:
    """Return the signals to handle. SIGHUP is not one of them if it is ignored, as for a command of `nohup`."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignores_hangup else (signal.SIGHUP,)))
