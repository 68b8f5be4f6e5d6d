"""The page of one trial on a terminal: `babeltune status SWEEP/t0003`."""

import dataclasses
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from babeltune.cli.common import plain_table, with_cluster
from babeltune.cli.words import settings_words, sparkline, weights
from babeltune.errors import plural
from babeltune.evaluation.metric_names import PARAMETERS
from babeltune.schema.base import flat, number
from babeltune.schema.records import Training, Trial
from babeltune.stages import minutes
from babeltune.sweep.state.leaderboard import speed_words
from babeltune.sweep.state.trial_page import HIDDEN, TrialPage

CURVE_WIDTH = 32  # columns of the objective's curve on a page


def show_trial(page: TrialPage, console: Console, cluster: str | None, server: str | None) -> None:
    """One page: how the trial stands, what it was, what it reached, what it cost, and where it is.

    `cluster` is the cluster file for suggested commands. `server` is the address of MLflow's pages, if one serves them.
    """
    row = page.row
    console.print(f"trial {page.name}: {row.state}", markup=False, highlight=False)
    for text in (row.reason, row.warning):
        if text:
            console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    for title, text in facts(page, cluster, server):
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=10, no_wrap=True)
        line.add_column(overflow="fold")
        line.add_row(f"[bold]{title}[/]", escape(text))
        console.print(line, highlight=False)
    if page.scores:
        console.print(f"\n[bold]dev scores at report {page.best}[/]", highlight=False)
        console.print(_scores_table(page))


def facts(page: TrialPage, cluster: str | None, server: str | None) -> Iterator[tuple[str, str]]:
    """The page's lines, each with its title."""
    trial, row = page.trial, page.row
    yield "objective", _objective_words(page)
    steps = f"step {row.step:,}" + (f" of {row.steps:,}" if row.steps else "")
    loss = f" · loss {row.loss:.4f}" if row.loss is not None else ""
    yield "progress", f"report {row.reports} of {trial.training.reports} · {steps}{loss}"
    yield "method", trial.method
    yield "searched", settings_words(row.settings) or "nothing"
    fixed = {name: value for name, value in trial.config.items() if name not in row.settings}
    yield "method's", settings_words(flat(fixed)) or "no settings"
    yield "training", settings_words(_changed(trial))
    yield "student", _student_words(page)
    cost = page.cost
    compute = f" · {number(cost.compute_s)} s of counted compute" if cost.compute_s is not None else ""
    workers = f" on {plural(cost.workers, 'worker')}" if cost.workers > 1 else ""
    yield "cost", f"{plural(cost.pairs, 'pair')} in {minutes(cost.seconds)}{workers}{compute}"
    yield "checkpoint", _checkpoint_words(page)
    if page.run is not None:
        yield "MLflow", _run_words(page, cluster, server)
    yield "next", _next_words(page, with_cluster(cluster))


def _objective_words(page: TrialPage) -> str:
    metric, values = page.objective.metric.removeprefix("dev/"), [point.value for point in page.curve]
    if not values:
        return f"{metric}: no report yet"
    best = next(point for point in page.curve if point.report == page.best)
    return (
        f"{metric} {sparkline(values, CURVE_WIDTH)} first {values[0]:.4f} · best {best.value:.4f} (report "
        f"{best.report}) · last {values[-1]:.4f}"
    )


def _changed(trial: Trial) -> dict[str, str | int | float | bool | None]:
    """The training's settings that are not the defaults, and those by which everything is judged."""
    always = ("pairs", "global_batch", "learning_rate")
    values = {field.name: getattr(trial.training, field.name) for field in dataclasses.fields(Training)}
    return {
        name: _plain(value) for name, value in values.items() if name in always or value != getattr(Training(), name)
    }


def _plain(value: object) -> str | int | float | None:
    """The value as settings show it."""
    if value is None or isinstance(value, str | int | float):
        return value
    return ",".join(map(number, value)) if isinstance(value, tuple) else str(value)


def _student_words(page: TrialPage) -> str:
    student = page.trial.student
    if student.model or student.start:
        shape = student.model or f"start {student.start}"
    elif student.kind == "static":
        shape = f"static, width {student.width}, vocabulary {student.vocabulary}"
    else:
        shape = f"{plural(student.layers, 'layer')} of width {student.width}, vocabulary {student.vocabulary}"
    count = f" · {weights(page.row.metrics[PARAMETERS])} weights" if PARAMETERS in page.row.metrics else ""
    return shape + count + (f" · {words}" if (words := speed_words(page.row.metrics)) else "")


def _checkpoint_words(page: TrialPage) -> str:
    if page.best is None:
        return "none yet; the first report saves one"
    if page.removed is not None:
        return f"removed (`{page.removed}`); the scores stay"
    if page.checkpoint is None:
        return f"that of report {page.best} is not on this machine; promote and evaluate bring it"
    return str(page.checkpoint)


def _run_words(page: TrialPage, cluster: str | None, server: str | None) -> str:
    assert page.run is not None
    if server is not None and page.run.experiment:
        return f"{server}/#/experiments/{page.run.experiment}/runs/{page.run.id}"
    return f"run {page.run.id}; `babeltune ui {page.sweep}{with_cluster(cluster)}` serves it"


def _next_words(page: TrialPage, where: str) -> str:
    if page.removed is not None:
        return f"`babeltune refit {page.sweep}{where}` trains its settings again, if they are among the best"
    if page.row.state == "finished" and page.best is not None:
        return f"`babeltune promote {page.name}{where}` · `babeltune compare {page.name} SWEEP/TRIAL{where}`"
    if page.row.state == "stopped":
        return f"`babeltune resume {page.sweep}{where}` goes on with it"
    return f"`babeltune status {page.sweep}{where}` shows all trials"


def _scores_table(page: TrialPage) -> Table:
    """A line for each data set and language pair; a set's mean stands without a pair."""
    names = (Column(title, no_wrap=True) for title in ("data set", "languages"))
    table = plain_table(*names, Column("scores", overflow="fold"))
    for each in page.scores:
        shown = {name: value for name, value in each.scores.items() if not name.endswith(HIDDEN)}
        scores = "  ".join(f"{name} {value:.4f}" for name, value in shown.items())
        table.add_row(each.name, each.subset or "mean", scores)
    return table
