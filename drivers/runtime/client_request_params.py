"""Validates the parameters of a CLI's requests to its client, by the models of the Agent Client Protocol's package.

Import it when it is needed only: the package takes 0.5 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acp.schema import (
    BaseModel,
    CreateTerminalRequest,
    KillTerminalRequest,
    ReadTextFileRequest,
    ReleaseTerminalRequest,
    TerminalOutputRequest,
    WaitForTerminalExitRequest,
    WriteTextFileRequest,
)
from pydantic import ValidationError

from drivers.contract.client_services import ClientRequest

MODELS: dict[str, type[BaseModel]] = {
    "fs/read_text_file": ReadTextFileRequest,
    "fs/write_text_file": WriteTextFileRequest,
    "terminal/create": CreateTerminalRequest,
    "terminal/output": TerminalOutputRequest,
    "terminal/wait_for_exit": WaitForTerminalExitRequest,
    "terminal/kill": KillTerminalRequest,
    "terminal/release": ReleaseTerminalRequest,
}


def validated(request: ClientRequest) -> dict[str, Any]:
    """The parameters, each of the protocol's type, without those that are None. Raises ValueError."""
    # Agents may send anything as parameters.
    params: Any = request.params
    if not isinstance(params, Mapping):
        raise ValueError(f"the parameters are not an object: {type(params).__name__}")
    try:
        model = MODELS[request.method].model_validate({"sessionId": "", **params})
    except ValidationError as error:
        reasons = (f"{'.'.join(map(str, reason['loc']))}: {reason['msg']}" for reason in error.errors())
        raise ValueError("; ".join(reasons)) from error
    valid = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, given in params.items():
        # The models drop optional members and items that are invalid. A command must not run without one of its arguments.
        found = valid.get(name)
        lost = found is None or (isinstance(found, list) and isinstance(given, list | tuple) and len(found) != len(given))
        if given is not None and name in KNOWN[request.method] and lost:
            raise ValueError(f"{name}: not valid: {given!r:.200}")
    return valid


KNOWN = {method: frozenset(field.alias or name for name, field in model.model_fields.items()) for method, model in MODELS.items()}
