"""The signals that end a program, in a program of its own."""

import signal
import subprocess
import sys

import pytest

from babeltune.signals import LAST_S
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

HANGS = """
import sys, time
from babeltune.signals import StopSignal, acknowledged, interrupts

def hang():
    while True:
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            pass

with acknowledged():
    try:
        stop = StopSignal()
        {search}
            print("ready", flush=True)
            while not stop.interrupted:
                time.sleep(0.01)
            print("asked", flush=True)
            time.sleep(3600)
    finally:
        hang()
"""


def after_two(program):
    """How a program ends after two Ctrl-C, and what it said: the second is sent once it was asked to end."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        for line in ("ready\n", "asked\n"):
            assert running.stdout.readline() == line
            running.send_signal(signal.SIGINT)
        _, output = running.communicate(timeout=PATIENCE_S)
        return running.returncode, output


def test_a_second_ctrl_c_ends_a_search_that_hangs_as_it_closes():
    code, output = after_two(HANGS.format(search="with interrupts(stop, lambda: None):"))
    assert code == 128 + signal.SIGINT
    assert "something hangs and is left as it is; the same command again goes on" in output
    assert LAST_S < 5


DEAF = """
import os, signal, time
from babeltune.signals import StopSignal, acknowledged, interrupts

def hang():  # as a main thread whose disk hangs: it takes no signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.write(1, b"asked\\n")  # `print` cannot be interrupted by itself
    time.sleep(3600)

with acknowledged(), interrupts(StopSignal(), hang):
    print("ready", flush=True)
    time.sleep(3600)
"""


def test_a_second_ctrl_c_ends_a_program_whose_main_thread_takes_no_signal():
    code, output = after_two(DEAF)
    assert code == 128 + signal.SIGINT
    assert "something hangs and is left as it is; the same command again goes on" in output
