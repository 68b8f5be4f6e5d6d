import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml

from babeltune.data import teacher, tokens
from babeltune.data.prepared import write_prepared
from babeltune.files import sha256_of
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.storage.packages import PACKAGE_MANIFEST
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.workers.nodes import are_several
from babeltune.training.checkpoint import read_reports
from babeltune.training.trainer import train
from marked import MARK, end_marked

pytestmark = pytest.mark.usefixtures("loopback_only")
SCENES = Path(__file__).parents[2] / "several_nodes.py"
PASSED_ON = re.compile(r"(prepared|teacher|tokenizer|tokens)-.*")  # stores that workers read, which a bucket gets


def play(scene, folder, **variables):
    """What the scene saw, on a cluster of its own that wants a token."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-this-test"}
    environment |= variables
    try:
        command = [sys.executable, str(SCENES), scene, str(folder)]
        played = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    finally:
        end_marked(mark)
    assert played.returncode == 0, played.stderr[-3000:]
    return json.loads(played.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_new_node_brings_a_group_and_a_lost_one_leaves_its_trial_to_another(tmp_path):
    saw = play("come_and_go", tmp_path)
    assert saw["counts"] == [1, 2, 1]
    assert saw["last"] == {"a": 60, "b": 60}
    assert saw["why"] == {"a": None, "b": None}
    assert sorted(saw["begun"].values()) == [1, 2], "one of them was begun again, from its checkpoint"
    assert any("there is room for another worker group" in note for note in saw["notes"])
    assert any("has lost its node" in note for note in saw["notes"])


@pytest.mark.long
def test_missing_nodes_are_asked_for_with_the_groups_and_let_go_with_them(tmp_path):
    saw = play("from_none", tmp_path)
    pool, stopped, refused = saw["began"]
    assert (stopped, pool) == ("stopped", 2)
    assert refused.startswith("no nodes have come within 3 s (`nodes_within`), asked for 8 × {CPU: 1}; `ray status`")
    first, *_, second, third = saw["notes"]
    assert first == second == "waiting for nodes: asked for 2 × {CPU: 1}"
    assert third == "waiting for nodes: asked for 8 × {CPU: 1}"
    assert saw["seen"] == {"a": [1]}
    assert set(saw["groups"]) == {"REMOVED"}, "nothing is asked for any more"


@pytest.mark.long
def test_an_elastic_group_asks_an_autoscaler_for_the_workers_that_it_has_lost(tmp_path):
    saw = play("regrow", tmp_path)
    assert saw["seen"].keys() == {"0", "1", "2"}, "after none, one and both of its nodes were lost"
    assert [begun[-1] for begun in saw["seen"].values()] == [2, 2, 2]
    assert any(1 in begun for begun in saw["seen"].values()), "and it did not wait for the second"
    one, two = (f"waiting for nodes: asked for {count} × {{CPU: 1}}" for count in (1, 2))
    assert set(saw["asked"]["1"]) <= {one}, "none where the worker group's own group asked before it was gone"
    assert set(saw["asked"]["2"]) <= {one, two}


@pytest.mark.long
def test_an_elastic_group_reaches_the_same_scores_with_fewer_workers(tiny, tmp_path):
    sweep, prepared = tiny
    sweep = replace(sweep, training=replace(sweep.training, pairs=2560, reports=8))
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    write_prepared(prepared, folder.prepared)
    (tmp_path / "trial.json").write_text(assignment(sweep, folder, 0, {}).encode())
    assert play("shrink_and_grow", tmp_path) == {"last": 8, "why": None, "later": [2]}
    whole, cut = (read_reports(tmp_path / name) for name in ("whole", "cut"))
    assert [report.facts["world_size"] for report in whole] == [2] * 8
    assert [cut[0].facts["world_size"], cut[-1].facts["world_size"]] == [2, 1]
    scores = [{k: v for k, v in reports[-1].metrics.items() if k.startswith("dev/")} for reports in (whole, cut)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4, abs=1e-4)


@pytest.mark.long
def test_an_elastic_group_for_which_nothing_is_left_gives_its_trial_to_another(tmp_path):
    saw = play("lose_one_of_two", tmp_path)
    assert saw["last"] == {"a": 60, "b": 60}
    assert saw["why"] == {"a": None, "b": None}
    assert any("has lost its node" in note for note in saw["notes"])


@pytest.mark.long
def test_a_group_that_has_never_had_a_place_waits_for_one(tmp_path):
    assert play("wait_for_room", tmp_path) == {"notes": [], "same": True}


@pytest.mark.long
def test_a_trial_whose_group_has_no_node_any_more_stops_when_it_is_asked_to(tmp_path):
    saw = play("stop_without_nodes", tmp_path)
    assert saw["why"] == {"a": None}
    assert "no node holds a worker group any more; waiting for one" in saw["notes"]  # its controller may be lost first
    assert saw["notes"][-1].startswith(("a does not react to the request to stop", "a cannot hear that it shall stop"))
    assert saw["notes"][-1].endswith("it goes on from its last checkpoint")


@pytest.mark.long
def test_a_node_that_cannot_train_is_left_out_until_another_is_there_instead(tmp_path):
    saw = play("one_bad_node", tmp_path)
    assert (saw["last"], saw["why"], saw["count"]) == (5, {"a": None, "b": None, "c": None}, 1)
    note, *others = saw["notes"]
    assert {other.partition(";")[0][1:] for other in others} <= {" lost a worker process"}
    assert f" on 127.0.0.1 (node {saw['bad'][:8]}) cannot load toy_trials:on_one_node: ImportError: not on this" in note
    assert note.endswith("; the sweep goes on without it")


@pytest.mark.long
def test_a_trial_whose_node_does_not_see_the_storage_goes_on_on_another(tmp_path):
    saw = play("one_blind_node", tmp_path)
    assert (saw["last"], saw["why"]) == ([5, 5], {"a": None, "b": None})
    (note,) = saw["notes"]
    assert f" on 127.0.0.1 (node {saw['blind'][:8]}) does not see /nowhere/prepared.json; mount the sweep's" in note
    assert re.search(r"; the sweep goes on without it; [ab] goes on in another$", note)


@pytest.mark.long
def test_a_gpu_has_as_many_groups_as_shares(tmp_path):
    saw = play("share_a_gpu", tmp_path)
    assert {share: noted[:3] for share, noted in saw.items()} == {"0.25": [4, 0, None], "0.5": [2, 0, None]}
    on_cpu = "torch sees no CUDA on NODE: what trains there has a GPU share and uses the CPU; see that its driver "
    on_cpu += "and its build of torch fit, then resume"
    cuda = torch.cuda.is_available()
    assert {share: noted[3] for share, noted in saw.items()} == {share: [] if cuda else [on_cpu] for share in saw}


@pytest.mark.long
def test_each_rank_of_a_node_sees_the_gpus_of_all_so_that_they_can_connect_directly(tmp_path):
    assert play("two_gpus", tmp_path) == {"why": {"a": None}, "visible": "0,1"}


@pytest.mark.needs_gpu
@pytest.mark.long
def test_each_trial_finds_the_gpu_empty_and_a_group_that_leaks_there_is_replaced(tmp_path):
    saw = play("fill_a_gpu", tmp_path)
    assert max(saw["gpu_memory"]) < 2**26
    one, *same, last, another = saw["pid"]
    assert same == [last] * 2
    assert len({one, last, another}) == 3


@pytest.mark.long
def test_controllers_are_on_the_nodes_of_the_ranks_and_not_on_the_drivers(tmp_path):
    saw = play("controllers_beside_ranks", tmp_path)
    print(json.dumps(saw["actors"]))
    places = {actor["node"] for actor in saw["actors"] if "_Controller" in actor["kind"]}
    assert len(places) == 2, "one on each"
    assert [actor["kind"] for actor in saw["actors"] if actor["own"]] == ["TrialDispatcher"]
    assert (saw["last"], saw["why"]) == ({"a": 3, "b": 3}, {"a": None, "b": None})


@pytest.mark.long
def test_worker_groups_train_over_tls_and_who_has_no_certificate_stays_out(tmp_path):
    script = Path(__file__).parents[3] / "clusters" / "tls.sh"
    for authority, node in (("ca", "node"), ("another", "stranger")):
        command = ["sh", str(script), str(tmp_path / authority), str(tmp_path / node), "127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
    here = tmp_path / "node"
    files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
    variables = {f"RAY_TLS_{name}": str(here / file) for name, file in files.items()}
    saw = play("with_tls", tmp_path, RAY_USE_TLS="1", **variables)
    assert (saw["last"], saw["why"]) == ({"a": 3, "b": 3}, {"a": None, "b": None})
    assert saw["answers"] == {"node": "OK", "stranger": "UNAVAILABLE", "plain": "UNAVAILABLE"}


@pytest.mark.long
def test_as_many_trials_share_a_gpu_as_were_measured_to_have_room(tiny_file, tmp_path):
    values = yaml.safe_load(tiny_file.read_text())
    values["budget"]["trials"] = 3
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    saw = play("measure_a_share", tmp_path)
    assert [saw[name]["states"] for name in saw] == [["finished"] * 3] * 2
    assert [saw[name]["held"] for name in saw] == [1, 0.3333]
    (none,), (third,) = (saw[name]["log"] for name in saw)
    assert "measured: the worker has no CUDA, or no trial trains; `gpus_per_worker: auto` is 1" in none
    assert "measured: the first steps of a trial take 20.0 GB; `gpus_per_worker: auto` is 0.3333" in third


@pytest.mark.long
def test_several_nodes_clean_a_corpus_together_to_the_bytes_of_one_process(tmp_path):
    saw = play("share_a_corpus", tmp_path)
    assert saw["shared"] == [saw["alone"]] * 2
    assert saw["nodes"] == [2, 2]


@pytest.mark.long
@pytest.mark.parametrize("storage", ["folder", "s3", "gs"])
def test_a_sweep_on_three_nodes_has_the_stores_and_scores_of_one(storage, tiny_file, tmp_path, request):
    values = yaml.safe_load(tiny_file.read_text())
    values["data"] |= {"overlap": "near", "split": {"pairs": 40}}
    values["sampler"]["points"] = [
        {"temperature": temperature, "training.learning_rate": 0.001} for temperature in (0.05, 0.1, 0.2)
    ]
    values["budget"]["trials"] = 3
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    server = None if storage == "folder" else request.getfixturevalue(storage)
    saw = play("share_a_sweep", tmp_path, **({} if server is None else {"BUCKET_URI": f"{server.uri}/three"}))
    assert (saw["nodes"], saw["state"]) == (3, "finished")
    assert sorted(row[:2] for row in saw["rows"]) == [[f"t000{number}", "finished"] for number in range(3)]
    sweep = read_sweep(tmp_path / "sweep.yaml")
    prepared = prepare(sweep, tmp_path / "alone")
    alone = files_in(tmp_path / "alone" / "stores")
    together = files_in(tmp_path / "three" / "stores") if server is None else files_in_bucket(server, "three/stores/")
    assert together == {name: alone[name] for name in alone if server is None or PASSED_ON.fullmatch(name)}
    for name, _, params, reports in saw["rows"]:
        trial, reporter = make_trial(sweep, int(name[1:]), params), Mock(**{"stopped.return_value": False})
        train(trial, prepared, tmp_path / name, reporter, ProcessGroup(), torch.device("cpu"))
        alone = [dev_scores(report.metrics) for report in read_reports(tmp_path / name)]
        assert alone == [dev_scores(metrics) for metrics in reports]


@pytest.mark.long
def test_with_a_bucket_tasks_write_the_stores_and_the_driver_passes_no_vectors_on(tiny_file, tmp_path, s3):
    values = yaml.safe_load(tiny_file.read_text())
    values["budget"]["trials"] = 1
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    saw = play("share_a_bucket", tmp_path, BUCKET_URI=f"{s3.uri}/shared")
    assert (saw["state"], saw["killed"]) == ("finished", ["encode_shard", "tokenize_shard"])
    with pytest.MonkeyPatch.context() as patch:
        for module in (teacher, tokens):
            patch.setattr(module, "SHARD_ROWS", (100, 100))
        prepare(read_sweep(tmp_path / "sweep.yaml"), tmp_path / "alone")
    alone = files_in(tmp_path / "alone" / "stores")
    assert files_in_bucket(s3, "shared/stores/") == {name: alone[name] for name in alone if PASSED_ON.fullmatch(name)}
    shards = list((tmp_path / "alone" / "stores").rglob("*-[0-9]*-*.bin"))
    assert len({path.name.partition("-")[0] for path in shards}) == 3
    passed = saw["passed"]
    assert not {each for each in passed if each.split()[-1] in ("rows", "values", "offsets")}
    assert saw["here"] == [], "the driver has no copy of the stores that tasks made"
    assert passed["from tasks files"] < 1000 * len(shards), "of each shard, a record comes back"


@pytest.mark.long
def test_a_head_that_stands_still_is_not_waited_for_and_goes_on_to_answer(tmp_path):
    saw = play("a_head_that_stands_still", tmp_path)
    words = r"the cluster's head has not answered for 2 s: its GCS is stopped.*`babeltune resume` goes on"
    assert len(saw["refusals"]) == 5
    assert all(re.match(words, refusal) for refusal in saw["refusals"])
    assert saw["nodes"] == 2


def files_in(stores):
    """The files of all stores, by their digests."""
    return {str(path.relative_to(stores)): sha256_of(path) for path in stores.rglob("*") if path.is_file()}


def files_in_bucket(server, prefix):
    """`files_in` stores under the prefix, without the lists of their files that only a bucket has."""
    keys = {key.removeprefix(prefix): key for key in server.keys(prefix) if PACKAGE_MANIFEST not in key}
    return {name: hashlib.sha256(server.get(key)).hexdigest() for name, key in keys.items()}


def dev_scores(metrics):
    return {name: value for name, value in metrics.items() if name.startswith("dev/")}


def test_one_node_is_not_several(ray_cluster):
    assert not are_several()
