"""`portico serve` as a node of two, whose sessions are all at the other one if it has an address: for `forwarded_turns`.

The node and the address are in the environment: BENCH_NODE and BENCH_OTHER.
"""

from __future__ import annotations

import os
from typing import Any

from gateway.app import Gateway
from gateway.cli.main import main
from gateway.cluster.node_keys import NodeKeys
from gateway.errors import SessionElsewhere
from gateway.sessions.registry import Sessions

NODE, OTHER = os.environ["BENCH_NODE"], os.environ.get("BENCH_OTHER")
_init, _get, _create = Gateway.__init__, Sessions.get, Sessions.create


def init(self: Gateway, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    self.node_keys = NodeKeys(NODE, ["benchmark-node-key-0123456789abcdef"])


async def get(self: Sessions, caller: Any, session_id: str, **reading: Any) -> Any:
    if OTHER is not None:
        raise SessionElsewhere("owner", OTHER, session_id)
    return await _get(self, caller, session_id, **reading)


async def create(self: Sessions, *args: Any, **kwargs: Any) -> Any:
    if OTHER is not None:
        raise SessionElsewhere("owner", OTHER)
    return await _create(self, *args, **kwargs)


def remembered_elsewhere(self: Sessions, session_id: str) -> SessionElsewhere | None:
    return None if OTHER is None else SessionElsewhere("owner", OTHER, session_id)


Gateway.__init__ = init  # type: ignore[method-assign]
Sessions.get, Sessions.create, Sessions.remembered_elsewhere = get, create, remembered_elsewhere  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    main()
