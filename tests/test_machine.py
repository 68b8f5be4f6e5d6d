"""Two machines never pass for one, and no dead process for one that lives."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from babeltune import machine
from babeltune.machine import lives, this_machine, this_process
from babeltune.sweep.state.fencing import Lease
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.lease import this_driver
from babeltune.sweep.state.stored import heartbeat_age, here

HERE = this_machine()
ENDS = "import babeltune.machine as m, sys; print(m.this_process(), flush=True); sys.stdin.read()"


def elsewhere(monkeypatch, fact, tmp_path):
    """Makes this process one of another machine, or container, that has the same hostname."""
    other = tmp_path / "other"
    if fact in ("KERNEL", "MACHINE_ID"):
        other.write_text("another\n")
        monkeypatch.setattr(machine, fact, str(other))
    else:
        other.symlink_to("pid:[1]")
        spaces = list(machine.NAMESPACES)
        spaces[spaces.index(fact)] = str(other)
        monkeypatch.setattr(machine, "NAMESPACES", tuple(spaces))


@pytest.mark.parametrize("fact", ["KERNEL", "MACHINE_ID", *machine.NAMESPACES])
def test_two_machines_with_one_hostname_are_two(tmp_path, monkeypatch, fact):
    folder = SweepFolder(tmp_path)
    first, process = Lease(folder=here(folder)["folder"]), this_process()
    assert first.shares_lock(Lease(folder=first.folder))
    assert lives(process)
    beat = json.loads(first.encode()) | {"beat": time.time()}
    assert heartbeat_age(beat, folder) is None, "on its own machine the lock counts"
    elsewhere(monkeypatch, fact, tmp_path)
    assert this_machine() != HERE
    second = Lease(folder=first.folder)
    assert first.host == second.host
    assert not first.shares_lock(second)
    assert heartbeat_age(beat, folder) is not None
    assert lives(process) is None


def test_a_system_that_does_not_name_its_start_is_like_no_other(monkeypatch):
    monkeypatch.setattr(machine, "KERNEL", "/absent")
    assert this_machine() == this_machine() != HERE
    before = this_machine()
    monkeypatch.setattr(machine, "UNKNOWN", "of another process")
    assert this_machine() != before


@pytest.mark.slow
def test_a_process_lives_until_it_ends_and_its_number_is_no_sign_of_it():
    process = subprocess.Popen([sys.executable, "-c", ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name = process.stdout.readline().strip()
    assert lives(name)
    number, started = name.split("-")[1:]
    assert lives(f"{this_machine()}-{number}-{int(started) + 1}") is False, "a later process has got the number"
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{number}").exists()
    assert lives(name) is False, "it is dead, although nobody has looked yet"
    process.communicate()
    assert lives(name) is False


@pytest.mark.parametrize("name", ["", "x", HERE, f"{HERE}-1", f"{HERE}-a-b", "elsewhere-1-1"])
def test_a_name_of_no_process_of_this_machine_says_nothing(name):
    assert lives(name) is None


def test_a_driver_says_which_process_it_is():
    assert this_driver()["process"] == this_process()
