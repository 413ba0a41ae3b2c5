"""Runs a module as `python -m MODULE ARGUMENTS`, in a process that `fork_server.py` forks: `fork_launcher.py SOCKET PID_FD MODULE
ARGUMENTS`. It passes its standard streams, folder, umask, environment and signals to that process, and exits with
its status.

It is run with `-I -S` and imports only what is built in, to start in 20 ms.
"""

import _socket
import array
import os
import signal
import sys


def main(address: str, pid_fd: str, *argv: str) -> None:
    """Start the module, write its process id to PID_FD unless that is empty, and exit with its status."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(address)
    umask = os.umask(0o077)
    fields = (str(len(argv)), *argv, os.getcwd(), str(umask), *(f"{name}={value}" for name, value in os.environ.items()))
    streams = array.array("i", (0, 1, 2))
    request = "\0".join(fields).encode("utf-8", "surrogateescape")
    connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.send(b"%d" % number))
    # Close the streams here, so that their other ends are closed when the module closes them.
    os.closerange(0, 3)
    pid = connection.recv(100)
    if pid_fd:
        os.write(int(pid_fd), pid)
        os.close(int(pid_fd))
    status = connection.recv(100)
    # Without a status the server has died.
    code = int(status or 70)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main(*sys.argv[1:])
