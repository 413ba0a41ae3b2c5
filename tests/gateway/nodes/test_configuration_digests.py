"""What should be the same on all nodes: `/v1/nodes` and `portico doctor` show where it differs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.cluster.configuration_digests import configuration_digests, differences
from gateway.config import parse
from gateway.diagnosis.nodes import check_nodes
from tests.gateway.nodes.two_nodes import node_config
from tests.support.daemon import run_gateway


def test_what_is_compared() -> None:
    def digests(key: str = "default-key", encryption: str = "encryption", **tables: object) -> dict[str, str]:
        return configuration_digests(parse(tables), [key], encryption)

    own = digests()
    assert differences(own, digests(server={"port": 1}, limits={"live_agents": 3})) == []
    assert differences(own, digests(key="another-key")) == ["default keys"]
    assert differences(own, digests(limits={"turns_per_key": 3})) == ["limits of a key"]
    sandboxed = digests(agents={"echo": {"driver": "echo", "sandbox": "workspace-write"}})
    assert differences(own, sandboxed) == ["policy"]
    here, there = ({"echo": {"driver": "echo", "cwd": folder}} for folder in ("/a", "/b"))
    assert differences(digests(agents=here), digests(agents=there)) == []
    assert differences(own, digests(agents={"other": {"driver": "echo", "cwd": "/a"}})) == [], "agents of one node"
    assert differences(own, {}) == [], "what one of them does not report"
    keyed = [configuration_digests(parse({}), ["key"], "encryption", keys) for keys in (["a"], ["b", "a"], ["a", "b"], ["c"])]
    # `b` is new: first all nodes accept it, then all sign with it.
    found = [differences(keyed[0], other) for other in keyed]
    assert found == [[], ["node keys"], [], ["node keys"]] and differences(keyed[1], keyed[2]) == []
    assert own["default keys"] != digests(encryption="another")["default keys"], "it is no plain hash of the key"


async def test_a_node_with_another_policy_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_API_KEY", raising=False)
    monkeypatch.delenv("PORTICO_NODE_KEYS")
    one = node_config(tmp_path, "one")
    other = node_config(tmp_path, "two", node={"address": "http://127.0.0.1:2"})
    other["agents"]["script"]["allow_bypass"] = True
    async with run_gateway(one) as first:
        [found] = await check_nodes(first.gateway.settings, {}, first.gateway.store)
        assert found.status == "ok" and found.text.startswith("1 running")
        async with run_gateway(other) as second:
            [own] = [node for node in (await second.client.get("/v1/nodes")).json()["nodes"] if node["own"]]
            [there] = [node for node in (await second.client.get("/v1/nodes")).json()["nodes"] if not node["own"]]
            assert own["differs"] == [] and there["differs"] == ["policy"]
            [found] = await check_nodes(first.gateway.settings, {})
            assert found.status == "warning"
            assert "policy of node" in found.details[0] and len(found.details) == 1
            diagnosis = (await first.client.get("/v1/diagnosis")).json()
            assert [check["status"] for check in diagnosis["checks"] if check["name"] == "Nodes"] == ["warning"]
    wrong = tmp_path / "wrong-key"
    wrong.write_text("V1dXV1dXV1dXV1dXV1dXV1dXV1dXV1dXV1dXV1dXV1c=")
    one["node"]["encryption_key_file"] = str(wrong)
    [found] = await check_nodes(parse(one), {})
    assert found.status == "problem" and "another key than this node" in found.text


async def test_what_keeps_nodes_from_talking_to_each_other_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both have the same address.
    configs = [node_config(tmp_path, name) for name in ("one", "two")]
    async with run_gateway(configs[0]) as first, run_gateway(configs[1]) as second:
        [there] = [node for node in (await first.client.get("/v1/nodes")).json()["nodes"] if not node["own"]]
        assert there["differs"] == []
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 200)
        keys = {"PORTICO_NODE_KEYS": "another-node-key-for-tests-0123456789abcdef"}
        [found] = await check_nodes(first.gateway.settings, keys, second.gateway.store)
        assert found.status == "warning" and len(found.details) == 4
        assert all("node keys of node" in detail for detail in found.details[:2])
        assert "http://127.0.0.1:1 is the address of the nodes" in found.details[2]
        assert "the clock of this machine is 200 seconds ahead of the database's" in found.details[3]
