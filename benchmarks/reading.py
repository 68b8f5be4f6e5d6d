"""The cost of reading large sweeps: `status`, `report` and a viewer of 10,000 trials, and `runs` of 500 sweeps.

`TRIALS` and `SWEEPS` in the environment give other numbers. The sweeps are written by the functions that a driver and
its workers write with; nothing is trained. Each command is a process of its own, and its CPU seconds and its peak of
memory are those of the whole command: the median of the rounds, as a core's speed varies where others share it. The
page's share is the CPU time of the look that a viewer asks for each second, while one of the trials reports. Each
figure has a goal; the ratio is the goal of `status` by its seconds."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from babeltune.files import plain
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Report, Sweep
from babeltune.sweep.state.examples import EXAMPLES, ExampleSentence, ExampleSentences, LanguageAlignment, Similarities
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, Ledger
from babeltune.sweep.state.messages import TrialEnd
from babeltune.sweep_report.live import POLL_INTERVAL_S, LivePage
from benchmarks.__main__ import commit
from benchmarks.race import Row, options, verdict
from benchmarks.sweep_overhead import ROOT

TRIALS, SWEEPS = int(os.environ.get("TRIALS", "10000")), int(os.environ.get("SWEEPS", "500"))
REPORTS, FEW = 3, 4  # reports of a trial, and trials of each of the many sweeps
LANGUAGES = 25  # language pairs of the dev set, with a score each in every report
AIM = "dev/everyday/accuracy"
GOALS = {"status_s": 3.0, "report_s": 5.0, "report_mb": 300.0, "watch_share": 0.02, "runs_s": 2.0}
"""At most: CPU seconds of a command, megabytes, and the share of a core that a viewer takes."""
LOOKS = 30  # looks of a viewer that are timed


EXAMPLE = ExampleSentences(
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
"""Examples of translations, as the end of a sweep writes them."""


def report_of(number: int, index: int) -> Report:
    """A made-up report; scores differ from trial to trial."""
    score = (number * 7919 % 10007) / 20014 + 0.1 * index
    metrics = {AIM: score} | {f"dev/everyday/x{pair:02d}-eng/accuracy": score for pair in range(LANGUAGES)}
    return Report(
        index=index,
        step=10 * index,
        pairs=640 * index,
        seconds=7.0 * index,
        metrics=metrics,
        last=index == REPORTS,
        steps=10 * REPORTS,
        facts={"world_size": 1, "backend": "gloo"},
    )


def write_sweep(storage: Path, sweep: Sweep, trials: int) -> SweepFolder:
    """A finished sweep of this many trials."""
    folder = SweepFolder(storage / "sweeps" / sweep_id(sweep))
    folder.path.mkdir(parents=True)
    folder.write("sweep.json", sweep)
    folder.write("baselines.json", {"scores": {"untrained": {AIM: 0.05}, "teacher": {AIM: 0.4}}})
    folder.write(EXAMPLES, EXAMPLE)
    ledger = Ledger(folder.path / LEDGER)
    for number in range(trials):
        ledger.add("propose", number, params={"temperature": 0.03 + number % 1000 / 6000})
        ledger.add("start", number)
        for index in range(1, REPORTS + 1):
            report = report_of(number, index)
            ledger.add_report(number, report, [report.metrics[AIM]])
        ledger.add_end(number, "COMPLETE", [1.0], TrialEnd("finished"), step=10 * REPORTS, steps=10 * REPORTS)
    folder.set_state("finished")
    return folder


def cost_of(storage: Path, *arguments: str) -> tuple[float, float]:
    """CPU seconds and peak megabytes of a command."""
    environment = {**os.environ, "BABELTUNE_HOME": str(storage), "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = (  # its `ru_maxrss` would be that of this process, from which it was forked, if that is larger
        "import sys; from babeltune.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(process.stderr.split()[-1]) * 1024 / 1e6


def share_of_a_viewer(folder: SweepFolder) -> float:
    """The share of a core that one viewer's looks take while a trial reports each second."""
    page, ledger = LivePage(folder), Ledger(folder.path / LEDGER)
    page.snapshot()
    ledger.add("propose", TRIALS, params={"temperature": 0.1})
    cpu_s = 0.0
    for index in range(1, LOOKS + 1):
        ledger.add_report(TRIALS, report_of(TRIALS, index), [0.5])
        time.sleep(POLL_INTERVAL_S)
        begun = time.process_time()
        page.snapshot()
        cpu_s += time.process_time() - begun
    return cpu_s / (LOOKS * POLL_INTERVAL_S)


def measured(place: Path, rounds: int) -> tuple[list[Row], dict[str, float]]:
    """The rows of `status`, and the median of each figure."""
    os.fsync = lambda _: None  # type: ignore[assignment]  # what is written here may be lost
    sweep = read_sweep(ROOT / "search_spaces" / "quickstart.yaml")
    folder = write_sweep(place / "large", replace(sweep, name="large"), TRIALS)
    for number in range(SWEEPS):
        write_sweep(place / "many", replace(sweep, name="small", seed=number), FEW)
    report_file = str(place / "report.html")
    status = [cost_of(place / "large", "status")[0] for _ in range(rounds)]
    reports, memory = zip(
        *(cost_of(place / "large", "report", "--out", report_file) for _ in range(rounds)), strict=True
    )
    runs = [cost_of(place / "many", "runs")[0] for _ in range(rounds)]
    figures = {"status_s": median(status), "report_s": median(reports), "report_mb": max(memory)}
    figures |= {"watch_share": share_of_a_viewer(folder), "runs_s": median(runs)}
    return [Row(ours=duration, peer=GOALS["status_s"]) for duration in status], figures


def faults(figures: Mapping[str, float]) -> list[str]:
    """The figures that miss their goals."""
    return [f"{name} is {figures[name]:.3g}, allowed {goal:g}" for name, goal in GOALS.items() if figures[name] > goal]


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    with TemporaryDirectory() as temporary:
        rows, figures = measured(Path(temporary), args.rounds)
    for name, goal in GOALS.items():
        print(f"{name} {figures[name]:.3g}, goal {goal:g}")
    facts: dict[str, Any] = {"commit": commit(), "trials": TRIALS, "sweeps": SWEEPS, **plain(figures)}
    verdict("reading", rows, 1.0, args, broken=faults(figures), **facts)


if __name__ == "__main__":
    main()
