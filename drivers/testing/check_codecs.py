"""Checks of a driver's codecs with lines that the program printed: as they are, damaged, and mixed with unknown ones."""

from __future__ import annotations

import random
from collections.abc import Callable

from drivers.contract.agent import Prompt
from drivers.contract.codec import Codec
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.turn_process import TurnProcessDriver
from drivers.testing.check_outcome import Check, Failed, Skipped
from drivers.testing.codec_player import Player, contains
from drivers.testing.damaged_lines import KINDS, Damage, damaged
from drivers.testing.driver_under_test import Setup
from drivers.testing.recording_spawner import Watched
from drivers.testing.run_invariants import ask, to_end

ROUNDS = 300
MARK = "portico-check-line-93ab"
JUNK = (
    f"{MARK} is no line of this program".encode(),
    f'{{"type": "portico_unknown", "text": "{MARK}"}}'.encode(),
    f'[1, "{MARK}"]'.encode(),
    f'{{"{MARK}": '.encode(),
    b"\xff\xfe\x00 " + MARK.encode(),
)
"""Lines with a mark that must be found in some event."""
BARE = (b"", b" ", b"17", b"null", b"true", b'""', b"{}", b"[]", b"{", b"\xff")

Form = tuple[str, Callable[[], Codec], list[bytes]]


async def ends(setup: Setup) -> None:
    for form, codec, _ in await _forms(setup):
        if form == "session" and codec().exited(1, []):
            raise Failed("session(): exited() gave events before the first prompt; there is no run that they could belong to")
        for code in (0, 1, -9):
            player = await _running(setup, form, codec)
            player.exit(code)
            last = player.events[-1] if player.events else None
            if code and getattr(last, "exit_code", None) == 0:
                raise Failed(f"{form}(): the process ended with {code} in mid-run, and the run's exit code is 0")


async def junk(setup: Setup) -> None:
    for form, codec, _ in await _forms(setup):
        for line in (*JUNK, *BARE):
            player = await _running(setup, form, codec)
            player.feed(line)
            player.exit(0)
            if (MARK.encode() in line) and not contains(player.events, MARK):
                raise Failed(f"{form}(): the line {line!r} is lost; a line that is not understood is a Stdout event")


async def again(setup: Setup) -> None:
    for form, codec, lines in await _forms(setup):
        player = Player(codec(), most_prompts=2, task=form != "session", strict=True)
        player.play(lines)
        player.exit(0)


async def late(setup: Setup) -> None:
    for form, codec, lines in await _forms(setup):
        if form != "session":
            continue
        player, run = Player(codec(), most_prompts=1), list[bytes]()
        for line in lines:
            player.play([line])
            run.append(line)
            if player.ends:
                break
        else:
            raise Skipped("no run of the recorded lines ends; its handshake has ids that differ in each run")
        for line in run:
            player.feed(line)
            if player.codec.phase != "ready" or player.codec.protocol_error:
                raise Failed(f"session(): the line {line[:200]!r} after the end of its run set phase or protocol_error")


async def damage(setup: Setup) -> None:
    for form, codec, lines in await _forms(setup):
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            wrong: list[Damage] = [
                (chance.choice(KINDS), chance.randrange(2**32), chance.randrange(2**32)) for _ in range(chance.randint(1, 6))
            ]
            player, stop = Player(codec(), task=form != "session"), chance.randrange(100)
            try:
                player.play(damaged(lines, wrong), lambda index, stop=stop: index == stop)  # type: ignore[misc]
                player.exit(chance.choice((0, 1, -9)))
            except Failed as failed:
                raise Failed(
                    f"{form}(), with recorded lines damaged ({', '.join(how for how, *_ in wrong)}): {failed}"
                ) from failed


async def _forms(setup: Setup) -> list[Form]:
    """The codecs of a task and of a session, or of a turn, each with lines of the real program."""
    driver = setup.driver
    if isinstance(driver, TurnProcessDriver):
        return [("turn", lambda: driver.turn(setup.session(), Prompt(setup.prompt)).codec, await _task_lines(setup))]
    if not isinstance(driver, CliDriver):
        raise Skipped("the driver has no codec (it is neither a CliDriver nor a TurnProcessDriver)")
    return [
        ("task", lambda: driver.task(setup.task()).codec, await _task_lines(setup)),
        ("session", lambda: driver.session(setup.session()).codec, await _session_lines(setup)),
    ]


async def _task_lines(setup: Setup) -> list[bytes]:
    if "task" not in setup.recorded:
        watched = Watched()
        try:
            agent = await setup.driver.execute(setup.task(), watched, setup.limits)
            await to_end(agent, setup.seconds)
            await agent.close()
        finally:
            await watched.end()
        setup.recorded["task"] = [line for started in watched.started for line in started.printed]
    return setup.recorded["task"]


async def _session_lines(setup: Setup) -> list[bytes]:
    if "session" not in setup.recorded:
        async with setup.opened() as (agent, watched):
            for _ in range(2):
                await ask(agent, setup.prompt, setup.seconds)
            setup.recorded["session"] = [line for started in watched.started for line in started.printed]
    return setup.recorded["session"]


async def _running(setup: Setup, form: str, codec: Callable[[], Codec]) -> Player:
    """A codec in the middle of a run: fed what the program printed before that."""
    lines = await (_session_lines(setup) if form == "session" else _task_lines(setup))
    player = Player(codec(), most_prompts=0, task=form != "session")
    for line in [None, *lines]:
        if line is not None:
            player.feed(line)
        if player.codec.phase == "ready" and form == "session":
            player.prompt()
        if player.codec.phase == "running":
            return player
    raise Skipped("the codec was not ready after the recorded lines; its handshake has ids that differ in each run")


CHECKS = (
    Check("ends", "a codec ends a run under way with one session_end when its process exits", ends),
    Check("recorded lines", "what the program printed, read again by a fresh codec: every run ends once, last", again),
    Check("unknown lines", "a line that the codec does not understand becomes stdout, and nothing raises", junk),
    Check("late lines", "the lines of a run, again after its end: no run begins or ends", late),
    Check(
        "damaged lines", f"{ROUNDS} ways to damage what the program printed: nothing raises, every run ends once, last", damage
    ),
)
