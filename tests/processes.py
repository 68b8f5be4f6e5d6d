"""What tests ask of processes that may end meanwhile."""

import psutil


def command_line(process):
    """The words of its command; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one too
        return []
