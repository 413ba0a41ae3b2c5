"""InterruptibleStart: what comes before an agent has its prompt, which a cancel, a deletion or a shutdown interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gateway.errors import GatewayError

Result = TypeVar("Result")


class StartCancelled(Exception):
    """Raised by `InterruptibleStart.run` where the turn was cancelled: it ends at once, and no agent gets its prompt."""


class InterruptibleStart:
    """`cancelled` must be checked immediately before the prompt is given; `run` is for what takes long before that.

    The submission sets `ended_turn` where the cancel has ended its turn, and `over` when it is begun or refused.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self.ended_turn = False
        self.over = asyncio.Event()
        self._refusal: GatewayError | None = None
        self._work: asyncio.Task[Any] | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the turn was cancelled or the submission is refused."""
        return self.cancelled or self._refusal is not None

    def cancel(self) -> bool:
        """Cancel the turn: a cancelled turn is stored, as that of a message whose run was cancelled. False if it was already."""
        if self.cancelled:
            return False
        self.cancelled = True
        if self._work is not None:
            self._work.cancel()
        return True

    def refuse(self, error: GatewayError) -> None:
        """Refuse the submission with this error. It changes nothing."""
        self._refusal = error
        if self._work is not None:
            self._work.cancel()

    @contextmanager
    def cancelled_by(self, event: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Cancel the turn if `event` returns while the body runs."""

        async def wait() -> None:
            await event()
            self.cancel()

        waiting = asyncio.create_task(wait())
        try:
            yield
        finally:
            waiting.cancel()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` until it returns or is interrupted. Raises StartCancelled, or the error given to `refuse`."""
        self._work = task = asyncio.create_task(work)
        if self.interrupted:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise self._refusal or StartCancelled from None
        finally:
            self._work = None
