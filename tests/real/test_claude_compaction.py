"""The real claude compacts its conversation: by its own command, and what a fresh process works from then."""

from __future__ import annotations

from gateway.security.authentication import ADMINISTRATOR
from tests.daemon import Running
from tests.real.conftest import Home
from tests.real.models import Model, received_text
from tests.real.talk import begin, user

PLAIN = {"role": "assistant", "content": "Hello from the model, this is plain text."}


async def test_the_compacted_history_is_what_the_cli_works_from(portico: Running, home: Home, model: Model) -> None:
    talk = await begin(portico.client, "[[plain]] first", slash_commands="on")
    await talk.send_turn("/compact")
    await talk.send_turn("[[plain]] then")
    history = (await talk.info())["history"]
    assert history["full"] == [user("[[plain]] first"), PLAIN, user("/compact"), user("[[plain]] then"), PLAIN]
    summary, *after = history["compacted"]
    assert summary["role"] == "user" and "I see 2 user texts. Before this one: [[plain]] first" in summary["content"]
    assert after == [user("[[plain]] then"), PLAIN]
    (summed_up, *_, last) = received_text(model.asked(), "user")
    assert "Before this one: [[plain]] first" in summed_up and last == "[[plain]] then"
    for file in home.session_files():
        file.unlink()
    session = await portico.gateway.sessions.get(ADMINISTRATOR, talk.id)
    async with session.lock:
        await session.sleep()
    await talk.send_turn("[[plain]] at last")
    seeded = received_text(model.asked(), "user")
    assert len(seeded) == 3 and "Before this one: [[plain]] first" in seeded[0]
    assert seeded[1:] == ["[[plain]] then", "[[plain]] at last"]
