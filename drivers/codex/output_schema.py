"""Which JSON schemas codex can ask its model for: those that OpenAI's API takes as strict (`outputSchema` of `turn/start`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REFUSED = frozenset(
    (
        "allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties",
        "propertyNames", "unevaluatedProperties", "contains", "prefixItems", "$dynamicRef",
    )
)  # fmt: skip
"""Members of a schema with which the API refuses the request."""


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether the schema is an object's, and each object in it requires all its members and permits no others."""
    return schema.get("type") == "object" and _is_strict(schema)


def _is_strict(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or not REFUSED.isdisjoint(schema):
        return False
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or "properties" in schema:
        if not isinstance(properties, Mapping) or schema.get("additionalProperties") is not False:
            return False
        required = schema.get("required", [])
        if not isinstance(required, list) or set(required) != set(properties):
            return False
    named = [schema[name] for name in ("$defs", "definitions") if name in schema]
    if not all(isinstance(one, Mapping) for one in named):
        return False
    inner = [*properties.values(), *(part for one in named for part in one.values()), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    return all(map(_is_strict, inner))
