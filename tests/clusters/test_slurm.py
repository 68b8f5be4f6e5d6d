"""`clusters/slurm.sh` as Slurm would run it: a real head, two real nodes with GPUs in name, a real sweep.

Only Slurm's own programs are played: `srun` starts its command once for each node of the second part, `scontrol` names
these and notes what shall run again, and `squeue` says that the job runs."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.folder import SweepFolder
from made_sweeps import states
from marked import MARK, end_marked
from waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.usefixtures("loopback_only"), pytest.mark.long]
ROOT = Path(__file__).parents[2]
SET_ADDRESS = 0x8916
HEAD = "10.99.0.1"
PLAYED = {
    "scontrol": 'if [ "$1" = requeue ]; then echo "$2" >> "$SAID.requeued"; else printf "%s\\n" train1 train2; fi',
    "squeue": 'echo "${STATE:-RUNNING}"',
    "hostname": f"echo {HEAD}",
    # The nodes are one machine here, on which no two may take the same ports, and its GPUs are in name.
    "srun": 'while [ "${1#--}" != "$1" ]; do echo "$1" >> "$SAID"; shift; done\n'
    '"$@" --num-gpus=1 & one=$!\n"$@" --num-gpus=1 & two=$!\n'
    'trap "kill $one $two; wait; exit 143" TERM\nwait',
    "ray": f'exec {Path(sys.executable).with_name("ray")} "$@" --min-worker-port=0 --max-worker-port=0 '
    f"--object-store-memory={80 * 2**20}",
}


def an_address_besides_127():
    """Of this machine alone, in its network that holds nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(HEAD))
        fcntl.ioctl(control, SET_ADDRESS, struct.pack("16s16s8x", b"lo:1", address))


@pytest.fixture
def slurm(tmp_path):
    """Starts the script with these arguments in a job of its own."""
    try:
        an_address_besides_127()
    except OSError as error:
        pytest.skip(f"no address can be added to lo: {error}")
    programs, place, mark = tmp_path / "programs", Path(tempfile.mkdtemp(dir="/tmp")), uuid.uuid4().hex
    programs.mkdir()
    for name, does in PLAYED.items():
        (programs / name).write_text(f"#!/bin/bash\n{does}\n")
        (programs / name).chmod(0o755)
    base = {name: value for name, value in os.environ.items() if not name.startswith(("RAY", "SLURM"))}
    base |= {"PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}", "RAY_TMPDIR": str(place)}
    base |= {"SAID": str(tmp_path / "srun"), "BABELTUNE_HOME": str(tmp_path / "home"), MARK: mark}
    base |= {"SLURM_JOB_NODELIST_HET_GROUP_1": "train[1-2]", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "1(x2)"}
    (tmp_path / "home").mkdir()

    @contextlib.contextmanager
    def job(number, *arguments):
        environment = {**base, "SLURM_JOB_ID": str(number), "SLURM_CPUS_ON_NODE": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
        with (tmp_path / "said").open("w") as log:
            command = ["bash", str(ROOT / "clusters" / "slurm.sh"), *arguments]
            batch = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            try:
                yield batch, lambda: (tmp_path / "said").read_text()
            finally:
                batch.kill()
                batch.wait()

    yield job
    end_marked(mark)
    shutil.rmtree(place, ignore_errors=True)


def processes_of(mark_of):
    """The processes of a job that are still there."""
    commands = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("BABELTUNE_HOME") == mark_of and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline())[:80])
    return commands


def nothing_is_left(home):
    wait_until(lambda: not processes_of(str(home)), lambda: processes_of(str(home)), every=0.2)


def test_a_job_stops_before_its_time_limit_and_goes_on_when_submitted_again(slurm, tiny_file, tmp_path):
    sets = ("--set", "training.pairs=19200")
    folder = SweepFolder(tmp_path / "home" / "sweeps" / sweep_id(read_sweep(tiny_file, assignments=sets[1:])))
    with slurm(7001, str(tiny_file), *sets) as (batch, output):
        secret = tmp_path / "home" / ".ray_token.7001"

        def begun():
            assert batch.poll() is None, output()
            return folder.path.exists() and "running" in states(folder)

        wait_until(begun, output)
        assert secret.stat().st_mode & 0o777 == 0o600
        token = secret.read_text()
        assert not [line for line in processes_of(str(tmp_path / "home")) if token in line]
        batch.send_signal(signal.SIGTERM)
        assert batch.wait(PATIENCE_S) == 130, output()
        assert not secret.exists()
    nothing_is_left(tmp_path / "home")
    assert folder.state() == "interrupted"
    requeued = tmp_path / "srun.requeued"
    assert requeued.read_text() == "7001\n"
    options = (tmp_path / "srun").read_text().split()
    assert {"--het-group=1", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=1"} == set(options)
    with slurm(7001, str(tiny_file), *sets) as (batch, output):
        assert batch.wait(PATIENCE_S) == 0, output()
    nothing_is_left(tmp_path / "home")
    assert requeued.read_text() == "7001\n", "what has finished is not run again"
    assert len(list((tmp_path / "home" / "mlflow").glob("*/mlflow.db"))) == 1
    assert folder.state() == "finished"
    assert states(folder) == ["finished"] * 2
