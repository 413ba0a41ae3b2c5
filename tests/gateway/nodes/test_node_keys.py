"""Signatures between nodes: what is accepted once, and what never is."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.node_keys import NodeKeys, ReceivedSignature, SentSignature, decode_caller, encode_caller, node_keys
from gateway.config import NodeSettings, Settings
from gateway.errors import InvalidSettings, Unauthorized
from gateway.security.authentication import ADMINISTRATOR, LOCAL_ADMINISTRATOR, Caller
from tests.support.manual_clock import ManualClock

OLD, NEW, FOREIGN = (
    "old-node-key-0123456789-0123456789",
    "new-node-key-0123456789-0123456789",
    "foreign-key-0123456789-0123456789-0",
)

BODY = b'{"a": 1}'


class Clock(ManualClock):
    def __init__(self) -> None:
        super().__init__(1_000_000.0)

    def time(self) -> float:
        return self.now


def signed(keys: NodeKeys, to: str = "b", caller: Caller = ADMINISTRATOR) -> SentSignature:
    return keys.sign(to, "POST", b"/session/x?y=1", BODY, caller)


def check(keys: NodeKeys, sent: SentSignature, **other: Any) -> ReceivedSignature:
    given = {"method": "POST", "target": b"/session/x?y=1", "signature": sent.signature, "caller": sent.caller, **other}
    return keys.check(given["method"], given["target"], given["signature"], given["caller"])


def test_a_signed_request_is_accepted_once_and_its_answer_is_proven() -> None:
    a, b = NodeKeys("a", [OLD]), NodeKeys("b", [OLD])
    sent = signed(a, caller=Caller("ci", all_sessions=False))
    received = check(b, sent)
    assert (received.node, received.caller) == ("a", Caller("ci", all_sessions=False))
    assert a.is_proof(sent, 200, b.proof(received, 200))
    with pytest.raises(Unauthorized, match="came before"):
        check(b, sent)


@pytest.mark.parametrize(
    "other",
    [
        {"method": "DELETE"},
        {"target": b"/session/x"},
        {"target": b"/session/y?y=1"},
        {"caller": encode_caller(LOCAL_ADMINISTRATOR)},
        {"caller": ""},
    ],
    ids=str,
)
def test_another_request_than_the_signed_one_is_refused(other: dict[str, Any]) -> None:
    b, sent = NodeKeys("b", [OLD]), signed(NodeKeys("a", [OLD]))
    with pytest.raises(Unauthorized, match="not signed with a key of this node, or not for this request"):
        check(b, sent, **other)
    check(b, sent)


@pytest.mark.parametrize("part", range(1, 6))
def test_no_part_of_a_signature_can_be_changed(part: int) -> None:
    b, sent = NodeKeys("b", [OLD]), signed(NodeKeys("a", [OLD]))
    parts = sent.signature.split()
    changed = "1" if parts[part][-1] != "1" else "2"
    parts[part] = parts[part][:-1] + changed
    with pytest.raises(Unauthorized):
        check(b, sent, signature=" ".join(parts))


@pytest.mark.parametrize("text", ["", "v1", "v a 1 2 3 4", "v1 a b c d e", "Bearer x", "v1 " + "a" * 65, "v1 ä 1 2 3 4", "v1\n"])
def test_what_is_no_signature_is_refused(text: str) -> None:
    b, sent = NodeKeys("b", [OLD]), signed(NodeKeys("a", [OLD]))
    with pytest.raises(Unauthorized, match="not a signature"):
        check(b, sent, signature=text)


def test_a_signature_of_another_key_or_for_another_node_is_refused() -> None:
    b = NodeKeys("b", [OLD])
    for sent in (signed(NodeKeys("a", [FOREIGN])), signed(NodeKeys("a", [OLD]), to="c")):
        with pytest.raises(Unauthorized, match="not signed with a key of this node"):
            check(b, sent)


@pytest.mark.parametrize("seconds", [-301, 301])
def test_an_old_or_early_signature_is_refused_and_a_minute_of_difference_is_not(seconds: int) -> None:
    clock = Clock()
    clock.now -= 400
    a, b = NodeKeys("a", [OLD], Clock()), NodeKeys("b", [OLD], clock)
    clock.now = Clock().now + seconds
    with pytest.raises(Unauthorized, match="compare the clocks of this node and of the node 'a'"):
        check(b, signed(a))
    clock.now = Clock().now + (60 if seconds > 0 else -60)
    check(b, signed(a))


@pytest.mark.parametrize("ahead", [-299, 0, 299])
def test_a_signature_is_known_for_as_long_as_it_would_be_accepted(ahead: int) -> None:
    clock, theirs = Clock(), Clock()
    a, b = NodeKeys("a", [OLD], theirs), NodeKeys("b", [OLD], clock)
    clock.now += 400
    theirs.now = clock.now + ahead
    sent = signed(a)
    check(b, sent)
    end = theirs.now + 310
    while clock.now < end:
        clock.now += 10
        # Others come meanwhile.
        theirs.now = clock.now
        check(b, signed(a))
        with pytest.raises(Unauthorized):
            check(b, sent)


def test_a_signature_is_not_accepted_again_after_a_restart() -> None:
    """Which signatures an earlier process has accepted, the next one does not know."""
    clock = Clock()
    a, b = NodeKeys("a", [OLD], clock), NodeKeys("b", [OLD], clock)
    clock.now += 0.25
    sent, unsent = signed(a), signed(a)
    assert check(b, sent).node == "a"
    clock.now += 0.0001
    restarted = NodeKeys("b", [OLD], clock)
    for signature in (sent, unsent):
        with pytest.raises(
            Unauthorized, match=r"signed before this node was started.* unless the clock of the node 'a' is behind"
        ):
            check(restarted, signature)
    clock.now += 0.0001
    assert check(restarted, signed(a)).node == "a"


def test_a_proof_is_of_one_request_one_status_and_one_node() -> None:
    a, b, c = (NodeKeys(node, [OLD]) for node in "abc")
    sent, other = signed(a), signed(a)
    received = check(b, sent)
    proof = b.proof(received, 200)
    assert not a.is_proof(sent, 500, proof)
    assert not a.is_proof(other, 200, proof)
    assert not a.is_proof(sent, 200, c.proof(received, 200))
    assert not a.is_proof(sent, 200, NodeKeys("b", [FOREIGN]).proof(replace(received, key=FOREIGN.encode()), 200))
    assert not a.is_proof(sent, 200, "")


def test_a_key_is_rotated_in_three_steps_without_a_refused_request() -> None:
    steps = [[OLD], [OLD, NEW], [NEW, OLD], [NEW]]

    def exchange(sender: list[str], receiver: list[str]) -> None:
        a, b = NodeKeys("a", sender), NodeKeys("b", receiver)
        sent = signed(a)
        assert a.is_proof(sent, 200, b.proof(check(b, sent), 200))

    for before, after in pairwise(steps):
        # While a step is under way, some nodes have done it and others have not.
        for sender in (before, after):
            for receiver in (before, after):
                exchange(sender, receiver)
    with pytest.raises(Unauthorized):
        exchange([OLD], [NEW])


@pytest.mark.parametrize("name", [None, "ci", "", "ä ö 🙂", 'a"b\\c', "a\r\nPortico-Node: x", "x" * 1000, "\x00"])
def test_a_caller_is_the_same_at_the_other_node_whatever_its_name_has(name: str | None) -> None:
    for caller in (Caller(name, True), Caller(name, False), Caller(name, True, any_folder=True)):
        text = encode_caller(caller)
        assert text.isascii() and text.isprintable() and " " not in text
        assert decode_caller(text) == caller


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%%%",
        *(base64.b64encode(part).decode() for part in (b"{}", b"[]", b"1", b'{"name": 1, "all_sessions": true}', b"\xff")),
    ],
)
def test_what_is_no_caller_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized, match="Portico-Caller"):
        decode_caller(text)


@pytest.mark.parametrize(("keys", "problem"), [([], "needs a key"), (["", " "], "needs a key"), ([OLD, "short"], "less than 32")])
def test_a_node_without_a_long_key_does_not_start(keys: list[str], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        NodeKeys("a", keys)


def test_keys_are_not_in_the_texts_of_errors() -> None:
    b = NodeKeys("b", [OLD])

    def text(call: Callable[[], object]) -> str:
        with pytest.raises((Unauthorized, InvalidSettings)) as caught:
            call()
        return str(caught.value)

    sent = signed(NodeKeys("a", [FOREIGN]))
    assert sent.signature.split()[-1] not in text(lambda: check(b, sent))
    assert "short-secret" not in text(lambda: NodeKeys("a", ["short-secret"]))


def test_keys_are_in_the_environment_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{NEW}\n\n  {OLD}  \n")
    settings = NodeSettings(key_file=str(file))
    assert node_keys(settings, {}) == (NEW, OLD)
    assert node_keys(settings, {"PORTICO_NODE_KEYS": f" {OLD}, {NEW},"}) == (OLD, NEW)
    assert node_keys(NodeSettings(), {}) == ()
    with pytest.raises(InvalidSettings, match=r"node\.key_file: cannot read .*: No such file"):
        node_keys(NodeSettings(key_file=str(tmp_path / "none")), {})


def test_agents_in_a_sandbox_cannot_read_the_key_file(tmp_path: Path) -> None:
    settings = Settings(node=NodeSettings(key_file=str(tmp_path / "keys")))
    assert tmp_path / "keys" in settings.secret_paths
