"""The client is tests/support/acp_client.py; these are its names for files that have not changed yet."""

from tests.support.acp_client import Client as Client
from tests.support.acp_client import RpcFailed as RpcFailed
from tests.support.acp_client import check as check
from tests.support.acp_client import connect as connect
from tests.support.acp_client import kinds as kinds
from tests.support.acp_client import load as load
from tests.support.acp_client import prompt as prompt
