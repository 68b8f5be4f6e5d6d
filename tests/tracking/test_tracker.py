import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from babeltune.errors import PromotionError
from babeltune.schema.records import Point
from babeltune.stages import listening
from babeltune.sweep.state import provenance
from babeltune.tracking import mlflow_client, registry
from babeltune.tracking import tracker as track
from benchmarks import event_log
from benchmarks.event_log import EventLog
from ports import free_port
from registering import register
from waiting import PATIENCE_S, wait_for_server, wait_until

DEAD = "http://127.0.0.1:9"  # the discard port: nothing listens


@pytest.fixture
def clients():
    """Makes MLflow clients that look at a store without the tracker."""
    from mlflow import MlflowClient

    return lambda uri: MlflowClient(tracking_uri=uri, registry_uri=uri)


@pytest.fixture(scope="module")
def fresh_store(tmp_path_factory):
    """An empty sqlite store to copy: building its tables takes seconds."""
    folder = tmp_path_factory.mktemp("fresh")
    mlflow_client.open_client(f"sqlite:///{folder}/mlflow.db").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def store(fresh_store, tmp_path):
    (tmp_path / "mlflow.db").write_bytes(fresh_store.read_bytes())
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(track, "RETRY_S", (0.05, 0.2))
    monkeypatch.setattr(track, "POLL_S", 0.02)


def points(first, last, value=0.5):
    return [Point(step=s, time_ms=1_000 + s, values={"train/loss": value * s, "x": 1.0}) for s in range(first, last)]


def steps(client, run_id, name="train/loss"):
    return [m.step for m in client.get_metric_history(run_id, name)]


def a_sweep(tracker):
    tracker.start_sweep("quick-1a2b", {"sweep": {"name": "quick"}, "seed": 0}, {"git.commit": "abc"})
    tracker.start_trial(0, {"temperature": 0.05, "config": {"labels": "hard"}}, {"data.ntrex": "sha"})
    return tracker


def test_a_sweep_and_its_trials_become_a_parent_run_and_child_runs(store, tmp_path, clients):
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.start_trial("untrained", {}, {})
    tracker.metrics(0, points(1, 6))
    tracker.metrics(None, [Point(step=1, time_ms=5, values={"system/cpu": 0.7})])
    tracker.end_trial(0, "FINISHED", {"pruned": True})
    tracker.end_trial("untrained", "FAILED", {"reason": "x"})
    tracker.end_sweep("KILLED")
    assert tracker.close(PATIENCE_S)
    assert (tracker.refused, tracker.trouble, tracker.waiting()) == (0, None, 0)
    client = clients(store)
    parent, child, baseline = (client.get_run(tracker.run_id(key)) for key in (None, 0, "untrained"))
    assert (parent.info.status, child.info.status, baseline.info.status) == ("KILLED", "FINISHED", "FAILED")
    assert child.data.tags["mlflow.parentRunId"] == baseline.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags | {"data.ntrex": "sha", "pruned": "true", "babeltune.trial": "t0000"} == child.data.tags
    assert child.data.params == {"temperature": "0.05", "config.labels": "hard"}
    assert parent.data.params == {"sweep.name": "quick", "seed": "0"}
    assert parent.data.metrics == {"system/cpu": 0.7}
    assert steps(client, child.info.run_id) == [1, 2, 3, 4, 5]
    assert [m.timestamp for m in client.get_metric_history(child.info.run_id, "x")] == [1001, 1002, 1003, 1004, 1005]
    assert child.info.artifact_uri.startswith((tmp_path / "artifacts").as_uri())
    assert not (tmp_path / "mlruns").exists()


def test_replaying_the_whole_log_adds_no_run_and_no_number(store, tmp_path, clients):
    path = tmp_path / "events.jsonl"
    for acknowledged in (None, b"{}", b"\xff"):
        tracker = EventLog(store, path, "babeltune")
        if not path.exists():
            a_sweep(tracker)
            tracker.metrics(0, points(1, 1500))
            tracker.end_trial(0, "FINISHED", {})
        assert tracker.flush(PATIENCE_S)
        tracker.close()
        record = path.with_name("mlflow.json")  # every acknowledgement is lost
        record.unlink() if acknowledged is None else record.write_bytes(acknowledged)
    client = clients(store)
    experiment = client.get_experiment_by_name("babeltune").experiment_id
    assert len(client.search_runs([experiment])) == 2
    assert steps(client, tracker.run_id(0)) == list(range(1, 1500))
    assert client.get_run(tracker.run_id(0)).info.status == "FINISHED"


def test_a_dead_server_never_delays_the_caller_and_loses_nothing(store, tmp_path, clients, impatient):
    path = tmp_path / "events.jsonl"
    tracker = a_sweep(EventLog(DEAD, path, "babeltune"))
    for point in points(1, 301):
        tracker.metrics(0, [point])
    wait_until(lambda: tracker.trouble)
    assert not tracker.flush(0)
    assert "does not take events" in tracker.trouble
    assert tracker.run_id(0) is None
    tracker.close(0.1)
    again = EventLog(store, path, "babeltune")  # the server is back, somewhere else
    again.metrics(0, points(301, 311))
    assert again.close(PATIENCE_S)
    assert steps(clients(store), again.run_id(0)) == list(range(1, 311))


def test_the_caller_makes_no_request_itself(tmp_path, monkeypatch):
    callers, opened = set(), threading.Event()

    def stuck(uri):
        callers.add(threading.current_thread().name)
        opened.wait()
        raise ConnectionError("the server hung")

    monkeypatch.setattr(track.mlflow_client, "open_client", stuck)
    tracker = a_sweep(EventLog(DEAD, tmp_path / "events.jsonl", "babeltune"))
    wait_until(lambda: callers)
    for point in points(1, 2001):  # all while the sender hangs
        tracker.metrics(0, [point])
    assert callers == {"babeltune-track"}
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2002
    opened.set()
    tracker.close(0)


def test_what_the_store_refuses_does_not_hold_up_the_rest(store, tmp_path, clients, caplog):
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.metrics(7, points(1, 3))
    tracker.metrics(0, [Point(step=1, time_ms=1, values={"dev/a+b(c)/accuracy": 0.5, "none": None})])
    tracker.metrics(0, [Point(step=2, time_ms=1, values={"dev/a+b(c)/accuracy": 0.75})])
    tracker.end_trial(0, "NONSENSE", {})
    tracker.end_trial(0, "FAILED", {"reason": "r" * 9000})
    tracker.start_trial(1, {"long": "p" * 9000} | {f"p{i}": i for i in range(250)}, {})
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 3
    assert "'7' was never started" in caplog.text
    data = clients(store).get_run(tracker.run_id(0)).data
    assert data.metrics == {"dev/a_b_c_/accuracy": 0.75}
    assert data.tags["reason"].endswith("(cut; 9000 characters, the log has all)")
    params = clients(store).get_run(tracker.run_id(1)).data.params
    assert len(params) == 251
    assert len(params["long"]) == 6000


@pytest.mark.parametrize("away", [0, 12])
def test_a_request_in_whose_midst_the_database_went_is_made_again(store, tmp_path, clients, monkeypatch, away):
    """As MLflow says it of a PostgreSQL that has ended a connection, and that starts up for a while: a bad request."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    log_batch, get_experiment, failures = MlflowClient.log_batch, MlflowClient.get_experiment, []

    def fail(request):
        failures.append(request)
        raise MlflowException("(pg8000.dbapi.ProgrammingError) the database is starting up", error_code=BAD_REQUEST)

    def log(client, run, metrics=(), *others):
        return fail("log") if metrics and len(failures) <= away else log_batch(client, run, metrics, *others)

    def get(client, experiment):
        return fail("get") if failures and len(failures) <= away else get_experiment(client, experiment)

    monkeypatch.setattr("babeltune.tracking.tracker.RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(MlflowClient, "log_batch", log)
    monkeypatch.setattr(MlflowClient, "get_experiment", get)
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.metrics(0, points(1, 4))
    assert tracker.close(PATIENCE_S)
    assert (len(failures), tracker.refused) == (away + 1, 0)
    assert steps(clients(store), tracker.run_id(0)) == [1, 2, 3]


def test_a_request_that_the_database_refuses_while_it_answers_is_counted(store, tmp_path, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    def refuse(client, run, metrics=(), *others):
        raise MlflowException("value too long", error_code=BAD_REQUEST)

    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    tracker.metrics(0, points(1, 4))
    assert tracker.close(PATIENCE_S)
    assert tracker.refused > 0


def test_a_resumed_trial_goes_on_in_its_run_and_says_what_changed(store, tmp_path, clients):
    path = tmp_path / "events.jsonl"
    tracker = a_sweep(EventLog(store, path, "babeltune"))
    tracker.metrics(0, points(1, 4))
    tracker.end_trial(0, "KILLED", {})
    assert tracker.close(PATIENCE_S)
    first = tracker.run_id(0)
    tracker = EventLog(store, path, "babeltune")
    assert tracker.run_id(0) == first
    tracker.start_sweep("quick-1a2b", {"seed": 1}, {})
    tracker.start_trial(0, {"temperature": 0.05}, {})
    tracker.metrics(0, points(3, 6))
    assert tracker.close(PATIENCE_S)
    client = clients(store)
    assert tracker.run_id(0) == first
    assert client.get_run(first).info.status == "RUNNING"
    assert steps(client, first) == [1, 2, 3, 4, 5]
    assert json.loads(client.get_run(tracker.run_id(None)).data.tags["babeltune.changed_params"]) == {"seed": "1"}


def test_a_store_that_lost_everything_gets_everything_again(fresh_store, tmp_path, clients, impatient):
    path, uris = tmp_path / "events.jsonl", []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mlflow.db").write_bytes(fresh_store.read_bytes())
        uris.append(f"sqlite:///{tmp_path}/{name}/mlflow.db")
    tracker = a_sweep(EventLog(uris[0], path, "babeltune"))
    tracker.metrics(0, points(1, 4))
    assert tracker.close(PATIENCE_S)
    state = json.loads(path.with_name("mlflow.json").read_text())
    state["store"] = hashlib.sha256(f"{uris[1]}\nbabeltune".encode()).hexdigest()  # as if b were a, emptied
    path.with_name("mlflow.json").write_text(json.dumps(state))
    tracker = EventLog(uris[1], path, "babeltune")
    tracker.metrics(0, points(4, 6))
    assert tracker.flush(PATIENCE_S)
    assert tracker.flush(PATIENCE_S)
    tracker.close()
    assert steps(clients(uris[1]), tracker.run_id(0)) == [1, 2, 3, 4, 5]


@pytest.mark.long
@pytest.mark.parametrize("damage", ["all of it", "its pages"])
def test_a_damaged_database_is_named_with_what_to_do_and_a_new_one_gets_everything(
    fresh_store, tmp_path, clients, impatient, damage
):
    path, file = tmp_path / "events.jsonl", tmp_path / "mlflow.db"
    whole = fresh_store.read_bytes()
    file.write_bytes(b"nonsense" * 512 if damage == "all of it" else whole[:100] + b"\xff" * (len(whole) - 100))
    store = f"sqlite:///{file}"
    tracker = a_sweep(EventLog(store, path, "babeltune"))
    tracker.metrics(0, points(1, 4))
    wait_until(lambda: tracker.trouble)
    tracker.close(0)
    assert "mlflow.db does not take events: DatabaseError" in tracker.trouble
    assert "; restore the file, or move it away" in tracker.trouble
    with pytest.raises(PromotionError, match=r"cannot look up 'quick' .*mlflow.db: DatabaseError.* or move it away"):
        registry.champion_of(store, "quick", "champion")
    file.rename(tmp_path / "away.db")
    send = (
        "import pathlib, sys; from benchmarks.event_log import EventLog\n"
        "tracker = EventLog(sys.argv[1], pathlib.Path(sys.argv[2]), 'babeltune')\n"
        "assert tracker.close(600)\n"
        "print(tracker.run_id(0))"
    )  # by another process, as `resume` is one: this one has the damaged file open
    run = subprocess.check_output([sys.executable, "-c", send, store, str(path)], text=True).strip()
    assert steps(clients(f"sqlite:///{tmp_path}/./mlflow.db"), run) == [1, 2, 3]


def test_a_half_written_line_is_cut_off_and_a_broken_one_skipped(store, tmp_path, clients):
    path = tmp_path / "events.jsonl"
    tracker = a_sweep(EventLog(DEAD, path, "babeltune"))
    tracker.close(0)
    with path.open("ab") as file:
        file.write(b'{"do": "metr\xff\n{"do": "metrics", "key": "0", "poi')
    tracker = EventLog(store, path, "babeltune")
    tracker.metrics(0, points(1, 3))
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 1
    assert steps(clients(store), tracker.run_id(0)) == [1, 2]


def test_a_disk_that_takes_no_acknowledgement_loses_and_doubles_nothing(store, tmp_path, clients, impatient):
    cursor = tmp_path / "mlflow.json"
    cursor.mkdir()
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.metrics(0, points(1, 4))
    wait_until(lambda: tracker.trouble)
    assert not tracker.flush(0)
    cursor.rmdir()
    assert tracker.close(PATIENCE_S)
    assert steps(clients(store), tracker.run_id(0)) == [1, 2, 3]
    assert json.loads(cursor.read_text())["offset"] == (tmp_path / "events.jsonl").stat().st_size


def test_a_log_that_was_cut_off_and_grew_again_is_sent_from_its_beginning(store, tmp_path, clients):
    path = tmp_path / "events.jsonl"
    tracker = a_sweep(EventLog(store, path, "babeltune"))
    start = path.read_bytes()
    tracker.metrics(0, points(1, 4))
    assert tracker.flush(PATIENCE_S)
    path.write_bytes(start)
    tracker.metrics(0, points(1, 3))
    tracker.metrics(0, points(3, 9))
    assert tracker.close(PATIENCE_S)
    assert steps(clients(store), tracker.run_id(0)) == list(range(1, 9))
    path.write_bytes(start + start)
    tracker = EventLog(store, path, "babeltune")
    tracker.metrics(0, points(9, 10))
    assert tracker.close(PATIENCE_S)
    assert steps(clients(store), tracker.run_id(0)) == list(range(1, 10))


def test_a_line_whose_files_are_on_their_way_is_sent_once_they_are_here(store, tmp_path, clients, monkeypatch):
    here, request = threading.Event(), threading.Event()

    def events(self, line):
        if line["do"] != "metrics" or here.is_set():
            return [line]
        request.set()
        return None

    monkeypatch.setattr(event_log.Verbatim, "events", events)
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.metrics(0, points(1, 4))
    assert request.wait(PATIENCE_S)
    assert not tracker.flush(0)
    here.set()
    assert tracker.close(PATIENCE_S)
    assert (steps(clients(store), tracker.run_id(0)), tracker.refused) == ([1, 2, 3], 0)


def test_a_password_in_the_uri_is_neither_logged_nor_kept(tmp_path, caplog, impatient):
    uri = "http://anna:secret@127.0.0.1:9"
    tracker = a_sweep(EventLog(uri, tmp_path / "events.jsonl", "babeltune"))
    wait_until(lambda: tracker.trouble)
    tracker.close(0)
    assert "127.0.0.1:9 does not take events" in tracker.trouble
    assert "secret" not in tracker.trouble + caplog.text + "".join(p.read_text() for p in tmp_path.glob("*.json*"))


# A real server, killed in the middle.


class Server:
    """`mlflow server` in a session of its own, so that it can be killed with its worker by process group."""

    def __init__(self, folder):
        self.port = free_port()
        self.folder, self.uri = folder, f"http://127.0.0.1:{self.port}"

    def start(self):
        store = f"sqlite:///{self.folder}/mlflow.db"
        command, environment = mlflow_client.serve_command(store, self.folder / "artifacts", self.port)
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self):
        wait_for_server(self.process, self.uri, self.folder / "server.log")

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def server(fresh_store, tmp_path):
    (tmp_path / "mlflow.db").write_bytes(fresh_store.read_bytes())
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


def test_killing_the_server_loses_nothing_and_doubles_nothing(server, tmp_path, clients, impatient):
    tracker = a_sweep(EventLog(server.uri, tmp_path / "events.jsonl", "babeltune"))  # before the server is up
    server.wait()
    assert tracker.flush(PATIENCE_S)
    run = tracker.run_id(0)
    stop, numbers = threading.Event(), []

    def train():
        while not stop.is_set():
            batch = points(len(numbers) + 1, len(numbers) + 6)
            tracker.metrics(0, batch)
            numbers.extend(p.step for p in batch)
            time.sleep(0.02)

    training = threading.Thread(target=train)
    training.start()
    offset = tracker._cursor.offset
    wait_until(lambda: tracker._cursor.offset > offset)  # numbers have begun to arrive
    server.kill()
    count = len(numbers)
    wait_until(lambda: tracker.trouble and len(numbers) >= count + 50)  # training goes on without a server
    tracker.start_trial(1, {}, {})
    server.start()
    server.wait()
    stop.set()
    training.join()
    tracker.end_trial(0, "FINISHED", {})
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 0
    client = clients(server.uri)
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for name in ("train/loss", "x"):
        assert steps(client, run, name) == numbers
    assert tracker.run_id(0) == run
    assert len(client.search_runs(["1"])) == 3

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert register(server.uri, "quick", model, run, "champion", {}, replaces=None) == "1"
    assert registry.champion_of(server.uri, "quick", "champion").run_id == run
    files = client.list_artifacts(run, registry.champion_of(server.uri, "quick", "champion").source.rsplit("/", 1)[1])
    assert [f.path.rsplit("/", 1)[1] for f in files] == ["config.json"]


def test_the_registry_moves_an_alias_and_knows_the_same_files_again(store, tmp_path):
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    assert tracker.close(PATIENCE_S)
    run = tracker.run_id(0)
    versions, before = [], None
    for content in ("first", "second", "first"):
        folder = tmp_path / f"model-{len(versions)}"
        (folder / "1_Pooling").mkdir(parents=True)
        (folder / "1_Pooling" / "config.json").write_text(content)
        versions.append(register(store, "quick", folder, run, "champion", {"sweep": "quick-1a2b"}, replaces=before))
        before = versions[-1]
        assert registry.champion_of(store, "quick", "champion").version == versions[-1]
    assert versions == ["1", "2", "1"]
    champion = registry.champion_of(store, "quick", "champion")
    assert (champion.run_id, champion.tags) == (run, {"sweep": "quick-1a2b"})
    from mlflow.artifacts import download_artifacts

    copy = download_artifacts(champion.source, dst_path=tmp_path / "copy", tracking_uri=store)
    assert (tmp_path / "copy" / copy / "1_Pooling" / "config.json").read_text() == "first"
    assert registry.champion_of(store, "quick", "candidate") is None
    assert registry.champion_of(store, "unknown", "champion") is None


def test_a_registry_that_refuses_says_why_and_what_to_do(store, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("a")
    with pytest.raises(PromotionError, match=r"cannot register 'quick' .* promote again"):
        register(store, "quick", tmp_path / "model", "0" * 32, "champion", {}, replaces=None)


def test_the_environment_names_commit_and_versions():
    facts = provenance.environment_facts()
    assert facts["version.torch"].startswith("2.")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["git.commit"]
    assert all(isinstance(value, str) for value in facts.values())


def test_importing_the_tracker_does_not_import_mlflow():
    code = "import sys, babeltune.tracking.tracker; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_counts_steps_in_its_unit_and_is_gone_on_with(store, tmp_path, clients):
    path = tmp_path / "events.jsonl"
    for first in (1, 3):
        tracker = EventLog(store, path, "babeltune")
        tracker.start_sweep("quick-1a2b", {"seed": 0}, {})
        tracker.start_trial(0, {"temperature": 0.05}, {}, step_unit="pairs")
        tracker.metrics(0, points(first, first + 2), per_step=64)
        assert tracker.close(PATIENCE_S)
    client, run = clients(store), tracker.run_id(0)
    assert registry.find_run(store, "babeltune", "quick-1a2b", 0) == run
    assert registry.trial_of_run(store, run) == "quick-1a2b/t0000"
    assert steps(client, run) == [64, 128, 192, 256]
    assert client.get_run(run).info.run_name == "t0000"


def test_a_description_leads_to_the_runs_that_it_names(store, tmp_path, clients, impatient):
    """Its words were written while MLflow was away, and nobody knew the ids of the runs."""
    path, link = tmp_path / "events.jsonl", mlflow_client.link_to_run
    tracker = a_sweep(EventLog(DEAD, path, "babeltune"))
    tracker.start_trial("a (model)", {}, {})
    names = ("t0000", "a (model)", "t0009")
    note = " ".join([*(link(name, name) for name in names), link("report", artifact="report.html")])
    tracker.tags(None, {"mlflow.note.content": note})
    tracker.close(0)
    tracker = EventLog(store, path, "babeltune")
    assert tracker.close(PATIENCE_S)
    client = clients(store)
    parent, trial, model = (client.get_run(tracker.run_id(key)).info for key in (None, 0, "a (model)"))
    page = f"#/experiments/{parent.experiment_id}/runs"
    assert client.get_run(parent.run_id).data.tags["mlflow.note.content"] == (
        f"[t0000]({page}/{trial.run_id}) [a (model)]({page}/{model.run_id}) t0009 "
        f"[report]({page}/{parent.run_id}/artifacts/report.html)"
    )


def test_a_file_that_the_store_refuses_holds_up_no_number(store, tmp_path, clients, monkeypatch):
    from mlflow import MlflowClient

    log_artifact = MlflowClient.log_artifact

    def refuse_one(client, run, path):
        if path.endswith("refused.txt"):
            raise PermissionError(path)
        log_artifact(client, run, path)

    monkeypatch.setattr(MlflowClient, "log_artifact", refuse_one)
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "babeltune"))
    tracker.artifact(0, "refused.txt", b"x")
    tracker.artifact(0, "there.txt", b"x")
    tracker.metrics(0, points(1, 3))
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 1
    assert steps(clients(store), tracker.run_id(0)) == [1, 2]
    assert [f.path for f in clients(store).list_artifacts(tracker.run_id(0))] == ["there.txt"]


def test_the_end_of_a_sweep_says_how_much_mlflow_still_has_to_take(store, tmp_path, monkeypatch):
    monkeypatch.setattr(track, "TELL_EVERY_S", 0.01)
    some_taken, steps, end = threading.Event(), [], track._Sender._end

    def slow_end(self, key, event):
        assert some_taken.wait(PATIENCE_S)
        end(self, key, event)

    def see(*step):
        steps.append(step)
        if step[1] > 0:
            some_taken.set()

    monkeypatch.setattr(track._Sender, "_end", slow_end)
    tracker = a_sweep(EventLog(store, tmp_path / "events.jsonl", "quick"))
    tracker.end_trial(0, "FINISHED", {})
    with listening(see):
        assert tracker.close(PATIENCE_S)
    assert {name for name, _, _ in steps} == {"writing to MLflow"}
    assert any(0 < done < of for _, done, of in steps)
    assert steps[-1][1] == steps[-1][2]


def test_drivers_whose_server_failed_do_not_ask_it_again_at_one_moment():
    waits = {track.jittered(8.0) for _ in range(20)}
    assert 4.0 <= min(waits) < max(waits) <= 8.0
