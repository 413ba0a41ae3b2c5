"""Any agent that speaks the Agent Client Protocol over stdio: the client's side of the protocol, one process a session.

The protocol's package takes 0.5 s and 24 MB to import (0.12.1). The codec, which imports it, is imported when the first such
agent is opened; importing this package does not import it.
"""

from drivers.acp.driver import AcpDriver

__all__ = ["AcpDriver"]
