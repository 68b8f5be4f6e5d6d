"""Trains the settings that `benchmarks.search_replay` searches among, and writes them into one small table.

Each corpus is short sentences of one language with English; the same random settings of `space.yaml` are trained on
each. A setting is one small file in the storage, so a run goes on where an earlier one ended; `--part 0/2` lets two
processes share a corpus. `--write` gathers all files into `table.json.gz`. `--portfolio NAME` writes the settings that
are good on all corpora as a portfolio for `sampler.first_points`."""

import argparse
import gzip
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from babeltune.data.prepared import Prepared
from babeltune.errors import TrainingError
from babeltune.files import plain, write_json, write_whole
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.portfolio import FOLDER
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial, sample
from babeltune.planning.sweep_file import read_sweep, repository
from babeltune.schema.records import Report, Sweep
from babeltune.training.compute import measured_rates, work_of_a_pair
from babeltune.training.trainer import TrialTrainer
from benchmarks.race import one_thread
from benchmarks.search_replay.table import FIRST, TABLE, Setting, Surrogate, portfolio, read_table
from benchmarks.work import NoReports

CORPORA = ("deu", "jpn", "tur")  # languages whose sentences with English are a corpus each
SETTINGS = 200  # random settings, the same for each corpus
JUDGED = 1000  # held-out pairs that each report is scored on
SPACE = "benchmarks/search_replay/space.yaml"


class Unsaved(TrialTrainer):
    """A trial that writes no checkpoint."""

    def save(self, report: Report) -> None:
        self.reports.append(report)


def sweep_of(corpus: str, changes: Sequence[str] = ()) -> Sweep:
    """The sweep of one corpus; changes are as of `--set`."""
    columns = f"{{{corpus}: {corpus}, eng: eng}}"
    path = f"tatoeba_challenge/{corpus}-eng.tsv.gz"
    assignments = [f"data.train.0.path={path}", f"data.train.0.columns={columns}"]
    return read_sweep(SPACE, assignments=[*assignments, *changes])


def train_setting(sweep: Sweep, number: int, prepared: Prepared, folder: Path) -> Setting:
    """One setting's reports. One that cannot be trained to its end keeps those that it made."""
    device = torch.device("cpu")
    trial = make_trial(sweep, number, sample(sweep, number))
    work = work_of_a_pair(trial, prepared, device)
    run = Unsaved(trial, prepared, folder, NoReports(), ProcessGroup(), device)
    started = time.process_time()
    try:
        run.train()
    except TrainingError as error:
        print(f"setting {number}: {error}", flush=True)
    metric = sweep.objectives[0].metric
    return Setting(
        number=number,
        params=trial.params,
        objective=tuple(round(report.metrics[metric], 5) for report in run.reports),
        pairs=tuple(report.pairs for report in run.reports),
        operations=work.operations,
        bytes=work.bytes,
        cpu_seconds=round(time.process_time() - started, 2),
    )


def record(corpus: str, storage: Path, part: tuple[int, int], until: float, settings: int = SETTINGS) -> int:
    """Trains the unrecorded settings of this part until `until` CPU seconds are spent. Returns how many remain."""
    sweep = sweep_of(corpus)
    prepared = prepare(sweep, storage)
    missing = [n for n in range(part[0], settings, part[1]) if not recorded(storage, corpus, n).exists()]
    for position, number in enumerate(missing):
        if time.process_time() > until:
            return len(missing) - position
        setting = train_setting(sweep, number, prepared, storage / "no-trial")
        recorded(storage, corpus, number).parent.mkdir(parents=True, exist_ok=True)
        write_json(recorded(storage, corpus, number), plain(setting))
        objective_words = " ".join(f"{value:.3f}" for value in setting.objective)
        print(f"{corpus} {number}: {objective_words}; {setting.cpu_seconds} CPU s", flush=True)
    return 0


def recorded(storage: Path, corpus: str, number: int) -> Path:
    """The file of one setting."""
    return storage / "settings" / corpus / f"{number:03d}.json"


def write(storage: Path, target: Path) -> None:
    """Gathers what is recorded into the table, with what it was made of."""
    sweeps = {corpus: sweep_of(corpus) for corpus in CORPORA}
    rates = measured_rates(torch.device("cpu"))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository(), capture_output=True, text=True, check=True
    ).stdout.strip()
    corpora = {}
    for corpus, sweep in sweeps.items():
        files = sorted(recorded(storage, corpus, 0).parent.glob("*.json"))
        settings = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        corpora[corpus] = {"sweep": sweep_id(sweep), "seed": sweep.seed, "judged": JUDGED, "settings": settings}
        print(f"{corpus}: {len(settings)} settings, {sum(setting['cpu_seconds'] for setting in settings):.0f} CPU s")
    table = {"commit": commit, "rates": rates, "corpora": corpora}
    write_whole(target, gzip.compress(json.dumps(table).encode(), mtime=0))
    print(f"{target}: {target.stat().st_size:,} bytes")


def write_portfolio(name: str, count: int) -> None:
    """Writes the settings that are good on all corpora of the table as the portfolio of this name."""
    target = FOLDER / f"{name}.yaml"
    if target.exists():
        raise SystemExit(f"{target} is there, and a portfolio is never changed; give another name")
    corpora = read_table()
    surrogates = [Surrogate(corpus, sweep_of(name)) for name, corpus in corpora.items()]
    points = [
        {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in point.items()}
        for point in portfolio(surrogates, count)
    ]
    write_json(target, {"learnt_from": [corpus.sweep for corpus in corpora.values()], "points": points})
    print(f"{target}: {len(points)} points")


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help=f"of {', '.join(CORPORA)}")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth setting from the Ith on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no setting after these CPU seconds")
    parser.add_argument("--storage", type=Path, default=Path(".babeltune/search_replay"))
    parser.add_argument("--write", action="store_true", help="gather what is recorded into table.json.gz")
    parser.add_argument("--portfolio", metavar="NAME", help="write the table's portfolio under a new name")
    parser.add_argument("--points", type=int, default=FIRST, help="of the portfolio (default: %(default)s)")
    args = parser.parse_args(arguments)
    one_thread()
    first, of = map(int, args.part.split("/"))
    for corpus in args.corpora:
        if left := record(corpus, args.storage, (first, of), args.seconds):
            print(f"{corpus}: {left} settings are left", flush=True)
    if args.write:
        write(args.storage, TABLE)
    if args.portfolio:
        write_portfolio(args.portfolio, args.points)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
