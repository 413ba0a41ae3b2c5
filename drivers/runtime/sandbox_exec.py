"""Restricts itself by a Landlock ruleset and executes a command: `sandbox_exec.py RULESET_FD COMMAND [ARGUMENT …]`.

It is run with `-I -S`, and imports nothing of the gateway. That makes the ruleset (drivers/runtime/sandbox.py) and passes its
descriptor on. The command gets the variables whose names begin with PREFIX, without that: by their own names those of the dynamic
loader, such as LD_PRELOAD, would already hold here, where nothing is restricted yet.
"""

import ctypes
import os
import sys

PREFIX = "_PORTICO_SANDBOXED_"
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
RESTRICT_SELF = 446
CAPABILITIES = (2, 9, 16, 17, 19, 21, 22, 25, 27, 32, 33, 34, 38, 39, 40)
"""What a superuser could avoid the rules with, by the numbers of linux/capability.h: DAC_READ_SEARCH, LINUX_IMMUTABLE,
SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, MKNOD, MAC_OVERRIDE, MAC_ADMIN, SYSLOG, PERFMON, BPF,
CHECKPOINT_RESTORE. SYS_TIME is for the clock, by which sign-ins end.
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
        os.execvpe(argv[0], argv, {name.removeprefix(PREFIX): os.environ[name] for name in os.environ if name.startswith(PREFIX)})
    except OSError as error:
        return f"cannot start {argv[0]!r} in the sandbox: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
