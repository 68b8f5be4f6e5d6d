"""The commands that train trials of a sweep again: refit longer, for its final model, and reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import (
    ClusterFile,
    Json,
    Set,
    SweepName,
    cluster_of,
    out,
    read,
    say,
    say_out,
    steps_shown,
    sweep_folder,
    warn,
)
from babeltune.cli.program import app
from babeltune.cli.run_here import SubmitOptions, check_submission, run_sweep
from babeltune.cli.sweeps import Accept, Detach, Insecure
from babeltune.errors import SpecError, SweepError, plural

if TYPE_CHECKING:
    from babeltune.promotion.reproduce import Reproduction
    from babeltune.schema.records import Sweep
    from babeltune.sweep.state.folder import SweepFolder

Write = Annotated[
    str | None, typer.Option("--write", help="Write the sweep file here (- is the output), and submit nothing.")
]


@dataclass(frozen=True, kw_only=True)
class WrittenSpec:
    """A sweep file that `refit --write` made."""

    path: str | None
    """The file; None for the output."""
    spec: str
    """The text of the sweep file, in YAML."""


@app.command()
def refit(
    name: SweepName = None,
    top: Annotated[int, typer.Option(help="How many of the best settings.", min=1, max=1000)] = 3,
    pairs: Annotated[str, typer.Option(help="How long: a multiple such as 10x, or a number of pairs.")] = "10x",
    seeds: Annotated[int, typer.Option(help="Seeds of each setting.", min=1, max=1000)] = 3,
    one_start: Annotated[
        bool, typer.Option("--one-start", help="All seeds begin with the same weights, for `promote --soup`.")
    ] = False,
    set_: Set = None,
    write: Write = None,
    cluster: ClusterFile = None,
    accept_changes: Accept = False,
    detach: Detach = False,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Train the best settings of a sweep longer, with several seeds, as a sweep of its own.

    It is named `NAME-refit` and promotes under the same name, against the champion. Teacher vectors and tokens that are
    there are used again."""
    from babeltune.files import draft_folder
    from babeltune.planning.sweep_yaml import spec_yaml
    from babeltune.sweep.state.progress import is_driven
    from babeltune.sweep.state.refit import refit_of

    submission = SubmitOptions(accept_changes, detach, insecure)
    check_submission(submission, cluster)
    with steps_shown("reading the sweep"):
        folder = sweep_folder(name, cluster)
        if is_driven(folder):
            raise SweepError(f"sweep {folder.id} is running; wait for its end, or `babeltune stop {folder.id}`")
        text = spec_yaml(refit_of(folder, top=top, length=pairs, seeds=seeds, one_start=one_start))
    if write:
        path = write_file(text, write)
        words = text if path is None else f"wrote {path}; `babeltune submit {path}` runs it\n"
        say(WrittenSpec(path=path, spec=text), as_json, lambda: out.out(words, end="", highlight=False))
        return
    with draft_folder("refit") as place:
        file = place / "refit.yaml"
        file.write_text(text, encoding="utf-8")
        sweep = read(str(file), None, set_, cluster)
    if len(sweep.refit_of) < top and not as_json:
        words = f"{folder.id} has {len(sweep.refit_of)} finished settings, fewer than --top {top}: those are trained"
        out.print(words, markup=False, highlight=False)
    run_sweep(sweep, cluster, submission, as_json=as_json)
    if not as_json:
        show_gains(folder, sweep, cluster)


def show_gains(folder: SweepFolder, refit: Sweep, cluster: str | None) -> None:
    """Shows what the refit gained over the sweep."""
    from babeltune.planning.recorded import sweep_id
    from babeltune.sweep.state.folder import SweepFolder
    from babeltune.sweep.state.refit import gain_words, gains

    refitted = SweepFolder(cluster_of(cluster).folder / "sweeps" / sweep_id(refit))
    for gain in gains(folder, refitted):
        out.print(gain_words(gain), markup=False, highlight=False)


def write_file(text: str, file: str) -> str | None:
    """Writes the sweep file and returns its path; None for `-`. Raises `SpecError` if it cannot be written."""
    from babeltune.files import write_out

    if file == "-":
        return None
    try:
        write_out(Path(file), text.encode())
    except (OSError, ValueError) as error:
        words = f"--write {file!r} cannot be written: {error}; name a file in a folder that is there"
        raise SpecError(words) from error
    return file


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="A trial, such as SWEEP/t0003.")],
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Train a trial again from its record, and report how it differs. Nothing is kept.

    Equal to the last bit on the same machine with the same versions. Fails if the objective differs by more than its
    95 % interval."""
    from babeltune.promotion.reproduce import reproduce as train_again

    with steps_shown("reading the trial"):
        outcome = train_again(name, cluster_of(cluster))
    warn(f"not as it was: {change}" for change in outcome.changed)
    say(outcome, as_json, lambda: show_reproduction(outcome))
    if outcome.verdict == "beyond":
        raise typer.Exit(1)


def show_reproduction(outcome: Reproduction) -> None:
    """The verdict and the numbers behind it."""
    objective, largest = outcome.objective, outcome.largest
    words = {
        "identical": "identical",
        "within": "not identical, and within the interval of the objective",
        "beyond": "differs by more than the interval of the objective",
    }[outcome.verdict]
    weights = {
        "equal": "the weights are equal",
        "differ": "the weights differ",
        "not kept": "the weights were not compared, for no checkpoint is left",
    }[outcome.weights]
    lines = [
        f"{outcome.trial}: {words}; compared: {plural(outcome.scores, 'dev score')} of "
        f"{plural(outcome.reports, 'report')}; {weights}"
    ]
    interval = "" if outcome.interval is None else f" (95 % interval ± {outcome.interval:.4f})"
    lines.append(f"{objective.metric}: recorded {objective.recorded:.6f}, again {objective.again:.6f}{interval}")
    if largest is not None:
        place = f"{largest.metric} at report {largest.report}"
        lines.append(f"most different: {place}: recorded {largest.recorded:.6f}, again {largest.again:.6f}")
    say_out("\n".join(lines))
