"""ApprovalTimeout: how long a run may wait for the client (`limits.answer`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from drivers.contract.agent import PermissionReply, Reply
from drivers.contract.events import AwaitedCall
from gateway.runs.run import Run, RunState

log = logging.getLogger(__name__)


class ApprovalTimeout:
    """One session's. `expire` is called with a run and the time since which it waits, once that is too long."""

    def __init__(self, seconds: float, expire: Callable[[Run, float], Awaitable[None]]) -> None:
        self.seconds = seconds
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Task[None]] = set()

    def watch(self, run: Run) -> None:
        """A run has begun to wait, or waits again after a restart: the time counts from when it began."""
        self.stop()
        if self.seconds and run.waiting_since is not None:
            left = run.waiting_since + self.seconds - time.time()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._over, run, run.waiting_since)

    def passed(self, run: Run) -> bool:
        """Whether a run has waited too long."""
        waits = run.state is RunState.WAITING and run.waiting_since is not None
        return bool(self.seconds) and waits and time.time() >= (run.waiting_since or 0.0) + self.seconds

    def stop(self) -> None:
        """Forget the time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def replies(self, calls: Mapping[str, AwaitedCall]) -> list[Reply]:
        """The answers to calls that nobody has answered in time."""
        return [
            PermissionReply(call.id, granted=False, reason=f"no {_WORD[call.wants]} within {self.seconds:g} s")
            for call in calls.values()
            if not call.optional
        ]

    def _over(self, run: Run, since: float) -> None:
        task = asyncio.create_task(self._settle(run, since))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _settle(self, run: Run, since: float) -> None:
        try:
            await self._expire(run, since)
        except Exception:
            log.exception("run %s: the calls that nobody answered cannot be closed", run.id)


_WORD = {"permission": "answer", "result": "result from the application"}
