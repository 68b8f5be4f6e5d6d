"""The model card of a promoted model. Every number in it comes from the run or from the promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import babeltune
from babeltune.method import needs_of

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.promotion.gates import Decision
    from babeltune.schema.records import Report, Sweep, Trial


NO_TESTS = """\
## No sealed tests

The sweep had no sealed tests. This model was chosen and judged by the dev sets above, and no unseen text has checked
that choice: expect lower numbers on other text.
"""


def table(title: str, scores: dict[str, float], **others: dict[str, float]) -> str:
    """A Markdown table of metrics, with more columns for other models."""
    names = ["this model", *others]
    lines = [f"## {title}", "", f"| metric | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for metric, value in scores.items():
        cells = [f"{value:.4f}", *(f"{o[metric]:.4f}" if metric in o else "" for o in others.values())]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def caution(decision: Decision) -> str:
    """What a dev number of the best of several trials is worth: its standard error, and that it flatters."""
    found = decision.selection
    if found is None:
        return (
            f"The trial was chosen among {decision.among} by `{decision.chosen_by}`, so that number flatters it: the "
            "best of many equally good trials looks one or two standard errors better than it is.\n"
        )
    return (
        f"The trial was chosen among {found.among} by `{found.metric}`, so that number flatters it. Its standard error "
        f"is about {found.error:.4f}; the best of {found.among} equally good trials looks {found.inflation:.4f} better "
        "than it is. Drawn towards the mean of all trials by what their spread owes to chance, it is "
        f"{found.shrunken:.4f}.\n"
    )


def right_sides(sweep: Sweep) -> list[str]:
    """Which sets were scored against the teacher's vectors, which this model alone does not give."""
    kinds: tuple[Literal["dev", "test"], ...] = ("dev", "test")
    named = ", ".join(f"`{kind}/{name}`" for kind in kinds for name in sweep.data.against_teacher(kind))
    return [f"The right sides of {named} are encoded by the teacher `{sweep.teacher.model}`.\n"] if named else []


def overlap(prepared: Prepared) -> list[str]:
    """How much of each dev and test set has a near-duplicate in the training text, where that was looked for."""
    sets = prepared.counts.get("contamination", {}).get("sets", {})
    if not sets:
        return []
    lines = ["## Near-duplicates in the training text", "", "| set | texts | with a near-duplicate | share |"]
    lines += [
        "|---|---:|---:|---:|",
        *(f"| {n} | {f['texts']} | {f['near']} | {f['share']:.2%} |" for n, f in sets.items()),
    ]
    return ["\n".join([*lines, ""])]


def contest(decision: Decision) -> list[str]:
    """The comparison with the champion that it replaced, where there was one."""
    found = decision.contest
    if found is None:
        return []
    lines = [f"## Compared with {found.champion}", "", "| metric | champion | this model | difference | interval | p |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    lines += [
        f"| {c.name} | {c.champion:.4f} | {c.challenger:.4f} | {c.difference:+.4f} | {c.low:+.4f} to {c.high:+.4f} | "
        f"{c.p:.2g} |"
        for c in (*found.cells, *found.overall)
    ]
    return ["\n".join([*lines, ""])]


def routes(trial: Trial, prepared: Prepared) -> list[str]:
    """How to choose the language, of a model that has layers for each."""
    if not needs_of(trial.method, trial.config).per_language:
        return []
    first, *others = prepared.trained_languages
    named = ", ".join(f"`{language}`" for language in (first, *others))
    return [
        f"It has layers for each language ({named}): name a text's as `task`, such as",
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
    named = ", ".join(str(dim) for dim in of_dim)
    return [
        f"## Shorter vectors\n\nThe first {named} numbers of each vector were trained to stand alone:\n",
        f'```python\nSentenceTransformer("this-folder", truncate_dim={next(iter(of_dim))})\n```\n',
        "Cosines need no more. For dot products, also give `encode` the argument `normalize_embeddings=True`.\n",
        table("Dev sets by dimension, as scored in training", whole, **columns),
    ]


def origins(trial: Trial, decision: Decision) -> list[str]:
    """What the training began with, and which checkpoints the weights are the average of."""
    student, lines = trial.student, []
    if decision.members:
        named = ", ".join(f"`{member}`" for member in decision.members)
        lines.append(f"Its weights are the average of the checkpoints (trial/report) {named}.")
    if student.start is not None:
        lines.append(f"Training began with the weights and the tokenizer of `{student.start}`.")
    if student.embeddings_from is not None:
        lines.append(f"Training began with the tokenizer and the token table of `{student.embeddings_from}`.")
    return lines


def model_card(sweep: Sweep, trial: Trial, report: Report, prepared: Prepared, decision: Decision) -> str:
    """The README of the exported folder: what it is, how it was trained, on what, and what it scored."""
    languages = sorted({language for group in prepared.groups for language in group.split("-")})
    settings = {**trial.config, "method": trial.method, "learning_rate": trial.training.learning_rate}
    settings |= {"global_batch": trial.training.global_batch, "pairs seen": report.pairs, "steps": report.step}
    settings |= {"seed": trial.seed, "teacher": sweep.teacher.model, **trial.params}
    rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
    groups = "\n".join(
        f"| {group} | {count} |" for group, count in zip(prepared.groups, prepared.group_rows, strict=True)
    )
    parts = [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        f"language: [{', '.join(languages)}]",
        "---",
        "",
        f"# {sweep.promotion.name or sweep.name}",
        "",
        f"A sentence encoder for {', '.join(languages)}, trained by babeltune {babeltune.__version__} with the method "
        f"`{trial.method}`. It is trial {decision.trial} of sweep `{decision.sweep}`, at report {decision.report}.",
        *origins(trial, decision),
        *([f"That sweep trains longer the settings of {', '.join(sweep.refit_of)}."] if sweep.refit_of else []),
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'vectors = SentenceTransformer("this-folder").encode(["Good morning.", "Bonjour."])',
        "```",
        "",
        *routes(trial, prepared),
        f"## Settings\n\n| setting | value |\n|---|---|\n{rows}\n",
        f"## Training pairs\n\n| languages | pairs |\n|---|---:|\n{groups}\n",
        f"Data digest: `{prepared.digest}`. Rows that occur in any dev or test set were removed before training.\n",
        *overlap(prepared),
        *right_sides(sweep),
        table("Dev sets, scored from this folder in a fresh process", decision.dev),
        caution(decision),
        *dimensions(trial, report),
    ]
    if decision.test:
        parts.append(
            table(
                "Sealed test sets",
                decision.test,
                **{"untrained student": decision.untrained, "chance": decision.chance},
            )
        )
    else:
        parts.append(NO_TESTS)
    return "\n".join([*parts, *contest(decision)])
