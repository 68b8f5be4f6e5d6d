"""Kills a process at each change that it makes in the file system, one after the other."""

import itertools
import multiprocessing
import os
import signal
import sys

from waiting import PATIENCE_S

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
"""Python's audit events of changes, which come before them."""


def act_until(change, act):
    """Calls `act` in this process, which is killed just before its change of this number and ends otherwise."""
    numbers = itertools.count(1)

    def kill(event, _):
        if event in CHANGES and next(numbers) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    act()
    os._exit(0)


def killed_at(change, act):
    """Whether a process that does `act` comes to its change of this number, where it is killed."""
    process = multiprocessing.get_context("fork").Process(target=act_until, args=(change, act))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
