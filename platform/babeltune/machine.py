"""Which machine this is, and which of its processes live. Leases, drafts and promotions under way ask it.

Containers may share a hostname or a kernel, and images a machine id, so none of these suffices. What the system does
not say counts as of another machine."""

import hashlib
import os
import platform
import re
import socket
import uuid
from contextlib import suppress
from pathlib import Path

KERNEL = "/proc/sys/kernel/random/boot_id"  # names one start of one kernel
MACHINE_ID = "/etc/machine-id"  # names an installation. Containers may have none, or that of their image.
NAMESPACES = ("/proc/self/ns/pid", "/proc/self/ns/mnt")
"""The process numbers and the files that a process sees. Containers of one kernel have their own."""
UNKNOWN = uuid.uuid4().hex  # stands for what the system does not say. Another process has another one.


def this_machine() -> str:
    """Identity of this machine, from its start to its end, as its processes see it: 12 hexadecimal digits."""
    facts = [socket.gethostname(), _line(MACHINE_ID), _line(KERNEL) or UNKNOWN]
    for path in NAMESPACES:
        try:
            facts.append(str(Path(path).readlink()))
        except OSError:
            facts.append(UNKNOWN)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _line(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def processor() -> str:
    """The name of this machine's processor."""
    names = re.findall(r"^model name\s*: (.+)$", _line("/proc/cpuinfo"), re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()


def this_process() -> str:
    """Identity of this process, `MACHINE-NUMBER-START`. A file name may hold it."""
    number = os.getpid()
    return f"{this_machine()}-{number}-{_started(number) or 0}"


def lives(process: str) -> bool | None:
    """Whether a process of this machine lives. None if it is of another machine, or no process."""
    machine, _, rest = process.partition("-")
    number, _, started = rest.partition("-")
    if machine != this_machine() or not (number.isdecimal() and started.isdecimal()):
        return None
    with suppress(PermissionError):  # another user's lives
        try:
            os.kill(int(number), 0)
        except (ProcessLookupError, OverflowError):
            return False
    return _started(int(number)) in (started, None)


def _started(number: int) -> str | None:
    """When the process was created, in ticks since the kernel began. None if this user may not see it, and empty for
    one that has ended and waits for its parent."""
    with suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{number}/stat").read_bytes().decode(errors="replace").rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return None
