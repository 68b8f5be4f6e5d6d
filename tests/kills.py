"""Kills a process at each change that it makes in the file system, one after the other."""

import itertools
import multiprocessing
import os
import signal
import sys

from waiting import PATIENCE_S

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")  # Python's audit events of changes, which come before them


def act_until(change, act):
    """Calls `act` in this process, which is killed just before its change of this number and ends otherwise."""
    kill_at(change, lambda event, _: event in CHANGES)
    act()
    os._exit(0)


def kill_at(number, counts):
    """This process is killed just before its audit event of this number, of those that count."""
    numbers = itertools.count(1)

    def kill(event, arguments):
        if counts(event, arguments) and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)


def changes_below(folder):
    """Counts every change of a file's name in the folder, and every opening of one to write."""

    def counts(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        return (event in CHANGES or writes) and str(arguments[0]).startswith(str(folder))

    return counts


def killed_at(change, act):
    """Whether a process that does `act` comes to its change of this number, where it is killed."""
    process = multiprocessing.get_context("fork").Process(target=act_until, args=(change, act))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
