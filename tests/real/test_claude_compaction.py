"""The real claude compacts its conversation by its own command; a fresh process starts from the compacted history."""

from __future__ import annotations

from gateway.security.authentication import ADMINISTRATOR
from tests.real.aap_client import create_session, user
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.support.daemon import RunningGateway

PLAIN = {"role": "assistant", "content": "Hello from the model, this is plain text."}


async def test_a_fresh_process_starts_from_the_compacted_history(portico: RunningGateway, home: Home, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] first", slash_commands="on")
    await aap.send_turn("/compact")
    await aap.send_turn("[[plain]] then")
    history = (await aap.info())["history"]
    assert history["full"] == [user("[[plain]] first"), PLAIN, user("/compact"), user("[[plain]] then"), PLAIN]
    summary, *after = history["compacted"]
    assert summary["role"] == "user" and "I see 2 user texts. Before this one: [[plain]] first" in summary["content"]
    assert after == [user("[[plain]] then"), PLAIN]
    (summed_up, *_, last) = message_texts(model.last_request(), "user")
    assert "Before this one: [[plain]] first" in summed_up and last == "[[plain]] then"
    for file in home.session_files():
        file.unlink()
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    async with session.lock:
        await session.sleep()
    await aap.send_turn("[[plain]] at last")
    seeded = message_texts(model.last_request(), "user")
    assert len(seeded) == 3 and "Before this one: [[plain]] first" in seeded[0]
    assert seeded[1:] == ["[[plain]] then", "[[plain]] at last"]
