"""Sweeps that go to a real Ray head as jobs: tokens on, by its dashboard, with the cluster file alone."""

import contextlib
import json
import re
import secrets
import shlex
import shutil
import socket
import sys
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
import requests
from ray.job_submission import JobSubmissionClient

import babeltune as imported
from audits import read_audit
from babeltune.cli import main
from babeltune.errors import ClusterError, UnknownNameError
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import default_params, make_trial, shapes
from babeltune.planning.sweep_file import read_sweep
from babeltune.remote.jobs import ADDRESSES, SWEEP, Job, Jobs, _job, exit_code, without_variables
from babeltune.remote.wheel import build_wheel
from babeltune.schema.cluster import read_cluster
from babeltune.sweep.driver.baselines import own_scores, shape_speeds
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.sync.audit import ACTOR, who
from heads import environment_of_head, started_head
from made_sweeps import states
from ports import free_port, listens
from toy_plugin import PACKAGE, importable, install, make_source
from waiting import PATIENCE_S, wait_until

TOKEN, PASSWORD = secrets.token_hex(32), secrets.token_hex(16)


@pytest.fixture(scope="module")
def place(tiny, tiny_storage, tmp_path_factory):
    """Where cluster files, the token and the storage of these tests are. The storage has the stores of the tiny
    sweep and the scores of its baselines, so that its jobs prepare nothing."""
    sweep, prepared = tiny
    place = tmp_path_factory.mktemp("jobs")
    shutil.copytree(tiny_storage / "stores", place / "storage" / "stores")
    folder = SweepFolder(place / "storage" / "sweeps" / sweep_id(sweep))
    folder.path.mkdir(parents=True)
    scores = own_scores(make_trial(sweep, 0, default_params(sweep)), prepared)
    speeds = shape_speeds(shapes(sweep), prepared)
    folder.write("baselines.json", {"data": prepared.digest, "scores": scores, "models": {}, "speeds": speeds})
    return place


@pytest.fixture(scope="module")
def head(loopback_only, place):
    """The address of the dashboard of a running `ray start --head` that wants a token."""
    token = place / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    environment = environment_of_head(token) | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1"}
    with contextlib.ExitStack() as stack:
        for _ in range(STARTS):
            process, ports, _ = stack.enter_context(started_head(environment, place / "head.log"))
            port = ports["dashboard"]
            wait_until(lambda: process.poll() is not None or listens(port))  # noqa: B023
            if process.poll() is None:
                break
        assert process.poll() is None, (place / "head.log").read_text()
        yield f"http://127.0.0.1:{port}"


STARTS = 3  # times that a head is started: Ray gives up one whose dashboard a busy machine holds up


@pytest.fixture(scope="module")
def cluster_file(head, place):
    """The cluster file of that head, its token in a variable."""
    path = place / "there.yaml"
    path.write_text(
        f"name: there\naddress: {head}\ntoken_env: TEST_RAY_TOKEN\nstorage: {place}/storage\nworker_groups: 1\n",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def babeltune(command, monkeypatch, cluster_file):
    """Runs a command on that cluster, with the token: exit code, standard output, standard error."""
    monkeypatch.setenv("TEST_RAY_TOKEN", TOKEN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)  # of this machine's user, which the head has no need of
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # the cluster file counts
    return command.with_last("--cluster", cluster_file)


@pytest.fixture(scope="module")
def quick(tiny_file):
    """The id of a sweep that ends in seconds."""
    return sweep_id(read_sweep(tiny_file))


LONG = ("--set", "training.pairs=640000", "--set", "training.reports=1", "--trials", "1")
"""Twenty thousand steps without a report."""


@pytest.fixture(scope="module")
def long(tiny_file):
    """The id of one that does not end by itself while these tests run."""
    return sweep_id(read_sweep(tiny_file, assignments=["training.pairs=640000", "training.reports=1"]))


def words(text):
    return " ".join(text.split())


def test_a_sweep_is_found_by_its_id_its_name_and_what_alone_begins_like_that(monkeypatch):
    jobs = Jobs.__new__(Jobs)
    ran = [("quality", "0a"), ("quick", "1b"), ("quick", "2c"), ("quick", "1b")]
    first = dict.fromkeys(ran)
    known = [Job(f"{name}-{key}-{number}", "STOPPED", sweep=f"{name}-{key}") for number, (name, key) in enumerate(ran)]
    monkeypatch.setattr(jobs, "all", lambda: known)
    assert len(first) == 3
    for name, found in {
        None: "quick-1b-3",
        "quick": "quick-1b-3",
        "quick-2c": "quick-2c-2",
        "quick-1b-1": "quick-1b-3",
        "qual": "quality-0a-0",
        "quick-2": "quick-2c-2",
    }.items():
        assert jobs.find(name).id == found
    assert jobs.find("slow") is None
    with pytest.raises(UnknownNameError, match=r"'qu' begins 3 sweeps: quick-1b, quick-2c, quality"):
        jobs.find("qu")


@pytest.mark.long
def test_a_sweep_goes_there_as_a_job_and_its_log_comes_back(babeltune, tiny_file, quick, place, monkeypatch):
    code, out, err = babeltune("submit", tiny_file)
    assert code == 0, out + err
    assert f"sweep {quick} is submitted as job {quick}-1" in words(err)
    assert "searching" in out
    assert f"next: `babeltune promote {quick} --cluster there.yaml`" in words(out)
    assert (place / "storage" / "sweeps" / quick / "state.json").exists()
    found = babeltune.document("status", quick)
    assert (found["sweep"], found["state"]) == (quick, "finished")
    states = {row["name"]: row["state"] for row in found["leaderboard"]}
    assert [state for name, state in states.items() if name.startswith("t0")] == ["finished"] * 2
    monkeypatch.setattr(Jobs, "find", lambda *_: None)  # as after its head began anew
    assert "searching" in babeltune.prints("logs", quick)


@pytest.mark.long
def test_a_finished_sweep_is_not_stopped_and_whoever_follows_it_sees_its_end(babeltune, tiny_file, quick, monkeypatch):
    assert babeltune("submit", tiny_file)[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(Jobs, "find", lambda *_: Job(f"{quick}-1", "RUNNING", sweep=quick))  # as a moment ago
        patched.setattr(Jobs, "end", lambda _, job: pytest.fail(f"{job} is ended"))
        err = babeltune.refuses("stop", quick, code=1)
        assert f"sweep {quick} is not running; its state is finished" in words(err)
    for command, shown in (("logs", "searching"), ("status", "finished")):
        assert shown in babeltune.prints(command, quick, "-f")


@pytest.mark.long
def test_a_sweep_goes_on_as_jobs_with_changes_that_are_accepted(babeltune, tiny_file):
    seed = ("--set", "seed=7")  # a sweep of its own
    quick = sweep_id(read_sweep(tiny_file, assignments=["seed=7"]))
    babeltune.prints("submit", tiny_file, *seed)
    code, out, err = babeltune("resume", quick, "--spec", tiny_file, *seed, "--set", "training.pairs=1280")
    assert code == 1
    assert "taken" not in out
    assert "training.pairs: 640 → 1280" in out
    assert "--accept-changes" in out
    code, out, err = babeltune("extend", quick, "--trials", 2)
    assert code == 2, out + err
    assert f"sweep {quick} is submitted as job {quick}-3" in words(err), "Ray has seen the first ids"
    assert f"--trials 2: sweep {quick} has a budget of 2 trials; give more than that" in words(out)
    more = ("--spec", tiny_file, *seed, "--trials", 3, "--set", "training.pairs=1280", "--accept-changes")
    code, out, err = babeltune("resume", quick, *more)
    assert code == 0, out + err
    assert "accepted: training.pairs: 640 → 1280; 2 trials began before" in words(out)
    assert f"sweep {quick} is submitted as job {quick}-4" in words(err)
    found = babeltune.document("status", quick)
    assert (found["sweep"], found["state"]) == (quick, "finished")
    states = {row["name"]: row["state"] for row in found["leaderboard"]}
    assert [state for name, state in states.items() if name.startswith("t0")] == ["finished"] * 3
    assert "accepted: training.pairs: 640 → 1280" in babeltune.prints("logs", quick)


@pytest.fixture
def plugin(tmp_path):
    """A method's distribution that this process finds and the head does not; the folder of its package."""
    source, target = make_source(tmp_path / "source"), tmp_path / "target"
    install(source, target, "installed")
    with importable(target):
        yield target / PACKAGE


PLUGGED = ("--set", "method=simcse", "--set", "parameters={}", "--set", "student.dropout=0.1", "--trials", 1)


@pytest.mark.long
def test_a_job_ships_the_plugin_whose_method_its_trial_runs(babeltune, tiny_file, plugin, place):
    babeltune.prints("submit", tiny_file, *PLUGGED, "--set", "name=plugged")
    (folder,) = (place / "storage" / "sweeps").glob("plugged-*")
    assert json.loads((folder / "state.json").read_text())["state"] == "finished"
    assert states(SweepFolder(folder)) == ["finished"]
    assert set(json.loads((folder / "facts.json").read_text())["code"]) == {"babeltune", "simcse-methods"}


@pytest.mark.long
def test_a_later_job_ships_the_plugin_again_and_says_that_it_has_changed(babeltune, tiny_file, plugin):
    found = babeltune.document("submit", tiny_file, *PLUGGED, "--set", "name=changed")
    assert found["plugins"] == ["simcse-methods"]
    (plugin / "temperature.txt").write_text("0.1")
    code, out, err = babeltune("extend", found["sweep"], "--trials", 2)
    assert code == 1, out + err
    assert re.search(r"code\.simcse-methods: \w+… → \w+…", words(out + err))
    assert "--accept-changes" in out
    babeltune.prints("extend", found["sweep"], "--trials", 2, "--accept-changes")


@pytest.mark.long
def test_a_job_whose_plugin_is_compiled_for_other_machines_says_so(babeltune, tiny_file, plugin):
    (plugin / "fast.pyd").write_bytes(b"MZ")
    info = plugin.parent / "simcse_methods-1.0.dist-info"
    with (info / "RECORD").open("a") as record:
        record.write(f"{PACKAGE}/fast.pyd,,\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-win_amd64\n")
    method = ("--set", "name=compiled", "--set", "method=simcse", "--set", "parameters={}")
    err = babeltune.refuses("submit", tiny_file, *method, "--trials", 1, code=1)
    assert "Traceback" not in err
    assert re.search(
        r"error: job compiled-\w+-1: FAILED ERROR: simcse_methods-1.0-\w+-cp311-cp311-win_amd64.whl is not a supported "
        r"wheel on this platform",
        words(err),
    )


@pytest.mark.long
def test_a_second_submit_attaches_and_stop_ends_the_sweep(babeltune, cluster_file, tiny_file, long, place, monkeypatch):
    monkeypatch.setenv(ACTOR, "ana@laptop")  # another user than the head's
    out = babeltune.prints("submit", tiny_file, *LONG, "--detach", "--json")
    assert json.loads(out) | {"state": ""} == {"sweep": long, "job": f"{long}-1", "state": "", "new": True}
    assert babeltune.document("status", long)["state"] in ("starting", "new", "running")
    out = babeltune.prints("submit", tiny_file, *LONG, "--detach")
    assert f"sweep {long} is running as job {long}-1, with what it began with; `babeltune logs {long} -f" in words(out)
    wait_until(lambda: "searching" in babeltune("logs", long)[1])
    for changing, what in (
        (("extend", long, "--trials", 9), "budget"),
        (("resume", long, "--trials", 9), "budget"),
        (("resume", long, "--spec", tiny_file), "spec"),
    ):
        assert f"is running with the {what} that it began with" in words(babeltune.refuses(*changing, code=1))
    assert babeltune.document("stop", long) == {"sweep": long, "stopped": True}
    lines = [line for line in read_audit(place / "storage") if line.subject == long]
    assert [line.action for line in lines] == ["submit", "stop"]
    assert {line.says_it_is for line in lines} == {"ana@laptop"}, "who sent the jobs, by their own word"
    assert {line.user for line in lines} == {who()}
    code, out, _ = babeltune("logs", long, "--json")
    assert (code, json.loads(out)["state"]) == (0, "stopped")
    assert "searching" in json.loads(out)["log"]
    out = babeltune.prints("resume", long, "--detach", "--json")
    assert json.loads(out) | {"state": ""} == {"sweep": long, "job": f"{long}-2", "state": "", "new": True}
    wait_until(lambda: "searching" in babeltune("logs", long)[1])
    assert babeltune("stop", long)[0] == 0
    job = Jobs(read_cluster(cluster_file)).find(long)
    assert (job.id, job.state) == (f"{long}-2", "SUCCEEDED")


@pytest.mark.long
def test_a_job_whose_driver_does_not_hear_a_stop_is_ended(babeltune, cluster_file, long, place):
    babeltune.prints("resume", long, "--detach")
    wait_until(lambda: "searching" in babeltune("logs", long)[1])
    driver = psutil.Process(json.loads((place / "storage" / "sweeps" / long / "driver.json").read_text())["pid"])
    driver.suspend()
    try:
        code, _, err = babeltune("stop", long, "--wait", "1")
    finally:
        driver.resume()
    assert code == 1
    assert f"its driver does not answer; ending job {long}-" in words(err)
    wait_until(lambda: not Jobs(read_cluster(cluster_file)).find(long).live)


@pytest.mark.long
def test_who_follows_a_job_follows_it_again_when_its_dashboard_is_back(head, cluster_file, monkeypatch):
    monkeypatch.setenv("TEST_RAY_TOKEN", TOKEN)
    counts = "import time\nfor n in range(40): print(n, flush=True); time.sleep(0.25)"
    with forwarded(head) as (port, cut):
        cluster = replace(read_cluster(cluster_file), address=f"http://127.0.0.1:{port}")
        jobs = Jobs(cluster)
        job = jobs._client.submit_job(entrypoint=f"python -c {shlex.quote(counts)}")
        wait_until(lambda: jobs.get(job).state == "RUNNING")
        said = ""
        for piece in jobs.follow(job):
            if not said:
                threading.Thread(target=cut, args=(3,)).start()
            said += piece
        numbers = [line for line in said.splitlines() if line.isdigit()]
        assert numbers == [str(n) for n in range(40)], "each line once"
        monkeypatch.setattr("babeltune.remote.jobs.RECONNECT_TIMEOUT_S", 1.0)
        cut(None)
        with pytest.raises(ClusterError, match="does not answer"):
            list(jobs.follow(job))


@contextlib.contextmanager
def forwarded(address):
    """A port that is forwarded to that address, and what cuts it for this many seconds (for good, given None)."""
    there = ("127.0.0.1", int(address.rpartition(":")[2]))
    port, open_ones, away, ended = free_port(), set(), threading.Event(), threading.Event()

    def pump(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve():
        while not ended.is_set():
            if away.wait(0.05):
                continue
            with socket.create_server(("127.0.0.1", port), reuse_port=True) as server:
                server.settimeout(0.1)
                while not away.is_set() and not ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        ours, theirs = server.accept()[0], socket.create_connection(there)
                        open_ones.update((ours, theirs))
                        for pair in ((ours, theirs), (theirs, ours)):
                            threading.Thread(target=pump, args=pair, daemon=True).start()

    def cut(seconds):
        away.set()
        wait_until(lambda: not listens(port))
        for one in open_ones:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if seconds is not None:
            time.sleep(seconds)
            away.clear()

    thread = threading.Thread(target=serve)
    thread.start()
    wait_until(lambda: listens(port))
    try:
        yield port, cut
    finally:
        ended.set()
        thread.join()
        for one in open_ones:
            one.close()


@pytest.mark.long
def test_the_job_of_another_program_is_left_alone(babeltune, head, long):
    with without_variables(ADDRESSES):
        client = JobSubmissionClient(head, headers={"Authorization": f"Bearer {TOKEN}"})
    theirs = client.submit_job(entrypoint="sleep 600", submission_id="nightly-2024050112-3")
    try:
        wait_until(lambda: client.get_job_status(theirs) == "RUNNING")
        assert f"sweep {long} is not running" in words(babeltune.refuses("stop", code=1))
        assert "no sweep 'nightly'" in words(babeltune.refuses("stop", "nightly"))
        code, out, _ = babeltune("status", "--json")
        assert (code, json.loads(out)["sweep"]) == (0, long)
        assert client.get_job_status(theirs) == "RUNNING"
    finally:
        client.stop_job(theirs)


@pytest.mark.long
def test_the_doctor_looks_here_and_at_the_head(babeltune, place):
    out = babeltune.prints("doctor", "--json")
    findings = {one["name"]: one for one in json.loads(out)}
    assert {"python", "ray", "address", "token", "head: storage", "head: tracking", "head: worker groups"} <= set(
        findings
    )
    assert findings["babeltune"]["text"] == f"from {Path(imported.__file__).parent}"
    assert "/runtime_resources/py_modules_files/" in findings["head: babeltune"]["text"], "the wheel that was sent"
    assert findings["token"]["text"] == "is accepted"
    assert str(place / "storage") in findings["head: storage"]["text"]


@pytest.mark.long
def test_no_job_and_no_log_holds_a_secret(head, cluster_file, place, monkeypatch):
    monkeypatch.setenv("TEST_RAY_TOKEN", TOKEN)
    answer = requests.get(f"{head}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S)
    assert answer.json(), "the job of a sweep; those of questions are forgotten"
    jobs = Jobs(read_cluster(cluster_file))
    texts = [answer.text, *("".join(jobs.follow(job.id)) for job in jobs.all() if not job.live)]
    stored = [path for path in (place / "storage").rglob("*") if path.is_file() and path.stat().st_size < 10**7]
    assert stored
    texts += [path.read_text(encoding="utf-8", errors="replace") for path in stored]
    assert not [text for text in texts if TOKEN in text or PASSWORD in text]


def test_a_wrong_token_and_none_are_one_clear_line(babeltune, monkeypatch, tiny_file):
    wrong = (1, "0" * 64, "does not accept the token; put the cluster's token into")
    for exits_with, token, expected in (wrong, (2, " ", "is not set")):
        monkeypatch.setenv("TEST_RAY_TOKEN", token)
        for command in (("submit", tiny_file), ("status",), ("stop",)):
            code, out, err = babeltune(*command)
            assert (code, out) == (exits_with, "")
            assert len(err.strip().splitlines()) == 1
            assert expected in err
            assert "TEST_RAY_TOKEN" in err
    code, out, _ = babeltune("doctor", "--json")
    assert code == 1
    assert [one["name"] for one in json.loads(out) if not one["ok"]] == ["address"]


def test_a_command_that_no_job_runs_says_where_it_runs(babeltune):
    rule = "takes jobs only, and this command is not a job; run it on the cluster's head"
    assert rule in words(babeltune.refuses("ui"))


@pytest.fixture
def status():
    """With what the dashboard below answers."""
    return 200


@pytest.fixture
def held():
    """The dashboard below answers while this is set."""
    goes = threading.Event()
    goes.set()
    return goes


@pytest.fixture
def open_dashboard(tmp_path, loopback_only, status, held):
    """The cluster file of a server that lists its jobs to everybody."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            self.do_GET()

        def do_GET(self):
            held.wait(PATIENCE_S)
            body = json.dumps({"ray_version": ray.__version__, "version": "4"} if "version" in self.path else [])
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # who has waited for too long is gone
                self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    path = tmp_path / "open.yaml"
    path.write_text(f"address: http://127.0.0.1:{server.server_port}\nstorage: /x\n", encoding="utf-8")
    yield path
    held.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_open_dashboard_gets_nothing_without_insecure(open_dashboard, tiny_file, monkeypatch, capfd):
    for command in (["submit", str(tiny_file)], ["resume"]):
        monkeypatch.setattr(sys, "argv", ["babeltune", *command, "--cluster", str(open_dashboard)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert "wants no token: whoever reaches it can run programs there" in words(captured := capfd.readouterr().err)
        assert "pass --insecure" in words(captured)


def test_a_dashboard_that_stands_still_is_one_line_after_a_deadline(open_dashboard, held, monkeypatch):
    monkeypatch.setattr("babeltune.remote.jobs.REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr("babeltune.remote.jobs.RECONNECT_TIMEOUT_S", 0.3)
    jobs = Jobs(read_cluster(open_dashboard))
    held.clear()
    for wait in (jobs.all, lambda: list(jobs.follow("a-job")), lambda: jobs.end("a-job")):
        with pytest.raises(ClusterError, match=r"does not answer \(.*start it, or check `address`") as said:
            wait()
        assert "\n" not in str(said.value)


@pytest.mark.parametrize("status", [302, 500, 503])
def test_a_dashboard_that_is_neither_open_nor_closed_is_not_taken_for_either(open_dashboard, status):
    with pytest.raises(ClusterError, match=rf"answers with status {status}, which does not say whether it wants a"):
        Jobs(read_cluster(open_dashboard))


@pytest.mark.parametrize("status", [401, 403])
def test_a_dashboard_that_refuses_who_has_no_token_is_closed(open_dashboard, status):
    with pytest.raises(ClusterError, match="name the token in the cluster file"):
        Jobs(read_cluster(open_dashboard))


def test_a_token_that_is_taken_no_more_is_one_line_whatever_waits(head, cluster_file, monkeypatch):
    monkeypatch.setenv("TEST_RAY_TOKEN", TOKEN)
    jobs = Jobs(read_cluster(cluster_file))
    job = jobs._client.submit_job(entrypoint="sleep 600")
    right = jobs._client._headers["Authorization"]
    jobs._client._headers["Authorization"] = "Bearer " + "0" * 64  # as after the head has begun anew with another
    try:
        for wait in (lambda: list(jobs.follow(job)), lambda: jobs.submit_question(["methods"], {"a": b""}), jobs.all):
            with pytest.raises(ClusterError, match=r"does not accept the token; put .* TEST_RAY_TOKEN") as said:
                wait()
            assert "\n" not in str(said.value)
    finally:
        jobs._client._headers["Authorization"] = right
        jobs.end(job)


def test_a_command_that_does_not_begin_is_ended_and_said(babeltune, cluster_file, monkeypatch):
    monkeypatch.setattr("babeltune.remote.jobs.BEGIN_TIMEOUT_S", 0.0)
    err = babeltune.refuses("runs", code=1)
    asked = re.search(r"has not begun `babeltune runs \S+ \S+` within 0 s; its job (\S+) is PENDING", words(err))[1]
    jobs = Jobs(read_cluster(cluster_file))
    wait_until(lambda: not any(job.id == asked and job.live for job in jobs.all()))


def test_an_address_where_nothing_answers_is_one_line(tmp_path, loopback_only):
    cluster = read_cluster(written(tmp_path, f"address: http://127.0.0.1:{free_port()}\nstorage: /x\n"))
    with pytest.raises(ClusterError, match="does not answer") as caught:
        Jobs(cluster)
    assert "\n" not in str(caught.value)


def written(folder, text):
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_job_is_known_by_its_sweep_and_attempt():
    def seen(name, state, **metadata):
        status = SimpleNamespace(value=state)
        return _job(
            SimpleNamespace(submission_id=name, status=status, driver_exit_code=None, message=None, metadata=metadata)
        )

    job = seen("tiny-0123456789-12", "RUNNING", **{SWEEP: "tiny-0123456789"})
    assert (job.sweep, job.attempt, job.live) == ("tiny-0123456789", 12, True)
    for name in ("raysubmit_x", "nightly-2024050112-3"):
        assert (seen(name, "FAILED", theirs="1").sweep, seen(name, "FAILED").live) == ("", False)
    assert Job("a-1", "FAILED", message="failed:\nTraceback (most\n  x\nValueError: y\n").reason == "ValueError: y"
    assert Job("a-1", "FAILED", message="it was killed\nby somebody").reason == "it was killed by somebody"
    assert exit_code(Job("a-1", "FAILED", 3)) == 3
    assert exit_code(Job("a-1", "SUCCEEDED", 0)) == 0
    assert exit_code(Job("a-1", "STOPPED", -15)) == exit_code(Job("a-1", "FAILED")) == 1


@pytest.mark.slow
def test_the_wheel_is_named_by_its_content_and_names_no_dependency(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = build_wheel(tmp_path / "a"), build_wheel(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        (record,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/RECORD"))
        assert archive.testzip() is None
    assert "Requires-Dist" not in metadata
    assert {line.split(",")[0] for line in record.splitlines()} == set(names)
    assert any(name.endswith("entry_points.txt") for name in names)
