"""The form of bodies of the gateway's own API: JSON with names in camel case."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A body. Times in it are ISO 8601 in UTC."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True, extra="forbid", defer_build=True
    )
