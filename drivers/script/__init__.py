"""The script agent: plays a scenario file without a model. The driver, and in `program/` the process that it starts."""

from drivers.script.driver import ScriptDriver

__all__ = ["ScriptDriver"]
