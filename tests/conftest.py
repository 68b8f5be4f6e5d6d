"""One Ray for all tests of a session, on 127.0.0.1 and, where the system permits, in a network namespace of its own."""

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path

import hypothesis
import pytest

from corpora import BESIDE, DATA
from screens import CHROMIUM, chromium
from selection import FAST, is_fast, is_left_out, place_in_run

hypothesis.settings.register_profile("untimed", deadline=None)  # no test asserts wall time
hypothesis.settings.load_profile("untimed")

# Several test processes share two cores: more threads than that only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Ray's workers would let every other process go first, and the tests that wait for them are the longest.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell that starts the tests in its background has them ignore interrupts, and what they start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NEW_NETWORK = 0x40000000
SET_FLAGS = 0x8914
UP = 1


def enter_loopback_only() -> bool:
    """Moves this thread, and so every process that it starts, to a network namespace that holds only `lo`.

    Ray listens on every interface; here there is none but this machine's own. False where that is not permitted:
    then Ray's token authentication alone keeps strangers out."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(NEW_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh", b"lo", UP))
    return True


NEEDS_GPU = "needs_gpu"  # the marker of tests that are skipped where there is no GPU
NEEDS_PAPERS = "needs_papers"
NEEDS_ENCODER = "needs_encoder"  # the marker of tests that are skipped where the papers' texts are not at hand
NEEDS_CHROMIUM = "needs_chromium"
"""The marker of tests that are skipped where there is no Chromium: it is no package of Python."""
NEEDS_PROMETHEUS = "needs_prometheus"  # the marker of tests that are skipped where there is no Prometheus
EXCUSED = frozenset({NEEDS_GPU, NEEDS_PAPERS, NEEDS_CHROMIUM, NEEDS_ENCODER, NEEDS_PROMETHEUS})
"""A test with one of these markers may be skipped on a machine without what it needs."""
skipped: list[str] = []


def pytest_ignore_collect(collection_path, config):
    """Folders without fast tests are not read for these."""
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items):
    """The slow ones first, so that no process is left with them at the end while the other has nothing to do. Marks
    those that are fast."""
    for item in items:
        if is_fast(item):
            item.add_marker(FAST)
    items.sort(key=lambda item: place_in_run(item.path))


def pytest_runtest_setup(item):
    if item.get_closest_marker(NEEDS_GPU):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("CUDA is not available")
    if item.get_closest_marker(NEEDS_CHROMIUM) and CHROMIUM is None:
        pytest.skip("there is no Chromium; on Debian: apt-get install chromium")


def pytest_runtest_logreport(report):
    excused = EXCUSED & set(getattr(report, "keywords", ()))
    if report.skipped and not excused and (DATA.is_dir() or BESIDE.is_dir()):
        skipped.append(report.nodeid)


pytest_collectreport = pytest_runtest_logreport


def pytest_sessionfinish(session, exitstatus):
    """Where the real corpora are at hand, a skipped test fails the run, unless its marker is in `EXCUSED`."""
    if skipped and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Here, for the process that has gathered what others have run does not read the conftest of `chaos`."""
    if hasattr(config, "workerinput"):
        return
    from chaos.table import show

    show(terminalreporter)
    if skipped:
        terminalreporter.write_line(f"{DATA} is here, so no test may be skipped: {', '.join(skipped)}", red=True)


@pytest.fixture(autouse=True)
def no_ray_in_fast_tests(request, tmp_path_factory):
    """Fails a fast test that starts Ray, in this process or in another: a Ray that starts makes its session's folder
    in `RAY_TMPDIR`."""
    if not request.node.get_closest_marker(FAST):
        yield
        return
    folder = tmp_path_factory.getbasetemp() / "ray"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        yield
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        pytest.fail("this test is marked as fast and has started Ray; give it the marker `slow`")


@pytest.fixture(autouse=True)
def no_safe_path(monkeypatch):
    """A command that runs in this process sets it for those that it starts, and other tests start scripts."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.fixture(scope="session")
def loopback_only():
    """For this process and those that it starts: see `enter_loopback_only`."""
    enter_loopback_only()


@pytest.fixture(scope="session")
def s3_port(loopback_only):
    """Where the S3 server of this session is, if a test starts it; Ray's workers know it from the beginning."""
    from ports import free_port

    return free_port()


@pytest.fixture(scope="session")
def s3_server(s3_port):
    from bucket_servers import S3, environment

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(s3_port).items():
            patch.setenv(name, value)
        server = S3(s3_port)
        yield server
        server.end()


@pytest.fixture
def s3(s3_server, s3_port, monkeypatch):
    """An S3 server that answers, and the environment that names it."""
    from bucket_servers import environment

    for name, value in environment(s3_port).items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.door.shut()
    s3_server.door.open()


@pytest.fixture(scope="session")
def gs_server(loopback_only):
    from bucket_servers import GS

    server = GS()
    yield server
    server.end()


@pytest.fixture
def gs(gs_server, monkeypatch):
    """A Google Cloud Storage server, and the environment that names it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server.address)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # or else each client looks for Google's machines for a while
    return gs_server


@pytest.fixture(params=["s3", "gs"])
def bucket_server(request):
    """Each of the two."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def comparing_server(bucket_server, monkeypatch):
    """Each of the two, and each compares what a write expects."""
    from bucket_servers import S3, Preconditions

    if isinstance(bucket_server, S3):
        yield bucket_server
        return
    door = Preconditions(bucket_server)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", door.address)
    yield bucket_server
    door.end()


@pytest.fixture(scope="session")
def ray_cluster(loopback_only, s3_port):
    """A local Ray of four logical CPUs whose workers can import the modules beside this file, and the faulty method."""
    from babeltune.sweep.workers.connection import local_ray
    from bucket_servers import environment

    here = Path(__file__).parent
    path = [str(here), str(here / "chaos"), *filter(None, [os.environ.get("PYTHONPATH")])]
    beside = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
    with local_ray(num_cpus=4, env={**beside, **environment(s3_port)}):
        yield


@pytest.fixture(scope="module")
def browser():
    """For tests with the marker `needs_chromium`."""
    with chromium() as window:
        yield window


@pytest.fixture
def undrawn(monkeypatch):
    """Charts of reports have their title and description but no lines: drawing is most of what a report takes."""
    empty = '<svg viewBox="0 0 1 1"></svg>'
    svg = "matplotlib.backends.backend_svg.FigureCanvasSVG.print_svg"
    monkeypatch.setattr(svg, lambda self, file, **_: file.write(empty))


@pytest.fixture
def one_thread():
    """More threads than free cores make small operations a thousand times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def its_handler_of_ctrl_c():
    """A command that is interrupted in this process leaves a handler that would end the tests at the next Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


STILL_RUNS = re.compile(r"^.* · \d+:\d\d gone\n", re.MULTILINE)


class Command:
    """Runs a command of babeltune's in this process: exit code, standard output, standard error.

    Lines that only say that a step still runs, such as `starting · 0:02 gone`, depend on the machine and are left out.
    """

    def __init__(self, monkeypatch, capfd, *last):
        self._monkeypatch, self._capfd, self._last = monkeypatch, capfd, last

    def with_last(self, *arguments):
        """The same with these arguments behind all others."""
        return Command(self._monkeypatch, self._capfd, *arguments)

    def __call__(self, *arguments):
        from babeltune.cli import main

        self._monkeypatch.setattr(sys, "argv", ["babeltune", *map(str, (*arguments, *self._last))])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capfd.readouterr()
        return ended.value.code or 0, captured.out, STILL_RUNS.sub("", captured.err)

    def prints(self, *arguments):
        """The standard output of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, out + err
        return out

    def document(self, *arguments):
        """What a command that succeeds prints with `--json`."""
        return json.loads(self.prints(*arguments, "--json"))

    def refuses(self, *arguments, code=2):
        """The standard error of a command that ends with this exit code."""
        ended, out, err = self(*arguments)
        assert ended == code, out + err
        return err


@pytest.fixture
def command(monkeypatch, capfd):
    return Command(monkeypatch, capfd)


@pytest.fixture
def offline(monkeypatch):
    """No test asks the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


TINY = """
version: 1
name: tiny
method: soft_contrastive
parameters:
  temperature: {log_float: [0.03, 0.2]}
  training.learning_rate: {log_float: [5e-4, 3e-3]}
objectives: [{metric: dev/everyday/accuracy}]
data:
  root: "bundled:"
  train:
    - {name: natural, path: natural_train.tsv, columns: {eng: eng, fra: fra, kor: kor}}
  dev:
    - name: everyday
      source: {name: everyday, path: natural_dev.tsv, columns: {eng: eng, fra: fra, kor: kor}}
      limit: 30
    - {name: sts, task: sts, path: sts.tsv, language: eng}
  test:
    - name: everyday
      source: {name: everyday_test, path: natural_test.tsv, columns: {eng: eng, fra: fra, kor: kor}}
student: {layers: 1, width: 32, heads: 2, feed_forward: 64, vocabulary: 1000, max_tokens: 32, projection: teacher}
training: {pairs: 640, reports: 2, global_batch: 32, learning_rate: 2e-3}
scheduler: {kind: none}
sampler: {kind: random}
budget: {trials: 2, workers: 1}
"""


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    """A sweep file that a test can train in a second."""
    path = tmp_path_factory.mktemp("specs") / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory):
    """A folder that all processes of a run see."""
    place = tmp_path_factory.getbasetemp()
    return place.parent if os.environ.get("PYTEST_XDIST_WORKER") else place


@pytest.fixture(scope="session")
def tiny_stores(tiny_file, common_folder):
    """What is prepared for the tiny sweep, once for all processes of a run: a folder to copy and never to write."""
    from filelock import FileLock

    from babeltune.planning.preparation import prepare
    from babeltune.planning.sweep_file import read_sweep

    stores = common_folder / "tiny"
    with FileLock(common_folder / "tiny.lock"):
        if not stores.exists():
            prepare(read_sweep(tiny_file), common_folder / "preparing")
            (common_folder / "preparing").rename(stores)
    return stores / "stores"


@pytest.fixture(scope="session")
def tiny_storage(tiny_stores, tmp_path_factory):
    """A storage whose stores the tests of one process share. Those of the tiny sweep are there."""
    storage = tmp_path_factory.mktemp("storage")
    shutil.copytree(tiny_stores, storage / "stores")
    return storage


@pytest.fixture(scope="session")
def tiny(tiny_file, tiny_storage):
    """The tiny sweep and what is prepared for it."""
    from babeltune.planning.preparation import prepare
    from babeltune.planning.sweep_file import read_sweep

    sweep = read_sweep(tiny_file)
    return sweep, prepare(sweep, tiny_storage)


SEARCHED = """
method: soft_contrastive
name: searched
parameters:
  temperature: {log_float: [0.03, 0.2]}
  training.learning_rate: {choice: [3e-3, 1e-3, 1e30]}
training: {pairs: 3840, reports: 2, global_batch: 32, clip: null, warmup: 0.0}
sampler:
  kind: random
  points:
    - {temperature: 0.1, training.learning_rate: 3e-3}
    - {temperature: 0.1, training.learning_rate: 1e30}
    - {temperature: 0.05, training.learning_rate: 1e-3}
    - {temperature: 0.2, training.learning_rate: 1e-3}
budget: {trials: 4, workers: 2}
"""


def cluster_at(storage):
    """One worker group, which is half of what two cost to open, and everything that it writes in one folder."""
    from babeltune.schema.cluster import Cluster

    return Cluster(storage=str(storage), mlflow=f"sqlite:///{storage}/mlflow.db", worker_groups=1)


@pytest.fixture(scope="session")
def searched(request, tiny_file, tiny_stores, common_folder):
    """A finished sweep of four trials (t0001 cannot train) on a worker group of two gloo workers: (sweep,
    folder).

    It runs once, however many processes run the tests. Its storage is for reading; `copy_of` copies it."""
    from filelock import FileLock

    from babeltune.planning.sweep_file import read_sweep
    from babeltune.sweep.driver.run import submit
    from babeltune.sweep.state.folder import find_sweep

    overlay, storage = common_folder / "searched.yaml", common_folder / "searched"
    with FileLock(common_folder / "searched.lock"):
        overlay.write_text(SEARCHED, encoding="utf-8")
        sweep = read_sweep(tiny_file, overlays=[overlay])
        if not storage.exists():
            request.getfixturevalue("ray_cluster")
            shutil.copytree(tiny_stores, storage / "stores")
            submit(sweep, cluster_at(storage))
    return sweep, find_sweep(storage, sweep.name)


@pytest.fixture(scope="session")
def with_stores(searched):
    """Puts the stores of the finished sweep into a new storage, where a sweep of the same text then prepares nothing:
    gives the storage."""
    _, folder = searched

    def put(storage):
        shutil.copytree(folder.path.parents[1] / "stores", storage / "stores")
        return storage

    return put


@pytest.fixture(scope="session")
def copy_of(searched):
    """Copies the finished sweep into a new storage, to go on with or to damage: gives (sweep, folder, cluster)."""
    from babeltune.sweep.state.folder import SweepFolder

    sweep, folder = searched

    def copy(storage):
        shutil.copytree(folder.path.parents[1], storage)
        return sweep, SweepFolder(storage / "sweeps" / folder.id), cluster_at(storage)

    return copy


@pytest.fixture
def copied(copy_of, tmp_path):
    """A copy of the finished sweep for one test."""
    return copy_of(tmp_path / "storage")


@pytest.fixture
def copied_home(copied, monkeypatch):
    """That copy, as the storage that commands use."""
    monkeypatch.setenv("BABELTUNE_HOME", copied[2].storage)
    return copied


@pytest.fixture(scope="session")
def scoring_process():
    """Gives the process that scores, which takes ten seconds to start. One that has ended is replaced."""
    from contextlib import ExitStack

    from babeltune.promotion.fresh_scorer import FreshScorer

    with ExitStack() as started:
        warm = []

        def alive():
            if not warm or warm[-1]._process.poll() is not None:
                warm.append(started.enter_context(FreshScorer()))
            return warm[-1]

        yield alive


@pytest.fixture(scope="module")
def one_scoring_process(scoring_process):
    """Promotions and evaluations of a module are scored by the process that all modules share."""
    from contextlib import nullcontext

    with pytest.MonkeyPatch.context() as patch:
        for module in ("promote", "ladder", "evaluate", "sweep_scores"):
            patch.setattr(f"babeltune.promotion.{module}.FreshScorer", lambda: nullcontext(scoring_process()))
        yield
