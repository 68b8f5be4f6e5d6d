"""Who looks at a sweep waits for no library that only training, search or the registry needs."""

from __future__ import annotations

import os
import subprocess
import sys

from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.examples import EXAMPLES, Examples, ExampleSentence, LanguageAlignment, Similarities
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
MADE = Examples(
    trial="t0000",
    report=1,
    dev_set="everyday",
    languages=("eng", "fra"),
    sentences=tuple(
        ExampleSentence(language=language, text=language, row=row, before=(row, 0.0), after=(row, 1.0))
        for language in ("eng", "fra")
        for row in (0, 1)
    ),
    similarities=(Similarities(left="eng", right="fra", before=((1.0, 0.0),) * 2, after=((1.0, 0.0),) * 2),),
    alignment=(LanguageAlignment(language="fra", cosine_before=0, cosine_after=1, found_before=0, found_after=1),),
)
"""The sweep's end made them, so that a report has none to make, for which it would start Ray."""


def test_no_reading_command_loads_what_only_training_needs(tmp_path, tiny_file):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    folder.write(EXAMPLES, MADE)
    for number in range(3):
        add_trial(folder, number, [0.25, 0.5 + number / 10], "finished", temperature=0.05 + number / 50)
    environment = {**os.environ, "BABELTUNE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(folder.path), str(tmp_path / "report.html")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
