"""Restricts itself and executes a command: `sandbox_exec.py RULESET_FD COMMAND [ARGUMENT …]`.

It is run with `-I -S`, and imports nothing of the gateway. That makes the ruleset of Landlock (drivers/runtime/sandbox.py) and
passes its descriptor on. The command gets the variables whose names begin with PREFIX, without that: by their own names those of
the dynamic loader, such as LD_PRELOAD, would already hold here, where nothing is restricted yet.
"""

import ctypes
import os
import struct
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
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PRLIMIT = {0xC000003E: 302, 0x40000003: 340, 0xC00000B7: 261, 0x40000028: 369}
"""The number of the system call prlimit64 by the AUDIT_ARCH of linux/audit.h: x86-64, i386, AArch64 and 32-bit ARM. A 64-bit
program can make the calls of 32-bit ones too."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def limits_filter() -> bytes:
    """Return the seccomp filter that refuses, with EPERM, to set a resource limit of another process: one of them ends a process.

    Landlock has nothing for that. Only the pid 0, which `setrlimit` of the C library uses, is the process's own: the filter does
    not know its number. Limits of all processes are read. https://docs.kernel.org/userspace-api/seccomp_filter.html
    """
    load, jump_if_equal, bit_and, leave, allow, refuse = 0x20, 0x15, 0x54, 0x06, 0x7FFF0000, 0x00050001
    number, architecture, pid, new_limit = 0, 4, 16, (32, 36)
    program = [(load, 0, 0, architecture)]
    for after, (name, prlimit) in zip(reversed(range(len(PRLIMIT))), PRLIMIT.items(), strict=True):
        # The calls of x32 have the numbers of x86-64, with one bit more. The last jump leaves out the other architectures.
        program += [(jump_if_equal, 0, 3, name), (load, 0, 0, number), (bit_and, 0, 0, 0xBFFFFFFF)]
        program += [(jump_if_equal, 4 * after + 1, 4 * after, prlimit)]
    program += [(leave, 0, 0, allow)]
    program += [(load, 0, 0, new_limit[0]), (jump_if_equal, 0, 2, 0), (load, 0, 0, new_limit[1]), (jump_if_equal, 2, 0, 0)]
    program += [(load, 0, 0, pid), (jump_if_equal, 0, 1, 0), (leave, 0, 0, allow), (leave, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _filter_calls() -> int:
    program = limits_filter()
    instructions = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // struct.calcsize("=HBBI"), ctypes.addressof(instructions))
    return int(_LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described, 0, 0))


def restrict_thread(ruleset: int) -> None:
    """Restrict the calling thread, and all that it starts from then on, by a ruleset and the filter of limits.

    Nothing undoes that. Raises OSError.
    """
    for capability in CAPABILITIES:
        # It fails for others than a superuser, who have none. Programs that the thread executes do not get it.
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _LIBC.syscall(RESTRICT_SELF, ruleset, 0) or _filter_calls():
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
