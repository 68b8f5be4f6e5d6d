"""Who looks at a sweep waits for no library that only training, search or the registry needs."""

import os
import subprocess
import sys

from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.examples import EXAMPLES
from benchmarks.reading import EXAMPLE
from made_sweeps import add_trial, make_sweep
from waiting import PATIENCE_S

PROGRAM = """
import sys
from pathlib import Path
from babeltune.cli import app
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep_report.live import LivePage
path, out = Path(sys.argv[1]), sys.argv[2]
over = ["--over", "temperature"]
commands = [
    *(["status"], ["status", "--json"], ["runs"], ["runs", path.name], ["runs", path.name, *over]),
    ["runs", path.name, "--front", "--metric", "dev/sts/spearman"],
    *(["runs", path.name, "--languages"], ["runs", path.name, "--by", "temperature"]),
    *(["logs"], ["show", f"{path.name}/t0000"], ["report", "--out", out]),
]
heavy = {"torch", "transformers", "ray", "optuna", "mlflow"}
def check(words):
    if loaded := heavy & sys.modules.keys():
        sys.exit(f"{' '.join(words)} loads {', '.join(sorted(loaded))}")
for words in commands:
    app(words, standalone_mode=False)
    check(words)
LivePage(SweepFolder(path)).html()
check(["watch"])
"""
REFUSED = """
import sys
from babeltune.cli import app
from babeltune.errors import BabeltuneError
for words in (["push", "a@champion", "team/a"], ["index", "a@champion", sys.argv[1], "--out", "ix"]):
    try:
        app(words, standalone_mode=False)
    except BabeltuneError as error:
        print(error)
    if "torch" in sys.modules:
        sys.exit(f"{' '.join(words)} loads torch before it refuses")
"""


def test_no_reading_command_loads_what_only_training_needs(tmp_path, tiny_file):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    folder.write(EXAMPLES, EXAMPLE)  # else the report would start Ray to make some
    for number in range(3):
        add_trial(folder, number, [0.25, 0.5 + number / 10], "finished", temperature=0.05 + number / 50)
    environment = {**os.environ, "BABELTUNE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(folder.path), str(tmp_path / "report.html")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]


def test_wrong_input_is_refused_before_torch_is_loaded(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("number;text\n1;A boat.\n2;A house.\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    command = [sys.executable, "-c", REFUSED, str(table)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    token, column = done.stdout.splitlines()
    assert "set HF_TOKEN" in token
    assert "index: --column" in column
