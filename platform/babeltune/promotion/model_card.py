"""The model card of a promoted model. Every number in it comes from the run or from the promotion."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import babeltune
from babeltune.evaluation.metric_names import MAIN_METRICS, PARAMETERS, each_once
from babeltune.method import available, needs_of
from babeltune.models.hub import BUNDLED, split_revision
from babeltune.planning.sweep_file import BUNDLED_ROOT
from babeltune.promotion.card_facts import CardFacts
from babeltune.promotion.inherited_card import NOT_STATED
from babeltune.schema.base import flat, number
from babeltune.schema.languages import meaning
from babeltune.schema.records import PivotSource, TranslateSource

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from babeltune.data.prepared import Prepared
    from babeltune.promotion.gates import Decision, Scores
    from babeltune.schema.records import Report, Source, Sweep, Trial


TASK = "sentence-similarity"  # the hub's name of what the model is for
USAGE = """
```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("this-folder").encode(["Good morning.", "Bonjour."])
```
"""
NO_TESTS = """\
## No sealed tests

The sweep had no sealed tests. This model was chosen and judged by the dev sets above, and no unseen text has checked
that choice: expect lower numbers on other text.
"""


def split_scores(scores: Scores) -> tuple[Scores, Scores]:
    """The main metric of every task and subset, and all other metrics; each score once."""
    scores = each_once(scores)
    main = {name: value for name, value in scores.items() if name.rpartition("/")[2] in MAIN_METRICS}
    return main, {name: value for name, value in scores.items() if name not in main}


def table(title: str, scores: Scores, others: Mapping[str, Scores]) -> str:
    """A Markdown table of metrics, with more columns for other models that have any of them."""
    others = {name: values for name, values in others.items() if scores.keys() & values.keys()}
    names = ["this model", *others]
    lines = [f"## {title}", "", f"| metric | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for metric, value in scores.items():
        cells = [f"{value:.4f}", *(f"{o[metric]:.4f}" if metric in o else "" for o in others.values())]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def caution(decision: Decision) -> str:
    """The worth of a dev score of the best of several trials: its standard error, and that it flatters."""
    selection = decision.selection
    if decision.among == 1:
        return ""  # it was not chosen
    if selection is None:
        luck = f"The trial is the best of {decision.among} by `{decision.chosen_by}`, so this number is partly luck."
        return f"{luck} It is probably one or two standard errors too good.\n"
    return f"{selection.words(f'Trial {decision.trial}')} Its standard error is about {selection.error:.4f}.\n"


def right_sides(sweep: Sweep) -> list[str]:
    """Which sets were scored against the teacher's vectors, which this model alone does not give."""
    kinds: tuple[Literal["dev", "test"], ...] = ("dev", "test")
    tasks = ", ".join(f"`{kind}/{name}`" for kind in kinds for name in sweep.data.against_teacher(kind))
    return [f"The right sides of {tasks} are encoded by the teacher `{sweep.teacher.title}`.\n"] if tasks else []


def overlap(prepared: Prepared) -> list[str]:
    """How much of each dev and test set has a near-duplicate in the training text, if that was looked for."""
    sets = prepared.counts.get("contamination", {}).get("sets", {})
    if not sets:
        return []
    head = ["## Near-duplicates in the training text", "", "| set | texts | with a near-duplicate | share |"]
    rows = (f"| {name} | {each['texts']} | {each['near']} | {each['share']:.2%} |" for name, each in sets.items())
    return ["\n".join([*head, "|---|---:|---:|---:|", *rows, ""])]


def contest(decision: Decision) -> list[str]:
    """The comparison with the champion that it replaced, if there was one."""
    comparison = decision.contest
    if comparison is None:
        return []
    head = "| metric | champion | this model | difference | interval | p |\n|---|---:|---:|---:|---:|---:|"
    rows = [f"## Compared with {comparison.champion}\n", head]
    for c in (*comparison.cells, *comparison.overall):
        scores = f"{c.champion:.4f} | {c.challenger:.4f} | {c.difference:+.4f}"
        rows.append(f"| {c.name} | {scores} | {c.low:+.4f} to {c.high:+.4f} | {c.p:.2g} |")
    return ["\n".join([*rows, ""])]


def routes(trial: Trial, prepared: Prepared) -> list[str]:
    """How to choose the language, of a model that has layers for each."""
    if not needs_of(trial.method, trial.config).per_language:
        return []
    first, *others = prepared.trained_languages
    languages = ", ".join(f"`{language}`" for language in (first, *others))
    return [
        f"It has layers for each language ({languages}): name a text's as `task`, such as",
        f'`encode(texts, task="{(others or [first])[0]}")`. Without it, texts take the layers of `{first}`.',
        "",
    ]


def dimensions(trial: Trial, report: Report) -> list[str]:
    """How to cut the vectors of a model that `training.matryoshka` has trained, and its scores at each dimension."""
    of_dim = {dim: f"dim{dim}/" for dim in sorted(trial.training.matryoshka, reverse=True)}
    of_dim = {dim: begin for dim, begin in of_dim.items() if any(name.startswith(begin) for name in report.metrics)}
    if not of_dim:
        return []
    whole = {name: value for name, value in report.metrics.items() if name.startswith("dev/") and name.count("/") == 2}
    columns = {f"first {dim}": {k: report.metrics[f"{begin}{k}"] for k in whole} for dim, begin in of_dim.items()}
    dims = ", ".join(str(dim) for dim in of_dim)
    return [
        f"## Shorter vectors\n\nThe first {dims} numbers of each vector were trained to stand alone:\n",
        f'```python\nSentenceTransformer("this-folder", truncate_dim={next(iter(of_dim))})\n```\n',
        "Cosines need no more. For dot products, also give `encode` the argument `normalize_embeddings=True`.\n",
        table("Dev sets by dimension, as scored in training", whole, columns),
    ]


def origins(sweep: Sweep, trial: Trial, decision: Decision) -> list[str]:
    """The start of the training, the checkpoints whose average the weights are, and the sweeps of its settings."""
    student, lines = trial.student, []
    if decision.members:
        checkpoints = ", ".join(f"`{member}`" for member in decision.members)
        lines.append(f"Its weights are the average of the checkpoints (trial/report) {checkpoints}.")
    if student.start is not None:
        lines.append(f"Training began with the weights and the tokenizer of `{student.start}`.")
    if student.embeddings_from is not None:
        lines.append(f"Training began with the tokenizer and the token table of `{student.embeddings_from}`.")
    if sweep.refit_of:
        lines.append(f"That sweep trains longer the settings of {', '.join(sweep.refit_of)}.")
    return lines


def settings_of(sweep: Sweep, trial: Trial, report: Report) -> dict[str, object]:
    """The settings of the training, each once: a searched one stands under its own name if no other says it."""
    settings: dict[str, object] = {**flat(trial.config), "method": trial.method}
    settings |= {"learning_rate": trial.training.learning_rate, "global_batch": trial.training.global_batch}
    settings |= {"pairs seen": report.pairs, "steps": report.step, "seed": trial.seed, "teacher": sweep.teacher.title}
    searched = {name: value for name, value in trial.params.items() if name.removeprefix("training.") not in settings}
    return {name: value for name, value in (settings | searched).items() if not _is_idle(name, value, trial)}


def _is_idle(name: str, value: object, trial: Trial) -> bool:
    """Whether a setting is a weight of zero, or one of a loss that has such a weight: it did nothing."""
    last = name.rpartition(".")[2]
    if value == 0 and (last.endswith("weight") or last in available()):
        return True
    loss = name.removeprefix("settings.").partition(".")[0]
    return name.startswith("settings.") and loss in available() and not trial.config.get(loss)


def size(report: Report, facts: CardFacts) -> list[str]:
    """The size of the model and of its vectors, as far as they are known."""
    sentences: list[str] = []
    if (parameters := report.metrics.get(PARAMETERS)) is not None:
        sentences.append(f"It has {parameters:,.0f} parameters, {4 * parameters / 1e6:,.1f} MB in fp32.")
    if facts.dimension is not None:
        sentences.append(f"Its vectors have {facts.dimension} dimensions.")
    return [" ".join(sentences)] if sentences else []


def canary(facts: CardFacts) -> list[str]:
    """By what a client knows whether an index fits."""
    if facts.canary is None:
        return []
    return [
        f"`canary.json` has its vectors of 100 fixed sentences (SHA-256 `{facts.canary}`). `babeltune canary "
        "this-folder MODEL` says whether another model, or a server at a URL, gives the same, so that an index fits.",
        "",
    ]


def examples(facts: CardFacts) -> list[str]:
    """A few dev sentences, and what the model finds nearest to each in another language."""
    if not facts.nearest:
        return []
    rows = ""
    for each in facts.nearest:
        query, answer = each.question, f"{each.cosine:.4f} | {'yes' if each.is_translation else 'no'}"
        rows += (
            f"| {cell(query.text)} | {query.language} | {cell(each.text)} | {query.candidate_language} | {answer} |\n"
        )
    sizes = sorted({len(each.question.candidates) for each in facts.nearest})
    among = " or ".join(f"{size:,}" for size in sizes)
    return [
        f"## Three sentences\n\nDev sentences, and the nearest of {among} in another language. They stand at fixed "
        "places of the dev sets.\n",
        f"| sentence | language | nearest | language | cosine | its translation |\n|---|---|---|---|---:|---|\n{rows}",
    ]


def cell(text: str) -> str:
    """A text on one line of a Markdown table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def results(decision: Decision, facts: CardFacts) -> Iterator[str]:
    """The main metrics beside those of the untrained student, the teacher and the baselines; the caution about them."""
    dev, _ = split_scores(decision.dev)
    yield table("Dev sets, scored from this folder in a fresh process", dev, facts.others)
    yield caution(decision)
    if not decision.test:
        yield NO_TESTS
        return
    test, _ = split_scores(decision.test)
    yield table("Sealed test sets", test, {**_beside(decision), "chance": decision.chance})


def _beside(decision: Decision) -> dict[str, Scores]:
    """The sealed scores of other models."""
    teacher = {"teacher": decision.teacher} if decision.teacher else {}
    return {"untrained student": decision.untrained, **teacher, **decision.baselines}


def more_results(decision: Decision, facts: CardFacts) -> Iterator[str]:
    """All other metrics."""
    _, dev = split_scores(decision.dev)
    _, test = split_scores(decision.test)
    if dev:
        yield table("More metrics of the dev sets", dev, facts.others)
    if test:
        yield table("More metrics of the sealed test sets", test, _beside(decision))


def trained_sources(sweep: Sweep) -> list[Source]:
    """The sources of pairs, and those of graded pairs."""
    return [*sweep.data.train, *(task.graded() for task in sweep.data.graded)]


def sources(sweep: Sweep) -> list[str]:
    """Where the training text is from, and under which licence."""
    cells = ((each.name, _origin(each, sweep), _licence(each, sweep)) for each in trained_sources(sweep))
    rows = (f"| {' | '.join(map(cell, row))} |" for row in cells)
    return ["## Training text", "", "| source | from | licence |", "|---|---|---|", *rows, ""]


def _origin(source: Source, sweep: Sweep) -> str:
    if source.dataset is not None:
        return source.dataset
    if isinstance(source, PivotSource):
        return f"{source.left} and {source.right}, joined"
    if isinstance(source, TranslateSource):
        return f"a translation of {source.translation.text}, by {source.translation.model}"
    names = [Path(each).name for each in (source.path, *(source.paths or {}).values()) if each]
    return f"{', '.join(names)}{' of babeltune' if sweep.data.root == BUNDLED_ROOT else ''}"


def _licence(source: Source, sweep: Sweep) -> str:
    bundled = sweep.data.root == BUNDLED_ROOT and source.dataset is None
    return source.license or ("CC0-1.0" if bundled else "as the data set says" if source.dataset else NOT_STATED)


def limits(trial: Trial, languages: Sequence[str], decision: Decision) -> list[str]:
    """Uses for which the model was not made or measured."""
    chosen = f" It is the best of {decision.among} trials on the dev sets." if decision.among > 1 else ""
    return [
        "## Limits",
        "",
        f"* It was trained for {', '.join(languages)}. Nothing is known of other languages.",
        f"* Text beyond {trial.student.max_tokens} tokens is cut.",
        "* Cosines rank texts. They are no probabilities, and do not compare with those of another model.",
        f"* The figures are of the sets above, and other text may be harder.{chosen}",
        "",
    ]


def model_card(
    sweep: Sweep,
    trial: Trial,
    report: Report,
    prepared: Prepared,
    decision: Decision,
    facts: CardFacts = CardFacts(),  # noqa: B008  # a frozen record
) -> str:
    """The README of the exported folder: what it is, what it scored beside others, and how it was trained.

    What matters most stands first: MLflow's description of the version is cut at the end."""
    languages = sorted({language for group in prepared.groups for language in group.split("-")})
    rows = "\n".join(f"| {name} | {number(value)} |" for name, value in settings_of(sweep, trial, report).items())
    counts = zip(prepared.groups, prepared.group_rows, strict=True)
    groups = "\n".join(f"| {group} | {count} |" for group, count in counts)
    title = f"# {sweep.promotion.name or sweep.name}\n"
    introduction = (
        f"A sentence encoder for {', '.join(languages)}, trained by babeltune {babeltune.__version__} with the method "
        f"`{trial.method}`. It is trial {decision.trial} of sweep `{decision.sweep}`, at report {decision.report}."
    )
    parts = itertools.chain(
        [header(sweep, trial, languages, decision.test), title, introduction],
        size(report, facts),
        origins(sweep, trial, decision),
        [USAGE],
        routes(trial, prepared),
        canary(facts),
        right_sides(sweep),
        results(decision, facts),
        examples(facts),
        [
            f"## Settings\n\n| setting | value |\n|---|---|\n{rows}\n",
            f"## Training pairs\n\n| languages | pairs |\n|---|---:|\n{groups}\n",
            f"Data digest: `{prepared.digest}`. Rows that occur in any dev or test set were removed before training.\n",
        ],
        sources(sweep),
        overlap(prepared),
        limits(trial, languages, decision),
        dimensions(trial, report),
        contest(decision),
        more_results(decision, facts),
    )
    return "\n".join(parts)


def header(sweep: Sweep, trial: Trial, languages: Iterable[str], test: Scores) -> str:
    """The header in YAML, between lines of three hyphens."""
    from huggingface_hub import ModelCardData

    datasets = [source.dataset for source in trained_sources(sweep) if source.dataset and hub_id(source.dataset)]
    data = ModelCardData(
        language=sorted({meaning(language).language for language in languages}),
        library_name="sentence-transformers",
        pipeline_tag=TASK,
        tags=["sentence-transformers", "feature-extraction", "babeltune", trial.method],
        base_model=base_model(sweep, trial),
        datasets=list(dict.fromkeys(datasets)) or None,
        model_name=sweep.promotion.name or sweep.name,
        eval_results=sealed_results(test) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def base_model(sweep: Sweep, trial: Trial) -> str | None:
    """The hub's model that training began with, or on whose vectors layers were trained; None for one from scratch."""
    if needs_of(trial.method, trial.config).frozen:
        return hub_id(sweep.teacher.model)
    student = trial.student
    names = (student.start, student.model, student.embeddings_from)
    return next((model for name in names if name is not None and (model := hub_id(name)) is not None), None)


def hub_id(name: str) -> str | None:
    """The id of a model or data set of the hub, without its revision; None for a folder and for other names."""
    if name == BUNDLED:
        return "sentence-transformers/all-MiniLM-L6-v2"
    plain_name = split_revision(name)[0]
    return plain_name if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", plain_name) and not Path(name).exists() else None


def sealed_results(test: Scores) -> list[EvalResult]:
    """The figures `test/NAME/SUBSET/METRIC`, `test/NAME/METRIC` and `test/METRIC`, each once, as the hub lists them."""
    from huggingface_hub import EvalResult

    results = []
    for name, value in each_once(test).items():
        _, *parts, metric = name.split("/")
        results.append(
            EvalResult(
                task_type=TASK,
                dataset_type=parts[0] if parts else "all",
                dataset_name=" ".join(parts) or "all sealed tests",
                dataset_config=parts[1] if len(parts) > 1 else None,
                dataset_split="test",
                metric_type=metric,
                metric_value=round(value, 4),
            )
        )
    return results
