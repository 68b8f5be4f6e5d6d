"""The signals that end a program, in a program of its own."""

import signal
import subprocess
import sys

from babeltune.signals import LAST_S
from waiting import PATIENCE_S

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


def after_two(search):
    """How a program ends that hangs as it closes, after two Ctrl-C."""
    program = HANGS.format(search=search)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "asked\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
        return running.returncode, said


def test_a_second_ctrl_c_ends_a_search_that_hangs_as_it_closes():
    code, said = after_two("with interrupts(stop, lambda: None):")
    assert code == 128 + signal.SIGINT
    assert "something hangs and is left as it is; the same command again goes on" in said
    assert LAST_S < 5


DEAF = """
import signal, time
from babeltune.signals import StopSignal, acknowledged, interrupts

def hang():  # as a main thread whose disk hangs: it takes no signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("asked", flush=True)
    time.sleep(3600)

with acknowledged(), interrupts(StopSignal(), hang):
    print("ready", flush=True)
    time.sleep(3600)
"""


def test_a_second_ctrl_c_ends_a_program_whose_main_thread_takes_no_signal():
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "asked\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 128 + signal.SIGINT
    assert "something hangs and is left as it is; the same command again goes on" in said
