"""The panels of Grafana for a sweep: a real Prometheus reads a real Ray while a sweep runs on it."""

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import ray
import requests
import torch
import yaml
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Report
from babeltune.sweep.driver import gauges
from babeltune.sweep.driver.gauges import SweepGauges
from babeltune.sweep.state.log import SweepLog
from heads import environment_of_head, started_head
from ports import free_port, listens
from waiting import PATIENCE_S, wait_until

BOARD = json.loads((Path(__file__).parents[2] / "clusters/grafana/sweep.json").read_text(encoding="utf-8"))
PROMETHEUS = shutil.which("prometheus")
OF_CORE = {"ray_actors", "ray_tasks"}  # metrics that Ray counts in C++


def expressions():
    """The panels' queries, with their titles."""
    return [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]


class Metric:
    """Stands in for one of Ray's, and writes down what it is sent."""

    values: ClassVar[list[tuple[object, ...]]] = []

    def __init__(self, name, description, tag_keys):
        self.name, self.tag_keys = name, tag_keys

    def set(self, value, tags):
        assert set(tags) == set(self.tag_keys)
        Metric.values.append((self.name, value, *[tags[key] for key in self.tag_keys[1:]]))

    inc = set


@pytest.fixture
def values(monkeypatch):
    """What a sweep's metrics are sent."""
    monkeypatch.setattr(gauges, "Gauge", Metric)
    monkeypatch.setattr(gauges, "Counter", Metric)
    monkeypatch.setattr(Metric, "values", [])
    return Metric.values


def report(index, score):
    return Report(index=index, step=index, pairs=100 * index, seconds=1, metrics={"dev/everyday/accuracy": score})


def test_every_panel_asks_for_metrics_that_there_are(tiny_file, values):
    SweepGauges(read_sweep(tiny_file), "a").show("start", SweepLog(Path("none")))
    ours = {f"ray_{name}" for name in re.findall(r'"(babeltune_\w+)"', Path(gauges.__file__).read_text("utf-8"))}
    assert {f"ray_{name}" for name, *_ in values} < ours
    panels = Path(ray.__file__).parent / "dashboard/modules/metrics/dashboards/default_dashboard_panels.py"
    assert all(f"{name}{{" in panels.read_text(encoding="utf-8") for name in OF_CORE)
    metrics = ours | OF_CORE | {f"ray_{name}" for name in METRICS_GAUGES}
    for title, expression in expressions():
        names = set(re.findall(r"\bray_\w+", expression))
        assert names, title
        assert names <= metrics, title
    assert ours <= {name for _, expression in expressions() for name in re.findall(r"\bray_\w+", expression)}


def test_panels_do_not_lie_on_one_another_and_have_a_text():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in BOARD["panels"]})
    assert all(panel["title"] and panel["description"].endswith(".") for panel in BOARD["panels"])
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) == variables


def test_gauges_count_trials_values_and_pairs_of_this_driver(tiny_file, values, tmp_path):
    log = SweepLog(tmp_path / "none")
    shown = SweepGauges(read_sweep(tiny_file), "a")
    for number in (0, 1):
        log.take({"event": "start", "number": number})
    log.trials[0].logged[1] = report(1, 0.25)  # of an earlier driver
    shown.show("start", log)
    assert ("babeltune_trials", 2, "running") in values
    assert ("babeltune_best", 0.25, "dev/everyday/accuracy") in values
    assert not [name for name, *_ in values if name == "babeltune_pairs_total"]
    log.trials[0].logged[2], log.trials[1].logged[1] = report(2, 0.125), report(1, 0.5)
    values.clear()
    shown.show("report", log)
    assert not values, "a report within the interval"
    log.take({"event": "end", "number": 1, "state": "COMPLETE", "kind": "finished"})
    shown.show("end", log)
    assert ("babeltune_trials", 1, "finished") in values
    assert ("babeltune_best", 0.5, "dev/everyday/accuracy") in values
    assert ("babeltune_pairs_total", 200) in values


@contextmanager
def prometheus(folder, discovery):
    """The address of a Prometheus that reads what Ray's file says."""
    port = free_port()
    scrapes = [{"job_name": "ray", "file_sd_configs": [{"files": [str(discovery)], "refresh_interval": "1s"}]}]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}))
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


@pytest.mark.long
@pytest.mark.needs_prometheus
@pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus; on Debian: apt-get install prometheus")
def test_every_panel_has_a_line_after_a_sweep(tiny_file, loopback_only, tmp_path, with_stores):
    token, cluster, begun = tmp_path / "token", tmp_path / "there.yaml", time.time()
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = environment_of_head(token) | {"RAY_metrics_report_interval_ms": "1000"}
    storage = with_stores(tmp_path / "storage")
    with started_head(environment, tmp_path / "head.log") as (_, ports, folder):
        discovery = folder / "prom_metrics_service_discovery.json"
        wait_until(lambda: listens(ports["metrics"]) and discovery.exists())
        cluster.write_text(f"address: 127.0.0.1:{ports['gcs']}\ntoken_file: {token}\nstorage: {storage}\n")
        with prometheus(tmp_path, discovery) as address:
            command = [sys.executable, "-P", "-m", "babeltune.cli", "submit", str(tiny_file), "--cluster", str(cluster)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]

            def lines(expression):
                query = expression.replace("$sweep", ".*").replace("$rate", "1m")
                span = {"query": query, "start": begun, "end": time.time(), "step": 1}
                return requests.get(f"{address}/query_range", span, timeout=60).json()["data"]["result"]

            empty = {title for title, expression in expressions() if not lines(expression)}
            assert empty == (set() if torch.cuda.is_available() else {"GPU", "Memory of GPUs"})
            states = {line["metric"]["state"]: line["values"] for line in lines(expressions()[0][1])}
            assert max(int(value) for _, value in states["finished"]) >= 1
