"""Runs one of the papers' tables and writes its page: `python -m benchmarks.tables mao_terms`.

What is finished already is not run again, so new orders of trained rows are judged at once. `--plan` runs nothing and
prints what there would be to run.
`--check` compares with the kept record and writes nothing. `--words` runs nothing and takes the definition's words
into the kept record. If the cluster file's storage is empty, the table is
trained from scratch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from babeltune.apps.sweep_plan import machine_of
from babeltune.errors import BabeltuneError, SpecError
from babeltune.planning.plan import make_plan
from babeltune.schema.cluster import read_cluster
from benchmarks.tables.chen_losses import CHEN_ENCODER, CHEN_LONGER, CHEN_LOSSES
from benchmarks.tables.definition import Record, Table
from benchmarks.tables.departures import DEPARTURES
from benchmarks.tables.li_depth import LI_DEPTH
from benchmarks.tables.mao_dims import MAO_DIMS, MAO_DIMS_192, MAO_DIMS_LONGER
from benchmarks.tables.mao_patterns import MAO_PATTERNS
from benchmarks.tables.mao_shapes import MAO_SHAPES, MAO_SHAPES_LONGER
from benchmarks.tables.mao_teacher import MAO_TEACHER
from benchmarks.tables.mao_terms import MAO_TERMS
from benchmarks.tables.margins import MARGINS_TABLE
from benchmarks.tables.page import ROOT, read_records, write
from benchmarks.tables.park_gather import PARK_GATHER
from benchmarks.tables.park_labels import PARK_LABELS
from benchmarks.tables.park_one_pair import PARK_ONE_PAIR
from benchmarks.tables.park_pairs import PARK_PAIRS, PARK_PAIRS_ALIKE
from benchmarks.tables.park_reasons import PARK_LABELS_LONGER, PARK_MSE, PARK_STRENGTH, PARK_TCM
from benchmarks.tables.park_teachers import PARK_TEACHERS
from benchmarks.tables.record import run
from benchmarks.tables.sweeps import make_text, planned, read_planned
from benchmarks.tables.tan_bt import TAN_BT
from benchmarks.tables.tan_sigma import TAN_SIGMA, TAN_SIGMA_PRINTED
from benchmarks.tables.tan_variants import TAN_VARIANTS
from benchmarks.tables.verdict import disagreements
from benchmarks.tables.which_method import WHICH_METHOD
from benchmarks.tables.words import with_words

TABLES = {
    table.name: table
    for table in (
        CHEN_ENCODER,
        CHEN_LONGER,
        CHEN_LOSSES,
        *DEPARTURES,
        LI_DEPTH,
        MAO_DIMS,
        MAO_DIMS_192,
        MAO_DIMS_LONGER,
        MAO_PATTERNS,
        MAO_SHAPES,
        MAO_SHAPES_LONGER,
        MAO_TEACHER,
        MAO_TERMS,
        MARGINS_TABLE,
        PARK_GATHER,
        PARK_LABELS,
        PARK_LABELS_LONGER,
        PARK_MSE,
        PARK_ONE_PAIR,
        PARK_PAIRS,
        PARK_PAIRS_ALIKE,
        PARK_STRENGTH,
        PARK_TCM,
        PARK_TEACHERS,
        TAN_BT,
        TAN_SIGMA,
        TAN_SIGMA_PRINTED,
        TAN_VARIANTS,
        WHICH_METHOD,
    )
}


def show_plan(table: Table, cluster: str | None) -> None:
    """Prints the sweeps, and about what they cost on this machine."""
    total, unknown, place = 0.0, 0, read_cluster(cluster)
    make_text(table, cluster)
    for file in table.before:
        print(f"first: {file}, unless it is promoted already")
    for file, words in planned(table):
        try:
            sweep = read_planned(file, words, cluster)
        except SpecError as error:
            print(f"not known yet: {error}")
            unknown += 1
            continue
        machine = machine_of(place, sweep)
        report = make_plan(sweep, machine=machine)
        cost = report.not_measured or "time not measured"
        if report.estimate is not None and machine is not None:
            seconds = report.estimate.search_s * min(machine.groups, sweep.budget.trials)
            total += seconds + report.estimate.teacher_s
            cost = f"about {seconds:.0f} s of one worker"
        print(f"{sweep.name}: {sweep.budget.trials} trials of {sweep.training.pairs:,} pairs, {cost}", flush=True)
    models = len(table.rows) * len(table.seeds) + 1
    beside = f", besides {unknown} sweeps that cannot be planned yet" if unknown else ""
    cost = f"about {total:.0f} s of one worker" if total else "no time is known yet"
    print(f"in all {cost}{beside}, and {models} models scored on the sealed sets")
    for earlier in read_records(ROOT):
        if earlier["name"] == table.name:
            print(f"the page in docs/tables took {earlier['run']['cpu_seconds'] / 3600:.2f} CPU hours")


def with_commit(record: Record, root: Path = ROOT) -> Record:
    """The record, with the commit that trained its sweeps: the kept record's, if that one is of the same sweeps."""
    for earlier in read_records(root):
        if earlier["name"] == record["name"] and earlier["run"]["sweeps"] == record["run"]["sweeps"]:
            return {**record, "run": {**record["run"], "commit": earlier["run"]["commit"]}}
    return record


def kept_record(table: Table, root: Path) -> Record:
    """The table's record; ends with an error if it was never run."""
    earlier = next((record for record in read_records(root) if record["name"] == table.name), None)
    if earlier is None:
        sys.exit(f"{table.name} has no record; run it without --check and --words first")
    return earlier


def take_words(table: Table, root: Path = ROOT) -> Path:
    """Takes the definition's words into the record; ends with an error if more than words differ. The page."""
    try:
        return write(with_words(kept_record(table, root), table), root)
    except ValueError as error:
        sys.exit(str(error))


def check(table: Table, cluster: str | None, root: Path = ROOT) -> None:
    """Runs the table and ends with an error if it differs from the kept record by more than its seeds do."""
    earlier = kept_record(table, root)
    if problems := disagreements(run(table, cluster), earlier):
        sys.exit("\n".join(problems))
    print(f"{table.name}: every score is within the kept record's seeds")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--cluster", metavar="FILE", help="where to run; this machine when left out")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--plan", action="store_true", help="print what would run, and run nothing")
    modes.add_argument("--check", action="store_true", help="compare with the kept record, and write nothing")
    modes.add_argument("--words", action="store_true", help="take changed words into the kept record, and run nothing")
    args = parser.parse_args(arguments)
    try:
        _do(args)
    except BabeltuneError as error:
        sys.exit(f"error: {error}")


def _do(args: argparse.Namespace) -> None:
    table = TABLES[args.table]
    if args.plan:
        show_plan(table, args.cluster)
    elif args.words:
        print(take_words(table))
    elif args.check:
        check(table, args.cluster)
    else:
        print(write(with_commit(run(table, args.cluster))))


if __name__ == "__main__":
    main()
