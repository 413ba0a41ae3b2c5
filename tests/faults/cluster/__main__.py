"""`python -m tests.faults.cluster [--sessions N] [--seed N] [--quick]`: soaks a cluster; exit code 1 if a check is violated.

Clients of all sessions, each of whose requests goes to any of three nodes, drop their connections at random, while nodes are
killed and stopped, and PostgreSQL is restarted and cut off. The clocks of the nodes differ by two
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.faults.cluster.checks import Checks
from tests.faults.cluster.clients import READ_SECONDS, TRANSIENT, Follower, Reader, Talker, Traffic, replay
from tests.faults.cluster.nodes import SKEWS, Cluster, run_cluster
from tests.faults.daemon import KEY

SESSIONS, QUICK_SESSIONS = 200, 20
AT_ONCE, QUICK_AT_ONCE = 40, 12
"""Turns at the same time."""
TURNS, TEXTS = 2, 40
"""Turns of a session, at least, and texts of a turn, one every 50 ms."""
FOLLOWED = 4
"""Of so many sessions one has a follower, and another one waits for permissions."""
FROZEN_SECONDS = 15.0
PAUSE = 2.0
"""Seconds at most between two turns of a session."""
PROBLEMS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sessions", type=int, default=0, help=f"the number of sessions ({SESSIONS}; quick: {QUICK_SESSIONS})")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all random choices (1)")
    parser.add_argument("--quick", action="store_true", help="fewer sessions, and faults at the same time: about a minute")
    parser.add_argument("--keep", type=Path, default=None, help="an empty folder for the logs, which is kept")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="portico-faults-cluster-", ignore_cleanup_errors=True) as folder:
        home = given.keep or Path(folder)
        home.mkdir(exist_ok=True)
        sessions = given.sessions or (QUICK_SESSIONS if given.quick else SESSIONS)
        ok = asyncio.run(Soak(sessions, given.seed, given.quick).run(home))
    return 0 if ok else 1


class Soak:
    """One soak. The same seed makes the same choices; the moments of the faults depend on the machine."""

    def __init__(self, sessions: int, seed: int, quick: bool) -> None:
        self.sessions, self.seed, self.quick = sessions, seed, quick
        self.began = time.monotonic()
        self.checks = Checks()
        self.ends: dict[str, str] = {}

    def random(self, *names: object) -> random.Random:
        return random.Random("/".join(str(part) for part in (self.seed, *names)))

    async def run(self, home: Path) -> bool:
        """Run the soak in this folder. Return whether everything holds."""
        self._print(f"{self.sessions} sessions, seed {self.seed}{', quick' if self.quick else ''}, {os.cpu_count()} CPUs")
        async with run_cluster(home) as cluster, self._traffic(cluster) as traffic:
            self._say(f"three nodes listen; their clocks are ahead by {', '.join(f'{skew:g} s' for skew in SKEWS.values())}")
            talkers, followers = self._clients(traffic)
            async with asyncio.TaskGroup() as group:
                for talker in talkers:
                    group.create_task(talker.run(TURNS))
                for follower in followers:
                    group.create_task(follower.run())
                await self._disturb(cluster, traffic)
                traffic.over.set()
            self._say("all clients are done")
            await self._check(cluster, traffic, talkers, followers)
            left = [node.end() for node in cluster.nodes.values()]
            codes = [code for code, _ in await asyncio.gather(*left)]
            self.checks.add("nodes that do not stop", len(codes), [f"exit code {code}" for code in codes if code != 0])
            self.checks.add("agents left running", len(talkers), cluster.end_left())
        self._report(traffic, talkers)
        return self.checks.ok

    @asynccontextmanager
    async def _traffic(self, cluster: Cluster) -> AsyncIterator[Traffic]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(headers=headers, timeout=READ_SECONDS, limits=limits, verify=False, trust_env=False) as http:
            slots = asyncio.Semaphore(QUICK_AT_ONCE if self.quick else AT_ONCE)
            yield Traffic(http, lambda: cluster.urls, slots)

    def _clients(self, traffic: Traffic) -> tuple[list[Talker], list[Follower]]:
        talkers = [
            Talker(
                name=f"s{n}",
                reader=Reader(traffic, self.random("talker", n)),
                asks=n % FOLLOWED == 1,
                texts=TEXTS,
                pause=PAUSE,
            )
            for n in range(self.sessions)
        ]
        followed = talkers[::FOLLOWED]
        return talkers, [Follower(talker, Reader(traffic, self.random("follower", talker.name))) for talker in followed]

    # -- faults -------------------------------------------------------------------------------------------------------

    async def _disturb(self, cluster: Cluster, traffic: Traffic) -> None:
        await (self._quick_faults(cluster) if self.quick else self._faults(cluster))

    async def _faults(self, cluster: Cluster) -> None:
        await asyncio.sleep(15)
        await self._kill(cluster, "one")
        await asyncio.sleep(8)
        await self._freeze(cluster, "two")
        await asyncio.sleep(8)
        await self._cut(cluster)
        await asyncio.sleep(8)
        await self._restart_database(cluster, 3.0)
        await asyncio.sleep(10)
        await self._cut(cluster)
        await asyncio.sleep(8)

    async def _quick_faults(self, cluster: Cluster) -> None:
        await asyncio.sleep(3)
        await asyncio.gather(self._kill(cluster, "one"), self._freeze(cluster, "two"))
        await self._cut(cluster)
        await asyncio.sleep(2)
        await self._restart_database(cluster, 1.0)
        await asyncio.sleep(2)
        await self._cut(cluster)
        await asyncio.sleep(2)

    async def _kill(self, cluster: Cluster, name: str) -> None:
        await cluster.nodes[name].kill()
        leases = await asyncio.to_thread(cluster.leases, name)
        self._say(f"kill -9 of node {name}, which had {leases} leases")
        seconds = await cluster.taken_over(name)
        self._say(f"they were taken over after {seconds:.1f} s")
        await cluster.start(name)
        self._say(f"node {name} listens again")

    async def _freeze(self, cluster: Cluster, name: str) -> None:
        leases = await asyncio.to_thread(cluster.leases, name)
        cluster.nodes[name].send_signal(signal.SIGSTOP)
        self._say(f"SIGSTOP of node {name}, which had {leases} leases")
        await asyncio.sleep(FROZEN_SECONDS)
        left = await asyncio.to_thread(cluster.leases, name)
        cluster.nodes[name].send_signal(signal.SIGCONT)
        self._say(f"SIGCONT after {FROZEN_SECONDS:g} s; {leases - left} leases were taken over by then")

    async def _cut(self, cluster: Cluster) -> None:
        count = await asyncio.to_thread(cluster.server.cut_connections, cluster.database)
        self._say(f"{count} connections to the database cut")

    async def _restart_database(self, cluster: Cluster, seconds: float) -> None:
        await asyncio.to_thread(cluster.server.stop, signal.SIGINT)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(cluster.server.start)
        self._say(f"PostgreSQL was down for {seconds:g} s")

    # -- checks -------------------------------------------------------------------------------------------------------

    async def _check(self, cluster: Cluster, traffic: Traffic, talkers: list[Talker], followers: list[Follower]) -> None:
        checks, logs = self.checks, {}
        for talker in talkers:
            reader = talker.reader
            logs[talker.name] = replayed = await replay(traffic, reader.session, reader.rng)
            checks.seen(talker.name, reader.seen, replayed, messages=False)
            self.ends |= checks.turns(talker.name, talker.sent, replayed, TEXTS + 2 * talker.asks)
        for follower in followers:
            name = follower.talker.name
            checks.seen(f"follower of {name}", follower.reader.seen, logs[name], messages=True)
        path = cluster.work / "prompts.log"
        checks.given([json.loads(line) for line in path.read_text().splitlines()], self.ends)
        await asyncio.to_thread(cluster.query, "UPDATE runs SET state = state WHERE id = (SELECT min(id) FROM runs)")
        noticed = await asyncio.to_thread(cluster.query, "DELETE FROM wrong_writes WHERE writer = '' RETURNING 1")
        checks.add("a write by nobody is noticed", 1, [] if len(noticed) == 1 else [f"{len(noticed)} are"])
        wrong = await asyncio.to_thread(cluster.query, "SELECT *, count(*) FROM wrong_writes GROUP BY 1, 2, 3, 4")
        rows = await asyncio.to_thread(cluster.query, "SELECT count(*), sum(last - first + 1) FROM events")
        checks.add("writes by a node without the lease", rows[0][0], [str(row) for row in wrong])
        overlap = (
            "SELECT log_id, first FROM (SELECT log_id, first, lag(last) OVER (PARTITION BY log_id ORDER BY first) AS before "
            "FROM events) AS found WHERE first <= before"
        )
        checks.add("events stored twice", int(rows[0][1]), [str(row) for row in await asyncio.to_thread(cluster.query, overlap)])
        unfinished = await asyncio.to_thread(cluster.query, "SELECT log_id, state FROM runs WHERE ended_at IS NULL")
        checks.add("runs that have not ended", len(self.ends), [str(row) for row in unfinished])
        refused = {text: count for text, count in traffic.answers.items() if int(text[:3]) not in TRANSIENT}
        checks.add("refusals for other reasons", traffic.answers.total(), [f"{n} times {text}" for text, n in refused.items()])

    def _report(self, traffic: Traffic, talkers: list[Talker]) -> None:
        reasons = {reason: list(self.ends.values()).count(reason) for reason in sorted(set(self.ends.values()))}
        self._print(f"\nturns by their end: {reasons}")
        self._print(f"clients dropped {traffic.disconnects} connections and lost {traffic.broken}; requests were repeated after")
        for text, count in sorted(traffic.answers.items(), key=lambda item: -item[1])[:12]:
            self._print(f"  {count:5} {text}")
        self._print(f"\n{self.checks.table()}")
        for what, problems in self.checks.problems.items():
            for problem in problems[:PROBLEMS]:
                self._print(f"\n{what}: {problem}")
            if len(problems) > PROBLEMS:
                self._print(f"{what}: and {len(problems) - PROBLEMS} more")

    def _say(self, text: str) -> None:
        self._print(f"{time.monotonic() - self.began:6.1f} s  {text}")

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
