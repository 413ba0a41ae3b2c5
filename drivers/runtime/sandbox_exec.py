"""Restricts itself by a Landlock ruleset and executes a command: `sandbox_exec.py RULESET_FD COMMAND [ARGUMENT …]`.

It is run with `-I -S`, and imports nothing of the gateway. That makes the ruleset (drivers/runtime/sandbox.py) and passes its
descriptor on.
"""

import ctypes
import os
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
RESTRICT_SELF = 446
CAPABILITIES = (2, 9, 16, 17, 19, 21, 22, 27, 32, 33, 34, 38, 39, 40)
"""What a superuser could avoid the rules with, by the numbers of linux/capability.h: DAC_READ_SEARCH, LINUX_IMMUTABLE,
SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, MKNOD, MAC_OVERRIDE, MAC_ADMIN, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE.
On Linux 6.18, PERFMON reads the environment and memory of all processes."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def restrict_thread(ruleset: int) -> None:
    """Restrict the calling thread, and all that it starts from then on, by a ruleset. Nothing undoes that. Raises OSError."""
    for capability in CAPABILITIES:
        # It fails for others than a superuser, who have none. Programs that the thread executes do not get it.
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _LIBC.syscall(RESTRICT_SELF, ruleset, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def main(ruleset: int, argv: list[str]) -> str:
    """Execute the command. Returns the reason if that is not possible."""
    try:
        restrict_thread(ruleset)
    except OSError as error:
        return f"cannot enter the sandbox: {error.strerror}"
    os.close(ruleset)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        return f"cannot start {argv[0]!r} in the sandbox: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
