import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("loopback_only"), pytest.mark.timeout(900), pytest.mark.chaos]
SCENES = Path(__file__).parents[1] / "several_nodes.py"


def play(scene, folder):
    """What the scene saw, on a cluster of its own that wants a token."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-this-test-and-no-other"}
    played = subprocess.run(
        [sys.executable, str(SCENES), scene, str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    assert played.returncode == 0, played.stderr[-3000:]
    return json.loads(played.stdout.splitlines()[-1])


def test_a_node_that_comes_brings_a_lane_and_one_that_goes_leaves_its_trial_to_another(tmp_path):
    saw = play("come_and_go", tmp_path)
    assert saw["counts"] == [1, 2, 1]
    assert saw["last"] == {"a": 60, "b": 60}
    assert saw["why"] == {"a": None, "b": None}
    assert sorted(saw["begun"].values()) == [1, 2], "one of them was begun again, from its checkpoint"
    assert any("there is room for another lane" in note for note in saw["notes"])
    assert any("has lost its node" in note for note in saw["notes"])


def test_an_elastic_lane_goes_on_with_fewer_workers_and_later_has_all_again(tmp_path):
    saw = play("shrink_and_grow", tmp_path)
    assert saw["worlds"] == [2, 1]
    assert (saw["last"], saw["why"]) == (40, {"a": None})
    assert saw["later"] == [2]


def test_nodes_that_are_not_there_yet_are_asked_for_with_the_lanes_and_let_go_with_them(tmp_path):
    saw = play("from_none", tmp_path)
    lanes, stopped, refused = saw["began"]
    assert (stopped, lanes) == ("stopped", 2)
    assert refused.startswith("no nodes have come within 3 s (`nodes_within`), asked for 8 × {CPU: 1}; `ray status`")
    first, *_, second, third = saw["notes"]
    assert first == second == "waiting for nodes: asked for 2 × {CPU: 1}"
    assert third == "waiting for nodes: asked for 8 × {CPU: 1}"
    assert saw["seen"] == {"a": [1]}
    assert set(saw["groups"]) == {"REMOVED"}, "nothing is asked for any more"
    assert saw["alive"] == 1, "and all nodes but the head are gone"
