"""Turns of the echo agent at the node of the session, and forwarded by another node: `python -m benchmarks.forwarded_turns`.

Both nodes are processes; the client alternates between them. Prints medians in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.figures import percentile
from benchmarks.servers import KEY, RunningServer, first_line, serve_command, start, stop, write_config
from benchmarks.turns import new_session, turn

WARM_UP = 50


@asynccontextmanager
async def node(name: str, other: RunningServer | None = None) -> AsyncIterator[RunningServer]:
    """Run a node. With `other`, all sessions are there."""
    variables = [f"BENCH_NODE={name}"]
    if other is not None:
        variables.append(f"BENCH_OTHER=http://127.0.0.1:{other.port}")
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        process = start(["env", *variables, *serve_command(write_config(home, {}), "benchmarks.placed_node")], home)
        try:
            line = await first_line(process, home)
            yield RunningServer(int(line.rsplit(":", 1)[1]), psutil.Process(process.pid), KEY)
        finally:
            await asyncio.to_thread(stop, process)


async def main(count: int) -> None:
    async with (
        node("owner") as owner,
        node("entrance", owner) as entrance,
        owner.connect() as local,
        entrance.connect() as remote,
    ):
        session = await new_session(local, "echo")
        times: dict[str, list[tuple[float, float]]] = {"local": [], "forwarded": []}
        for n in range(WARM_UP + count):
            if n == WARM_UP:
                before = entrance.cpu_seconds()
            for name, connection in (("local", local), ("forwarded", remote)):
                answer = await turn(connection, session, "hello")
                assert b"turn_stop" in answer.body
                assert answer.first is not None
                times[name].append((answer.first * 1000, answer.seconds * 1000))
                await asyncio.sleep(0.005)
        cpu = (entrance.cpu_seconds() - before) / count * 1000
        print(f"CPU time of the node that forwards: {cpu:.2f} ms a turn")  # noqa: T201
        for n, what in enumerate(("first event", "whole turn")):
            found = {name: sorted(pair[n] for pair in pairs[WARM_UP:]) for name, pairs in times.items()}
            for part in (0.1, 0.5, 0.95):
                local_ms, forwarded_ms = (percentile(found[name], part) for name in ("local", "forwarded"))
                print(  # noqa: T201
                    f"{what}, p{part * 100:.0f}: local {local_ms:.2f} ms, forwarded {forwarded_ms:.2f} ms, "
                    f"{forwarded_ms - local_ms:.2f} ms more"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=500)
    asyncio.run(main(parser.parse_args().turns))
