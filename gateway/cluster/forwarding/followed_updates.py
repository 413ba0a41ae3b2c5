"""The updates of all nodes in one stream: the node of the client opens the client's request at each other node that runs.

No change is lost without the end of the client's stream, after which the client connects again and lists its sessions:

- `ready` is sent once each other node has sent its own, and thus reports its changes. A node that does not do so within
  READY_TIMEOUT seconds is not waited for.
- Frames of the other nodes are sent as they are.
- The stream ends when the stream of one node ends, when other nodes run than at its beginning, and when a node that was not
  waited for reports its changes: earlier ones may be missing.
- A node that cannot be followed is tried again for as long as a node may be silent. The stream ends after that, and not before:
  its client would connect again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from drivers.runtime.clock import Clock
from gateway.cluster.forwarding.forwarded_response import request_headers, unproven
from gateway.cluster.forwarding.node_client import NodeBroken, NodeClient, NodeUnreachable
from gateway.cluster.node_directory import NodeDirectory, RunningNode
from gateway.cluster.node_keys import NodeKeys
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

READY_TIMEOUT = 3.0
"""Seconds that the other nodes are waited for before `ready`."""
RETRY = 0.5
"""Seconds after which a node that could not be followed is tried again."""
_END = b"\n\n"
_READY = b"event: ready\n"


class FollowedUpdates:
    """The stream of one client, for the request `target` of `caller`. The nodes are those of the directory."""

    def __init__(
        self, client: NodeClient, keys: NodeKeys, directory: NodeDirectory, clock: Clock, target: bytes, caller: Caller
    ) -> None:
        self._client, self._keys, self._directory, self._clock = client, keys, directory, clock
        self._target, self._caller = target, caller
        self._frames = asyncio.Queue[bytes](1)
        """Frames for the client, and b"" at the end. The nodes wait for a client that reads slowly."""
        self._missing: set[RunningNode] = set()
        self._all_followed, self._ready = asyncio.Event(), asyncio.Event()

    async def merged(self, own: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the frames of this node, `own`, and those of the other nodes. `ready` is the first frame of each."""
        running = self._directory.running
        self._missing.update(running)
        works = [self._send_own(own), self._directory.changed(running), *map(self._send_of, running)]
        tasks = [asyncio.create_task(work) for work in works]
        ending = asyncio.create_task(self._end_with_first(tasks))
        try:
            while frame := await self._frames.get():
                yield frame
            await ending
        finally:
            for task in (*tasks, ending):
                task.cancel()
            await asyncio.wait((*tasks, ending))

    async def _end_with_first(self, tasks: list[asyncio.Task[None]]) -> None:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await self._frames.put(b"")
        for task in done:
            task.result()

    async def _send_own(self, own: AsyncGenerator[bytes]) -> None:
        async with aclosing(own):
            async for frame in own:
                if not self._ready.is_set() and self._missing:
                    with suppress(TimeoutError):
                        async with self._clock.timeout(READY_TIMEOUT):
                            await self._all_followed.wait()
                await self._frames.put(frame)
                self._ready.set()

    async def _send_of(self, node: RunningNode) -> None:
        problem = "no answer"
        try:
            async with self._clock.timeout(self._directory.silent):
                while True:
                    frames = self._frames_of(node)
                    try:
                        if (await anext(frames, b"")).startswith(_READY):
                            break
                        problem = "it shuts down"
                    except (NodeUnreachable, NodeBroken) as error:
                        problem = str(error)
                    await self._clock.sleep(RETRY)
        except TimeoutError:
            return log.warning("the updates of the node %s cannot be followed: %s", node.id, problem)
        async with aclosing(frames):
            if self._ready.is_set():
                return
            self._missing.discard(node)
            if not self._missing:
                self._all_followed.set()
            await self._ready.wait()
            with suppress(NodeBroken):
                async for frame in frames:
                    await self._frames.put(frame)

    async def _frames_of(self, node: RunningNode) -> AsyncGenerator[bytes]:
        """Yield the frames of a node without comments. Raises NodeUnreachable, NodeBroken."""
        signed = self._keys.sign(node.id, "GET", self._target, b"", self._caller)
        async with self._client.request(node.address, "GET", self._target, request_headers([], signed), b"") as response:
            if (problem := unproven(self._keys, signed, response)) is not None:
                raise NodeBroken(problem)
            if response.status != 200:
                raise NodeBroken(f"it responds with the status {response.status}")
            rest = b""
            while chunk := await response.content.readany():
                *frames, rest = (rest + chunk).split(_END)
                for frame in frames:
                    if not frame.startswith(b":"):
                        yield frame + _END
