"""The import of the protocol's models, in an interpreter that has not imported them."""

from __future__ import annotations

import subprocess
import sys

CONCURRENT = """
import threading
from concurrent.futures import ThreadPoolExecutor

import pydantic
from gateway.protocols.acp.schema_import import import_schema

config, settings = pydantic.ConfigDict, dict(pydantic.BaseModel.model_config)
barrier = threading.Barrier(8)

def connect(_):
    barrier.wait()
    import_schema()
    from acp.schema import InitializeRequest
    return InitializeRequest(protocol_version=1).protocol_version

with ThreadPoolExecutor(8) as threads:
    assert list(threads.map(connect, range(8))) == [1] * 8
assert pydantic.ConfigDict is config and dict(pydantic.BaseModel.model_config) == settings
"""


def test_clients_that_connect_at_the_same_time_import_it_once() -> None:
    done = subprocess.run([sys.executable, "-c", CONCURRENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
