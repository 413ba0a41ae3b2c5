"""The echo agent, which answers with the prompt: the driver, and the program that it starts."""

from drivers.echo.driver import EchoDriver

__all__ = ["EchoDriver"]
