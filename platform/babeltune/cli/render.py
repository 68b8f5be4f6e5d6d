"""Sweeps and models on the terminal: leaderboards, scores, decisions. Nothing here decides anything."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from babeltune.cli.common import plain_table
from babeltune.cli.table import TrialsTable, running_first
from babeltune.errors import list_of
from babeltune.schema.base import number
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.housekeeping import REMOVED
from babeltune.sweep.state.leaderboard import Row
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.progress import doing_words, standing
from babeltune.sweep.state.provenance import accepted_lines
from babeltune.sweep.state.seed_summary import SettingsTable, cells, footnote
from babeltune.sweep.state.seed_summary import markdown as as_markdown

if TYPE_CHECKING:
    from babeltune.promotion.adapter import Adapted
    from babeltune.promotion.compare import Cell, Conclusion
    from babeltune.promotion.gates import Decision
    from babeltune.promotion.ladder import Rung
    from babeltune.promotion.small_table import Exported
    from babeltune.promotion.statistics import Selection
    from babeltune.promotion.sweep_scores import Comparison


FP32_BYTES = 4  # bytes of a weight: models are exported in fp32
SCORE, SCORE_GAP = 6, 2  # columns of a score, and between two of them


def show_leaderboard(
    folder: SweepFolder, console: Console, metric: str | None = None, *, running: bool = False
) -> None:
    """The leaderboard, best first. With `running`, trials that run stand before all others."""
    rows = standing(folder, metric)
    console.print(TrialsTable(running_first(rows) if running else rows, folder.sweep(), metric, costs=True))
    for line in accepted_lines(folder):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_front(metrics: Sequence[str], rows: Sequence[Row], console: Console) -> None:
    """The trials on a Pareto front, with the metrics that it is of."""
    table = plain_table("trial", numbers=[title.removeprefix("dev/") for title in metrics])
    table.add_column("settings", overflow="fold")
    for row in rows:
        settings = " ".join(f"{key}={number(value)}" for key, value in row.settings.items())
        values = (row.metrics[metric] for metric in metrics)
        table.add_row(row.name, *(f"{v:.4f}" if abs(v) < 10 else f"{v:,.0f}" for v in values), escape(settings))
    console.print(table)


def show_languages(by_name: Mapping[str, Mapping[str, float]], metric: str, console: Console) -> None:
    """Each trial's score in every language pair, and in the mean of them first. If the pairs do not fit side by side,
    they stand below one another, beside as many of the best trials as fit."""
    head, names = f"{metric.removeprefix('dev/')} of", list(by_name)
    titles = list(dict.fromkeys(title for scores in by_name.values() for title in scores))
    rows = {
        name: [f"{scores[title]:.4f}" if title in scores else "–" for title in titles]
        for name, scores in by_name.items()
    }
    rest = 0
    if max(map(len, [head, *names])) + _scores_widths(titles)[-1] > console.width:
        room = console.width - max(map(len, [head, *titles]))
        shown = max(1, sum(width <= room for width in _scores_widths(names)[1:]))
        rest = len(names) - shown
        below = zip(*(rows[name] for name in names[:shown]), strict=True)
        titles, rows = names[:shown], dict(zip(titles, map(list, below), strict=True))
    table = plain_table(Column(head, no_wrap=True), *(Column(each, justify="right", no_wrap=True) for each in titles))
    for name, values in rows.items():
        table.add_row(name, *values)
    console.print(table)
    if rest:
        console.print(f"{rest} more in a wider terminal, or with --json", markup=False, highlight=False)


def _scores_widths(titles: Sequence[str]) -> list[int]:
    """The columns that the first none, one, two … of these columns of scores take."""
    return [*accumulate((SCORE_GAP + max(len(title), SCORE) for title in titles), initial=0)]


def show_comparison(comparison: SettingsTable, console: Console, *, markdown: bool = False) -> None:
    """Prints the means over seeds as a table, and below it the trials that are in no mean, with the reason."""
    if markdown:
        console.print(as_markdown(comparison), markup=False, highlight=False, soft_wrap=True)
        return
    (first, *titles), *rows = cells(comparison)
    means = (Column(title, justify="right", no_wrap=title != "n") for title in titles)
    table = plain_table(Column(first, overflow="fold"), *means)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    if note := footnote(comparison):
        console.print(note, markup=False)


def show_status(folder: SweepFolder, state: str, reason: str, console: Console) -> None:
    labels = log_of(folder.path).labels
    called = f" ({labels['name']})" if labels.get("name") else ""
    console.print(f"sweep {folder.id}{called}: {state}{', archived' if labels.get('archived') else ''}", markup=False)
    if labels.get("note"):
        console.print(f"  note: {labels['note']}", markup=False, highlight=False)
    if state in ("running", "paused"):
        console.print(f"  {doing_words(folder, standing(folder))}", markup=False)
    if reason:
        console.print(f"  {reason}", markup=False)
    if refit_of := folder.sweep().refit_of:
        console.print(f"  trains longer the settings of {', '.join(refit_of)}", markup=False, highlight=False)
    show_leaderboard(folder, console, running=True)
    if removed := [path.name for path in folder.trials() if (path / REMOVED).exists()]:
        console.print(f"checkpoints removed for good: {list_of(removed)}; their scores stay", markup=False)
    for line in contamination_lines((folder.read("prepared.json") or {}).get("counts", {})):
        console.print(line, markup=False, highlight=False)


def contamination_lines(counts: dict[str, Any]) -> Iterator[str]:
    """The sets with texts that have near-duplicates in the training text, and where these come from."""
    contamination = counts.get("contamination", {})
    for name, facts in contamination.get("seen", {}).items():
        yield f"{name}: {facts['dev']} of {facts['texts']} texts ({facts['share']:.1%}) are in dev sets too"
    for name, facts in contamination.get("sets", {}).items():
        if facts["near"]:
            sides = (
                f"{source}:{side} {kinds['near']}"
                for source, sets in contamination["sources"].items()
                for side, kinds in sets.get(name, {}).items()
                if "near" in kinds
            )
            yield (
                f"{name}: {facts['near']} of {facts['texts']} texts ({facts['share']:.1%}) have a near-duplicate in "
                f"the training text (rows: {', '.join(sides)})"
            )


def show_scores(scores: dict[str, float], console: Console) -> None:
    table = plain_table("metric", numbers=("value",))
    for name, value in scores.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)


def show_decision(decision: Decision, console: Console) -> None:
    """The verdict, its reasons, and where the model is."""
    from babeltune.evaluation.metric_names import MAIN_METRICS, each_once

    color = {"promote": "green", "tie": "yellow", "refuse": "red"}[decision.verdict]
    console.print(f"[bold {color}]{decision.verdict}[/] {decision.sweep} {decision.trial}", highlight=False)
    for reason in decision.reasons:
        console.print(f"  {reason}", markup=False)
    if decision.test:
        others = {"untrained": decision.untrained, "teacher": decision.teacher, "chance": decision.chance}
        others = {title: scores for title, scores in others.items() if scores}
        table = plain_table("sealed test", numbers=("model", *others))
        for name, value in each_once(decision.test).items():
            if name.rpartition("/")[2] in MAIN_METRICS:
                cells = (f"{scores[name]:.4f}" if name in scores else "" for scores in others.values())
                table.add_row(name, f"{value:.4f}", *cells)
        console.print(table)
    if decision.contest is not None and decision.contest.cells:
        contest = decision.contest
        titles = (f"against {contest.champion}", "items", "champion", "challenger")
        console.print(cells_table((*contest.cells, *contest.overall), titles))
    if decision.selection is not None and decision.selection.among > 1:
        console.print(selection_words(decision.selection), markup=False)
    if decision.folder:
        console.print(f"model: {decision.folder}", markup=False)
    if decision.registered:
        console.print(f"registered: {decision.registered}", markup=False)
    if decision.verdict == "promote" and "@" in decision.registered:
        name = decision.registered.split()[0].removeprefix("models:/")
        uses = (f"serve {name}", f"index {name} FILES --out my-index", f"export {name} --int8 --out small")
        console.print("next: " + " · ".join(f"`babeltune {use}`" for use in uses), markup=False)


def show_rungs(rungs: Sequence[Rung], console: Console) -> None:
    """The front that was promoted, a line each, then why a rung was not and what to know of it."""
    from babeltune.evaluation.metric_names import MAIN_METRICS, PARAMETERS, SPEED

    objective = rungs[0].metric
    tests = dict.fromkeys(name for rung in rungs for name in rung.decisions[-1].test if name.count("/") == 2)
    sealed = {name: f"sealed {name.split('/')[1]}" for name in tests if name.rpartition("/")[2] in MAIN_METRICS}
    table = plain_table("trial", numbers=(objective, "interval", *sealed.values(), "weights", "MB", "sentences/s"))
    table.add_column("verdict")
    table.add_column("aliases")
    notes: list[str] = []
    for rung in rungs:
        value, weights, last = rung.row.metrics[objective], rung.row.metrics[PARAMETERS], rung.decisions[-1]
        interval = "" if rung.interval is None else "{:.4f} to {:.4f}".format(*rung.interval)
        test_scores = [f"{last.test[name]:.4f}" if name in last.test else "" for name in sealed]
        costs = f"{weights:,.0f}", f"{weights * FP32_BYTES / 1e6:,.1f}", f"{rung.row.metrics[SPEED]:,.0f}"
        verdicts = ", ".join(dict.fromkeys(decision.verdict for decision in rung.decisions))
        aliases = " ".join(f"@{alias}" for alias in rung.aliases)
        table.add_row(rung.row.name, f"{value:.4f}", interval, *test_scores, *costs, verdicts, aliases)
        for decision in rung.decisions:
            reasons = [why for why in decision.reasons if decision.verdict == "refuse" or why.startswith("warning")]
            if not reasons and decision.verdict == "tie":
                reasons = list(decision.reasons[-1:])
            notes += [f"{rung.row.name}: {why}" for why in reasons]
        notes += [f"registered: {each.registered}" for each in rung.decisions if each.registered]
    console.print(table)
    for note in dict.fromkeys(notes):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def show_compared(comparison: Comparison, console: Console) -> None:
    """Two models side by side: what may be said of each mean, then every subset."""
    heading = f"A: {comparison.first}, B: {comparison.second}, on the dev sets of {comparison.sweep}"
    console.print(heading, markup=False, highlight=False, soft_wrap=True)
    lines = [compared_words(*each) for each in zip(comparison.verdicts, comparison.overall, strict=True)]
    for name, (first, second) in comparison.means.items():
        lines.append(f"{name}: {first:.4f} -> {second:.4f}, difference {second - first:+.4f}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if comparison.cells:
        console.print(cells_table((*comparison.cells, *comparison.overall), ("dev set", "items", "A", "B")))
    for line in interval_words(comparison.cells, len(comparison.overall), comparison.confidence):
        console.print(line, markup=False, highlight=False)


def show_exported(done: Exported, most_lost: float, console: Console) -> None:
    """A model and its new form side by side, then sizes, speeds and where it is."""
    show_compared(done.comparison, console)
    (size, smaller), (speed, faster) = done.sizes, done.speeds
    lines = [
        f"size: {size / 1e6:.1f} MB -> {smaller / 1e6:.1f} MB, {smaller / size:.1%}; vectors of {done.dim} numbers",
        f"speed here: {speed:,.0f} texts/s with sentence-transformers, {faster:,.0f} with "
        f"{'numpy' if done.format == 'static' else 'onnxruntime'}, {faster / speed:.1f} times",
    ]
    if done.folder is None:
        name, lost = next((name, lost) for name, lost in done.losses.items() if not lost <= most_lost)
        lines.append(f"refused: {name} loses {lost:.4f}, more than --most-lost {most_lost}; nothing is written")
    else:
        lines.append(f"written to {done.folder}; its README has the code that reads it")
    console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)


def show_adapted(done: Adapted, least: float, console: Console) -> None:
    """The recall of both models in the old index, and the place of the adapted one."""
    table = Table("set", "queries of the old model", "of the new model", title="Recall@10 in the old index")
    for name, values in done.recalls.items():
        table.add_row(name, *(f"{value:.4f}" for value in values))
    console.print(table)
    index = f"an index of {done.index:,} texts; a larger one keeps less"
    lines = [f"{done.share:.1%} of the recall is kept, by {done.map}, in {index}"]
    lines += [f"written to {done.folder}"] if done.folder else [f"refused: --least {least}; nothing is written"]
    console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)


def compared_words(conclusion: Conclusion, mean: Cell) -> str:
    """The verdict on two models' means."""
    by = f"{mean.difference:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}], p {mean.p:.2g}"
    words = {
        "better": f"B is better, by {by}",
        "worse": f"B is worse, by {by}",
        "undecided": f"A and B do not differ beyond chance: {by}",
        "equal": "A and B are equal",
    }[conclusion]
    count = f"{mean.differing:,} of {mean.items:,} items" if mean.differing else f"no item of {mean.items:,}"
    return f"{mean.name}: {words}; they differ on {count}"


def interval_words(cells: Sequence[Cell], means: int, confidence: float) -> Iterator[str]:
    """How the table of two models is to be read, and in which subsets they differ beyond chance."""
    joint = f" Those of the {means} means hold together." if means > 1 else ""
    yield f"A {confidence:.0%} interval that excludes zero is a difference beyond chance.{joint}"
    if len(cells) < 2:
        return
    corrected: dict[str, list[str]] = {}
    for cell in cells:
        if (cell.corrected if cell.corrected is not None else cell.p) <= 1 - confidence:
            verdict = "better" if cell.difference > 0 else "worse"
            corrected.setdefault(verdict, []).append(cell.name.removeprefix("dev/"))
    names = "; ".join(f"B is {verdict} in {', '.join(some)}" for verdict, some in corrected.items())
    yield f"Corrected for the choice among {len(cells)} dev sets (Holm): {names or 'they differ in none'}."


def cells_table(cells: Sequence[Cell], titles: Sequence[str]) -> Table:
    """A table with a line for each difference. `titles` head the columns of its name, its items and both scores."""
    table = plain_table(titles[0], numbers=(*titles[1:], "difference", "interval", "p"))
    for cell in cells:
        scores = (f"{cell.champion:.4f}", f"{cell.challenger:.4f}", f"{cell.difference:+.4f}")
        interval = escape(f"[{cell.low:+.4f}, {cell.high:+.4f}]")
        table.add_row(cell.name, str(cell.items), *scores, interval, f"{cell.p:.2g}")
    return table


def selection_words(selection: Selection) -> str:
    """Says how much of the chosen trial's dev score may be luck, because it is the best of several."""
    score = f"{selection.value:.4f} (standard error {selection.error:.4f})"
    return f"chosen by {selection.metric} {score}. {selection.words('The trial')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodSetting:
    """A setting of a method."""

    name: str
    type: str
    default: Any
    source: str
    """The place of the setting in the paper, or that it has none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodDocument:
    """A method and its settings."""

    name: str
    paper: str
    """The citation, the idea and the loss."""
    settings: list[MethodSetting]


def method_document(name: str) -> MethodDocument:
    """A method's docstring, and its settings with type, default and source in the paper."""
    from babeltune.method import load_method

    method = load_method(name)
    from babeltune.schema.json_schema import field_notes

    notes = field_notes(method.Config)
    module = inspect.getmodule(method)
    settings = [
        MethodSetting(
            name=f.name,
            type=f.type if isinstance(f.type, str) else inspect.formatannotation(f.type),
            default=f.default if f.default is not dataclasses.MISSING else None,
            source=notes.get(f.name, f.metadata.get("source", "")),
        )
        for f in dataclasses.fields(method.Config)
    ]
    return MethodDocument(name=name, paper=inspect.cleandoc((module and module.__doc__) or ""), settings=settings)


def show_methods(listed: dict[str, str], console: Console) -> None:
    table = plain_table("method", "")
    for name, text in listed.items():
        table.add_row(name, escape(text))
    console.print(table)


def show_method(document: MethodDocument, console: Console) -> None:
    console.print(document.paper, markup=False)
    table = plain_table(*(Column(title, overflow="fold") for title in ("setting", "default", "type", "source")))
    for setting in document.settings:
        table.add_row(*(escape(str(getattr(setting, key))) for key in ("name", "default", "type", "source")))
    console.print(table)
