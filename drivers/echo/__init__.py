"""The echo agent: the prompt as its answer. The driver, and the process that it starts."""

from drivers.echo.driver import EchoDriver

__all__ = ["EchoDriver"]
