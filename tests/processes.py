"""Processes of tests: what one that has ended printed, and what is asked of one that may end meanwhile."""

import subprocess

import psutil

from waiting import PATIENCE_S


def ended(*command, **more):
    """The process of this command, which has ended, with what it printed."""
    settings = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE_S}
    return subprocess.run([*map(str, command)], **{**settings, **more})


def command_line(process):
    """The words of its command; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one too
        return []
