"""What tests play on a cluster of several nodes, in a process of its own: `python several_nodes.py SCENE FOLDER`.

The nodes are Ray's own, all on this machine, with tokens on. Each scene prints what it saw as JSON."""

import contextlib
import faulthandler
import functools
import json
import os
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import psutil
import pytest
import ray
from ray.autoscaler._private.monitor import BASE_READONLY_CONFIG
from ray.cluster_utils import Cluster

from babeltune.data import teacher, tokens
from babeltune.data.text_shards import TextShards
from babeltune.errors import ClusterError
from babeltune.planning.calibration import gpu_share
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster as ClusterFile
from babeltune.storage.object_store import ObjectStore
from babeltune.sweep.driver import attempt, measurements
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import read_log
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.messages import EndMessage, TrialAssignment
from babeltune.sweep.sync.shards import Carrier
from babeltune.sweep.workers import nodes as nodes_module
from babeltune.sweep.workers import pool as pool_module
from babeltune.sweep.workers import worker_groups
from babeltune.sweep.workers.autoscaling import nodes_asked
from babeltune.sweep.workers.nodes import are_several, free_resources, from_head, groups_of, is_placed, nodes_there
from babeltune.sweep.workers.tasks import ray_shards
from marked import MARK
from ports import free_port
from shared_corpus import cleaned, data_in, digest_of, tiny_shards
from slow_starts import wait_for_nodes
from toy_trials import LAST_REPORTS, next_message, pool_of, toy
from waiting import PATIENCE_S, wait_until

PATH = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
HERE = {"node_ip_address": "127.0.0.1"}
SCENE_S = 1.5 * PATIENCE_S
"""Seconds after which a scene that hangs says where, and ends: a test may take no longer than 1,200."""


@contextmanager
def nodes(*cpus, gpus=0, mirrors=None, **head):
    """A head without CPUs, on which this driver is, and nodes with these CPUs (and GPUs in name): the cluster and its
    worker nodes. Each node's mirror of a bucket is in `mirrors`, by number from the head."""
    places = [{} if mirrors is None else {"env_vars": {"BABELTUNE_CACHE": str(mirrors / str(n))}} for n in range(9)]
    alone = {"num_cpus": 0, "include_dashboard": False, **HERE, **places[0]}
    cluster = Cluster(initialize_head=True, head_node_args={**alone, **head})
    try:
        workers = [
            cluster.add_node(num_cpus=count, num_gpus=gpus, **HERE, **place)
            for count, place in zip(cpus, places[1:], strict=False)
        ]
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(PATH), "ONE_NODE": os.environ.get("ONE_NODE", "")}},
        )
        yield cluster, workers
    finally:
        ray.shutdown()
        cluster.shutdown()


def until(pool, ready):
    """As a search does while it waits."""
    wait_until(ready, meanwhile=pool.mend, every=0.1)


def look_again_and_again(pool):
    """Lets the worker groups look at the nodes so often that whatever they would do has begun."""
    looks = set()
    until(pool, lambda: looks.add(pool._surveyed) or len(looks) > 6)


def ended(pool, *names):
    """Lets the trials run to their ends, all at once; the reports of each, and why it failed."""
    seen, ends = {name: [] for name in names}, {}
    last = LAST_REPORTS.get(pool.dispatcher, {})
    for name in last.keys() & set(names):
        pool.dispatcher.go_on(name, last[name])

    def all_ended():
        pool.dispatcher.receive(0.2)
        pool.mend()
        for name in names:
            while (message := pool.dispatcher.take(name)) is not None:
                if isinstance(message, EndMessage):
                    ends[name] = message.end.text or None
                else:
                    seen[name].append(message.report.index)
                    pool.dispatcher.go_on(name, seen[name][-1])
        return len(ends) == len(names)

    wait_until(all_ended, lambda: (seen, ends), every=0.0)
    return seen, ends


def starts(folder, name):
    noted = folder / name / "starts.jsonl"
    return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def worlds(folder, name):
    return [start["world"] for start in starts(folder, name)]


def come_and_go(folder):
    """A node comes and brings a worker group; it goes, and the trial that its worker group had goes on in the other."""
    notes = []
    with nodes(1) as (cluster, _), pool_of(**settings(folder, workers=1), note=notes.append) as pool:
        counts = [pool.count]
        second = cluster.add_node(num_cpus=1, **HERE)
        until(pool, lambda: pool.dispatcher.free() == 2)
        counts.append(pool.count)
        for name in ("a", "b"):
            offer(pool, folder, name, steps=60, seconds=0.1)
            assert next_message(pool, name).report.index == 1
        cluster.remove_node(second, allow_graceful=False)
        seen, reasons = ended(pool, "a", "b")
        until(pool, lambda: pool.count == 1)
        counts.append(pool.count)
    begun = {name: len(worlds(folder, name)) for name in ("a", "b")}
    return {
        "counts": counts,
        "last": {n: s[-1] for n, s in seen.items()},
        "why": reasons,
        "begun": begun,
        "notes": notes,
    }


def shrink_and_grow(folder):
    """A trial trains on a worker on each of two nodes; the same one goes on with one worker when one node goes, and
    later ones have two again once it is back."""
    trial = TrialAssignment.decode((folder / "trial.json").read_text())
    elastic = {"workers": 2, "least_workers": 1, "run_trial": "toy_trials:train_for_real"}
    with nodes(1, 1) as (cluster, (_, second)), pool_of(**settings(folder, **elastic)) as pool:
        for name in ("whole", "cut"):
            (folder / name).mkdir()
            pool.dispatcher.offer(name, replace(trial, folder=str(folder / name)))
            assert next_message(pool, name).report.index == 1
            if name == "cut":
                cluster.remove_node(second, allow_graceful=False)
            seen, reasons = ended(pool, name)
        cluster.add_node(num_cpus=1, **HERE)
        later = []
        wait_until(functools.partial(grown, pool, folder, "b", later))
    return {"last": seen["cut"][-1], "why": reasons["cut"], "later": later[-1:]}


def lose_one_of_two(folder):
    """Two elastic worker groups fill a node each; one node goes, and the other worker group ends both trials."""
    notes, elastic = [], {"workers": 2, "least_workers": 1}
    with nodes(2, 2) as (cluster, (_, second)), pool_of(**settings(folder, **elastic), note=notes.append) as pool:
        until(pool, lambda: pool.dispatcher.free() == 2)
        for name in ("a", "b"):
            offer(pool, folder, name, steps=60, seconds=0.1)
            assert next_message(pool, name).report.index == 1
        cluster.remove_node(second, allow_graceful=False)
        seen, reasons = ended(pool, "a", "b")
    return {"last": {n: s[-1] for n, s in seen.items()}, "why": reasons, "notes": notes}


def with_tls(folder):
    """A worker group on each of two nodes trains while all connections between nodes want a certificate; then one of
    another authority asks for the cluster, and one without a certificate."""
    with nodes(1, 1) as (cluster, _), pool_of(**settings(folder, count=2, workers=1)) as pool:
        until(pool, lambda: pool.dispatcher.free() == 2)
        for name in ("a", "b"):
            offer(pool, folder, name, steps=3)
        seen, reasons = ended(pool, "a", "b")
        port = int(cluster.address.rpartition(":")[2])
        answers = {kind: asks_the_head(port, folder / kind) for kind in ("node", "stranger")}
        answers["plain"] = asks_the_head(port, None)
    return {"last": {name: each[-1] for name, each in seen.items()}, "why": reasons, "answers": answers}


def asks_the_head(port, certificates):
    """Whether the head's address takes a connection with these certificates; without any, a plain one."""
    credentials = None
    if certificates is not None:
        authority = Path(os.environ["RAY_TLS_CA_CERT"]).read_bytes()
        key_pair = [(certificates / name).read_bytes() for name in ("tls.key", "tls.crt")]
        credentials = grpc.ssl_channel_credentials(authority, *key_pair)
    address = f"127.0.0.1:{port}"
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel:
        call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive", lambda data: data, lambda data: data)
        try:
            call(b"", timeout=10, metadata=[("authorization", f"Bearer {os.environ['RAY_AUTH_TOKEN']}")])
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def controllers_beside_ranks(folder):
    """Where the controllers and the dispatcher of two worker groups are, on a head without CPUs and two nodes; and what
    they take there."""
    with nodes(1, 1), pool_of(**settings(folder, count=2, workers=1)) as pool:
        until(pool, lambda: pool.dispatcher.free() == 2)
        own_node, actors = ray.get_runtime_context().get_node_id(), []
        for actor in ray._private.state.actors().values():
            if actor["State"] == "ALIVE":
                memory = psutil.Process(actor["Pid"]).memory_full_info().uss
                place = actor["Address"]["NodeID"]
                actors.append(
                    {"kind": actor["ActorClassName"], "own": place == own_node, "node": place, "mb": memory / 1e6}
                )
        for name in ("a", "b"):
            offer(pool, folder, name, steps=3)
        seen, reasons = ended(pool, "a", "b")
    return {"actors": actors, "last": {name: each[-1] for name, each in seen.items()}, "why": reasons}


class LeaseActor:
    """An actor that holds a value."""


def wait_for_room(folder):
    """Two worker groups where something else holds one of two nodes: one trains, and the other waits, the same all the
    time."""
    notes = []
    with nodes(1, 1):
        held = ray.remote(num_cpus=1)(LeaseActor).remote()
        ray.get(held.__ray_ready__.remote())
        with pool_of(**settings(folder, count=2, workers=1), note=notes.append) as pool:
            names = set(pool._groups)
            look_again_and_again(pool)
            same = set(pool._groups) == names
            ray.kill(held)
            until(pool, lambda: pool.dispatcher.free() == 2)
    return {"notes": notes, "same": same}


def stop_without_nodes(folder):
    """The only node goes, and then the sweep is to stop."""
    notes = []
    with nodes(1) as (cluster, (only,)), pool_of(**settings(folder, count=1, workers=1), note=notes.append) as pool:
        offer(pool, folder, "a", steps=600, seconds=0.1)
        assert next_message(pool, "a").report.index == 1
        cluster.remove_node(only, allow_graceful=False)
        until(pool, lambda: any("waiting for one" in note for note in notes))
        pool.dispatcher.stop("a")
        _, reasons = ended(pool, "a")
    return {"why": reasons, "notes": notes}


def one_bad_node(folder):
    """Of two nodes one cannot load what its worker group shall run. The other's worker group starts again, and not
    there; later a good node comes in its place."""
    notes, good = [], folder / "good"
    os.environ["ONE_NODE"] = str(good)
    with (
        nodes(1, 1) as (cluster, both),
        pool_of(**settings(folder, count=2, workers=1, run_trial="toy_trials:on_one_node"), note=notes.append) as pool,
    ):
        until(pool, lambda: pool.count == 1 and pool.dispatcher.free() == 1)
        offer(pool, folder, "a", steps=5)
        seen, reasons = ended(pool, "a")
        for name in ("b", "c"):
            os.kill(starts(folder, "a")[0]["pid"] if name == "b" else starts(folder, "b")[0]["pid"], signal.SIGKILL)
            offer(pool, folder, name, steps=5)
            reasons |= ended(pool, name)[1]
        look_again_and_again(pool)
        count, messages = pool.count, list(notes)
        (bad,) = [node for node in both if node.node_id not in good.read_text()]
        cluster.remove_node(bad, allow_graceful=False)
        with good.open("a") as file:
            file.write(cluster.add_node(num_cpus=1, **HERE).node_id)
        until(pool, lambda: pool.count == 2 and pool.dispatcher.free() == 2)
    return {"last": seen["a"][-1], "why": reasons, "count": count, "notes": messages, "bad": bad.node_id}


def one_blind_node(folder):
    """Of two nodes one does not see the storage, which its first trial finds."""
    notes, good = [], folder / "good"
    os.environ["ONE_NODE"] = str(good)
    with (
        nodes(1, 1) as (_, both),
        pool_of(**settings(folder, workers=1, run_trial="toy_trials:seen_on_one_node"), note=notes.append) as pool,
    ):
        until(pool, lambda: pool.dispatcher.free() == 2)
        for name in ("a", "b"):
            offer(pool, folder, name, steps=5, seconds=0.2)
        seen, reasons = ended(pool, "a", "b")
        (blind,) = [node for node in both if node.node_id not in good.read_text()]
        return {"last": [each[-1] for each in seen.values()], "why": reasons, "notes": notes, "blind": blind.node_id}


def share_a_gpu(folder):
    """For each share of one GPU, how many worker groups open on it, what is left of it, why a trial there ended, and
    what is said."""
    with nodes(8, gpus=1):
        return {share: on_shares(folder / str(share), share) for share in (0.25, 0.5)}


def measure_a_share(folder):
    """Sweeps with `gpus_per_worker: auto` on a GPU that Ray alone knows: with the share that is measured there, and
    with a third. What the driver notes of it, the share that trials had, and how each of them ended."""
    saw, sweep = {}, read_sweep(folder / "sweep.yaml")
    with nodes(4, gpus=1) as (cluster, _), pytest.MonkeyPatch.context() as patch:
        for name, measured in (("none", measurements.measured_share), ("third", third_of_a_gpu)):
            patch.setattr(measurements, "measured_share", measured)
            storage = folder / name
            where = ClusterFile(
                address=cluster.address,
                storage=str(storage),
                mlflow=f"sqlite:///{storage}/mlflow.db",
                gpus_per_worker="auto",
            )
            swept = submit(sweep, where)
            saw[name] = {
                "states": [row.state for row in leaderboard(swept) if row.params],
                "log": [line for line in read_log(swept).splitlines() if "gpus_per_worker" in line],
                "held": log_of(swept.path).submissions[-1]["holder"]["gpus"],
            }
    return saw


def third_of_a_gpu(trials, prepared, tell):
    tell(len(trials), len(trials))
    return 20 * 2**30, gpu_share(20 * 2**30, 80 * 2**30)


def on_shares(folder, share):
    notes = []
    with pool_of(**settings(folder, count="auto", workers=1, gpus_per_worker=share), note=notes.append) as pool:
        until(pool, lambda: pool.dispatcher.free() == pool.count)
        left = ray.available_resources().get("GPU", 0)
        offer(pool, folder, "a", steps=2)
        why = ended(pool, "a")[1]["a"]
        pool.mend()
        return [pool.count, left, why, [note.replace(here_as_named(), "NODE") for note in notes]]


def here_as_named():
    (node,) = (node for node in ray.nodes() if node["Resources"].get("GPU"))
    return f"127.0.0.1 (node {node['NodeID'][:8]})"


def two_gpus(folder):
    """Which GPUs a rank sees of a worker group that has two on one node, a rank each."""
    with nodes(2, gpus=2), pool_of(**settings(folder, count=1, workers=2, gpus_per_worker=1)) as pool:
        offer(pool, folder, "a", steps=2)
        return {"why": ended(pool, "a")[1], "visible": json.loads((folder / "a/starts.jsonl").read_text())["visible"]}


def fill_a_gpu(folder):
    """What each trial found on the GPU, in which process: the first and the fourth leave 600 MiB there."""
    names = ("leak-1", "fill-1", "fill-2", "leak-2", "fill-3")
    with nodes(2, gpus=1), pool_of(**settings(folder, count=1, workers=1, gpus_per_worker=1)) as pool:
        for name in names:
            offer(pool, folder, name, steps=2, orders={"kind": name[:4], "at": 1})
            assert ended(pool, name)[1] == {name: None}
    starts = [json.loads((folder / name / "starts.jsonl").read_text()) for name in names]
    return {key: [start[key] for start in starts] for key in ("pid", "gpu_memory")}


def autoscaling(folder, most=3, every=1):
    """A head that starts at most `most` nodes of one CPU, by Ray's provider for tests, and ends those that idle; it
    checks the demand after `every` seconds."""
    os.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": str(every)}
    port = free_port()
    node = {"node_config": {}, "min_workers": 0}
    config = BASE_READONLY_CONFIG | {
        "max_workers": most,
        "idle_timeout_minutes": 0.15,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": f"127.0.0.1:{port}",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "max_workers": 0, **node},
            "one": {"resources": {"CPU": 1}, "max_workers": most, **node},
        },
    }
    path = folder / "autoscaling.json"
    path.write_text(json.dumps(config))
    return {"autoscaling_config": str(path), "gcs_server_port": port}


def from_none(folder):
    """Nodes come only because worker groups ask for them, and go when the worker groups are gone; what cannot come is
    given up."""
    notes, began = [], []

    def asked(within=PATIENCE_S, workers=1, progress=lambda *_: None):
        cluster = ClusterFile(worker_groups=2, nodes_within=within, workers=workers)
        return nodes_asked(cluster, trials=9, note=notes.append, progress=progress)

    def stop(*_):
        raise InterruptedError("stopped")

    with nodes(**autoscaling(folder)):
        with asked() as surveyed, pool_of(**settings(folder, workers=1, count=2), surveyed=surveyed) as pool:
            until(pool, lambda: pool.dispatcher.free() == 2)
            began.append(pool.count)
            offer(pool, folder, "a", steps=1)
            seen, _ = ended(pool, "a")
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1, every=0.2)
        for attempt in (asked(progress=stop), asked(within=3, workers=4)):
            try:
                with attempt:
                    began.append("with no node")
            except (InterruptedError, ClusterError) as error:
                began.append(str(error))
        groups = [group["state"] for group in ray.util.placement_group_table().values()]
    return {"began": began, "seen": seen, "notes": notes, "groups": groups}


def regrow(folder):
    """An elastic worker group whose nodes an autoscaler starts, two at most and slowly, loses one of them and has both
    again, then both at once."""
    seen, notes, asked, elastic = {}, [], {}, {"workers": 2, "least_workers": 1}
    os.environ["AUTOSCALER_HEARTBEAT_TIMEOUT_S"] = "5"
    cluster = ClusterFile(worker_groups=1, nodes_within=PATIENCE_S, **elastic)
    with (
        nodes(**autoscaling(folder, most=2, every=25)),
        nodes_asked(cluster, trials=9, note=notes.append, progress=lambda *_: None) as surveyed,
        pool_of(**settings(folder, **elastic, count=1), surveyed=surveyed) as pool,
    ):
        for lost in (0, 1, 2):
            notes.clear()
            for node in (gone := workers()[:lost]):
                kill_raylet(node["NodeManagerPort"])
            until(pool, lambda: not {node["NodeID"] for node in gone} & {node["NodeID"] for node in workers()})
            seen[lost] = []
            wait_until(functools.partial(grown, pool, folder, lost, seen[lost]), lambda: (seen, notes))
            asked[lost] = list(notes)
    return {"seen": seen, "asked": asked}


def grown(pool, folder, name, begun):
    """Runs one more trial, and notes with how many workers it began; whether it had two at last."""
    trial = f"{name}-{len(begun)}"
    offer(pool, folder, trial, steps=10, seconds=0.1)
    ended(pool, trial)
    begun += worlds(folder, trial)
    until(pool, pool.dispatcher.free)
    return begun[-1:] == [2]


def workers():
    """The nodes that Ray holds to be alive, but the head."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def kill_raylet(port):
    """Ends the node of this scene that listens there; another test may have the same port in a network of its own."""
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):  # one that has just ended
            is_ours = process.info["name"] == "raylet" and process.environ().get(MARK) == os.environ[MARK]
            if is_ours and port in [each.laddr.port for each in process.net_connections("tcp")]:
                process.kill()


def settings(folder, **more):
    groups = {"count": 4, "cpus_per_worker": 1, "gpus_per_worker": 0}
    return {**groups, "run_trial": "toy_trials:train", "storage": folder, **more}


def offer(pool, folder, name, **assignment):
    pool.dispatcher.offer(name, toy(folder / name, **assignment))


def noted(path, place, function, *more):
    """A shard's work, once two nodes have such work."""
    (place / ray.get_runtime_context().get_node_id()).touch()
    wait_until(lambda: len(list(place.iterdir())) > 1, every=0.05)
    return function(path, *more)


def share_a_sweep(folder):
    """A sweep from its file to its leaderboard, on three nodes that share all that can be shared, with a storage in a
    folder or a bucket: its trials with the metrics of each report, and how many nodes prepared the data."""
    sweep, noted = read_sweep(folder / "sweep.yaml"), folder / "nodes"
    noted.mkdir()
    os.environ["BABELTUNE_CACHE"] = str(folder / "mirrors" / "driver")
    run, storage = attempt.ray_shards, os.environ.get("BUCKET_URI", str(folder / "three"))
    shared = nodes(1, 1, 1, mirrors=folder / "mirrors")
    with shared as (cluster, _), tiny_shards(texts=300, size=1 << 14), pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt, "ray_shards", lambda function, some, **how: run(*noting(noted, function, some), **how))
        where = ClusterFile(address=cluster.address, storage=storage, mlflow=f"sqlite:///{folder}/mlflow.db")
        swept = submit(sweep, where)
    trials = log_of(swept.path).trials.values()
    rows = [[t.name, t.state, t.params, [report.metrics for report in t.reports]] for t in trials]
    return {"state": swept.state(), "rows": rows, "nodes": len(list(noted.iterdir()))}


def noting(place, function, arguments):
    """The shards' work, so that their nodes are noted."""
    return node_noted, [(*each, str(place), function) for each in arguments]


def node_noted(*arguments):
    """A shard's work, once three nodes have had such work."""
    *task_arguments, place, function = arguments
    (Path(place) / ray.get_runtime_context().get_node_id()).touch()
    wait_until(lambda: len(list(Path(place).iterdir())) > 2, every=0.05)
    return function(*task_arguments)


def share_a_bucket(folder):
    """A sweep whose storage is a bucket, on nodes with a mirror each. The first tasks that tokenize and that encode are
    killed when the bucket has their files and not their records. What passed through the driver, in bytes by what it
    was, and what is in its mirror."""
    passed, mirror = Counter(), folder / "mirrors" / "driver"
    os.environ["BABELTUNE_CACHE"] = str(mirror)
    run, uri = attempt.ray_shards, os.environ["BUCKET_URI"]
    with nodes(1, 1, mirrors=folder / "mirrors") as (cluster, _), pytest.MonkeyPatch.context() as patch:
        for module in (teacher, tokens):
            patch.setattr(module, "SHARD_ROWS", (100, 100))
        patch.setattr(attempt, "ray_shards", lambda function, some, **how: run(*dying(folder, function, some), **how))
        count_passing(patch, passed)
        where = ClusterFile(address=cluster.address, storage=uri, mlflow=f"sqlite:///{folder}/mlflow.db")
        swept = submit(read_sweep(folder / "sweep.yaml"), where)
    here = sorted({path.name.partition("-")[0] for path in mirror.rglob("*.bin")})
    killed = sorted(path.stem for path in folder.glob("*.killed"))
    return {"state": swept.state(), "passed": dict(passed), "killed": killed, "here": here}


def count_passing(patch, passed):
    """Counts the bytes that this process sends to tasks, gets from them, and moves to and from a bucket."""

    def count(owner, name, way, size):
        inner = getattr(owner, name)

        def counting(*arguments, **named):
            result = inner(*arguments, **named)
            key, data = size(result, *arguments)
            passed[f"{way} {key}"] += len(data or b"")
            return result

        patch.setattr(owner, name, counting)

    def kind(key):
        return Path(key).name.partition("-")[0] if Path(key).suffix == ".bin" else "other"

    def joined(files):
        return b"".join(files.values())

    count(Carrier, "pack", "to tasks", lambda files, *_: ("texts", joined(files)))
    count(Carrier, "pack_shared", "to tasks", lambda files, *_: ("shared", joined(files)))
    count(Carrier, "unpack", "from tasks", lambda _, carrier, arguments, made: ("files", joined(made)))
    count(ObjectStore, "upload", "to the bucket", lambda _, store, path, key, *__: (kind(key), path.read_bytes()))
    count(ObjectStore, "download", "from the bucket", lambda _, store, key, path: (kind(key), path.read_bytes()))
    count(ObjectStore, "read", "from the bucket", lambda data, store, key: (kind(key), data))
    for name in ("write", "write_if"):
        count(ObjectStore, name, "to the bucket", lambda _, store, key, data, *__: (kind(key), data))


def dying(place, function, arguments):
    """The shards' work; the first one that makes a part of a store dies."""
    if function not in (teacher.encode_shard, tokens.tokenize_shard):
        return function, arguments
    return dies_once, [(*each, str(place), function) for each in arguments]


def dies_once(*arguments):
    """A shard's work, in a process that dies before it sends the record, if no such process has died."""
    *task_arguments, place, function = arguments
    with contextlib.suppress(FileExistsError):
        (Path(place) / f"{function.__name__}.killed").touch(exist_ok=False)
        ObjectStore.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return function(*task_arguments)


def a_head_that_stands_still(_):
    """What is asked of a head that is stopped, and of one that goes on."""
    refusals = []
    with nodes(1) as (cluster, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes_module, "HEAD_TIMEOUT_S", 2.0)
        group = ray.util.placement_group([{"CPU": 1}])
        (gcs,) = (psutil.Process(info.process.pid) for info in cluster.head_node.all_processes["gcs_server"])
        gcs.suspend()
        wait_until(lambda: gcs.status() == psutil.STATUS_STOPPED)
        for question in (
            nodes_there,
            free_resources,
            lambda: is_placed(group),
            lambda: groups_of(set()),
            lambda: from_head(ray.get_actor, "nobody"),
        ):
            with pytest.raises(ClusterError) as refused:
                question()
            refusals.append(str(refused.value))
        gcs.resume()
        return {"refusals": refusals, "nodes": len(nodes_there())}


def share_a_corpus(folder):
    """Two nodes clean a corpus together: with a folder that all see, and with files that travel."""
    data, digests, used = data_in(folder), [], []
    with nodes(1, 1):
        assert are_several()
        for carried in (False, True):
            place = folder / f"nodes-{carried}"
            place.mkdir()

            def run(function, arguments, *, gpu=False, place=place, carried=carried):
                moved = [(path, place, function, *more) for path, *more in arguments]
                return ray_shards(noted, moved, carrier=Carrier() if carried else None)

            with tiny_shards():
                digests.append(digest_of(cleaned(data, folder, TextShards(run, folder / "stores"))))
            used.append(len(list(place.iterdir())))
    return {"alone": digest_of(cleaned(data, folder)), "shared": digests, "nodes": used}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SCENE_S, exit=True)
    wait_for_nodes()
    worker_groups.UNPLACED_TIMEOUT_S = pool_module.SURVEY_INTERVAL_S = 1.0
    scenes = (come_and_go, shrink_and_grow, lose_one_of_two, wait_for_room, stop_without_nodes, one_bad_node)
    scenes += (one_blind_node, from_none, regrow, share_a_gpu, measure_a_share, two_gpus, fill_a_gpu, with_tls)
    scenes += (controllers_beside_ranks, share_a_corpus, share_a_sweep, share_a_bucket, a_head_that_stands_still)
    print(json.dumps({scene.__name__: scene for scene in scenes}[sys.argv[1]](Path(sys.argv[2]))))
