"""The command filter: the best pairs of a noisy corpus, and the translation models that they train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from babeltune.cli.common import ClusterFile, Json, out, plain_table, registered, say, say_line, steps_shown, warn
from babeltune.cli.mining import (
    Codec,
    Columns,
    MarginName,
    Neighbours,
    Prompt,
    Source,
    Target,
    TargetModel,
    columns_of,
    encoding_of,
    models_of,
)
from babeltune.cli.program import app
from babeltune.errors import SpecError
from babeltune.stages import READING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from babeltune.apps.filtering.filter import Filtered


@app.command("filter")
def filter_(
    pairs: Annotated[str, typer.Argument(help="Pairs: a TSV, or another format that `init` reads; packed or not.")],
    model: Annotated[
        str, typer.Argument(help="The model that scores: a folder, hub id, or NAME@ALIAS.", callback=registered)
    ],
    out_: Annotated[Path, typer.Option("--out", help="A new folder for the subsets and report.json.")],
    tokens: Annotated[str, typer.Option(help="Sizes in target tokens, such as 1000000,2000000.")],
    columns: Columns = None,
    languages: Annotated[
        str | None,
        typer.Option(
            help="Codes. A source's language is guessed among these and en alone, whatever it is; else among all."
        ),
    ] = None,
    k: Neighbours = 4,
    margin: MarginName = "ratio",
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    target_model: TargetModel = None,
    on_error: Annotated[Literal["fail", "drop"], typer.Option(help="What is done about broken rows.")] = "fail",
    train: Annotated[
        str | None, typer.Option(help="Train a translation model on each subset: a folder, a hub id, or scratch.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="The pairs that translation models are scored on.")] = None,
    codec: Codec = None,
    steps: Annotated[int, typer.Option(help="Of each translation model.", min=1)] = 10_000,
    batch: Annotated[int, typer.Option(help="Pairs of a step.", min=1)] = 64,
    learning_rate: Annotated[float, typer.Option(help="1e-3 for scratch; less to fine-tune.", min=1e-9)] = 1e-3,
    max_tokens: Annotated[int, typer.Option(help="Of a sentence.", min=4)] = 128,
    beams: Annotated[int, typer.Option(help="1 is greedy.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of the translation models.", min=0)] = 0,
    source_code: Annotated[str | None, typer.Option(help="The tokenizer's src_lang, such as khm_Khmr.")] = None,
    target_token: Annotated[str | None, typer.Option(help="Begins a translation, such as eng_Latn.")] = None,
    layers: Annotated[int, typer.Option(help="Of a model from scratch.", min=1)] = 5,
    width: Annotated[int, typer.Option(help="Of a model from scratch.", min=8)] = 512,
    vocabulary: Annotated[int, typer.Option(help="Of a model from scratch.", min=8)] = 5_000,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Keep the best pairs of a noisy corpus by margin, in nested subsets; with --train, translate with each."""
    from babeltune.apps.filtering.filter import NoisyCorpus, TranslationTest, filter_corpus
    from babeltune.apps.filtering.translate import Recipe
    from babeltune.apps.mining.mine import MiningSettings

    if (train is None) != (test is None):
        raise SpecError("--train and --test go together: the model that is trained, and the pairs it is scored on")
    translation = None
    if train is not None and test is not None:
        recipe = Recipe(
            model=train, steps=steps, batch=batch, learning_rate=learning_rate, max_tokens=max_tokens, beams=beams,
            seed=seed, source_code=source_code, target_token=target_token, layers=layers, width=width,
            vocabulary=vocabulary,
        )  # fmt: skip
        translation = TranslationTest(recipe, test, on_step)
    only = languages.split(",") if languages else None
    with steps_shown(READING):
        report = filter_corpus(
            NoisyCorpus(pairs, columns_of(columns), only, drop=on_error == "drop", codec=codec),
            out_,
            sizes_of(tokens),
            lambda: encoding_of(
                models_of(model, cluster, prompt, source_language, target_language, target_model), cluster
            ),
            MiningSettings(k=k, margin=margin),
            translation,
        )
    warn(doubts(report))
    say(report, as_json, lambda: show(report))


def doubts(report: Filtered) -> Iterator[str]:
    """What was probably not meant."""
    from babeltune.apps.filtering.select import ENGLISH_SOURCE

    for row in report.subsets:
        if row.pairs == report.ranked and row.tokens < row.limit:
            yield f"{row.limit} target tokens were asked for and all that is left has {row.tokens}"
    if 2 * report.dropped.get(ENGLISH_SOURCE, 0) > int(report.pairs["read"]):
        yield "most sources are English and are left out; if the columns are exchanged, give --columns TARGET,SOURCE"


SIZE = re.compile(r"0{0,9}[1-9][0-9]{0,17}")  # a number of tokens, below 10^18


def sizes_of(text: str) -> list[int]:
    """Ascending numbers of tokens; raises `SpecError` for anything else."""
    parts = text.split(",")
    if not all(SIZE.fullmatch(part.strip()) for part in parts):
        raise SpecError(f"--tokens {text[:80]!r}: sizes are whole numbers above 0, such as 1000000,2000000")
    return sorted(set(map(int, parts)))


def on_step(size: int, step: int, of: int, loss: float) -> None:
    """Says how far the training on a subset is."""
    say_line(f"top {size}: step {step}/{of}, loss {loss:.3f}")


def show(report: Filtered) -> None:
    """Prints what was dropped, and the subsets with the scores of their translation models."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items())
    out.print(f"{report.ranked} of {report.pairs['read']} pairs are ranked; dropped: {reasons or 'none'}")
    results = report.translation.results if report.translation else ()
    measured = ("BLEU", "chrF") if results else ()
    table = plain_table("tokens asked", numbers=("tokens", "pairs", "lowest score", *measured))
    for place, row in enumerate(report.subsets):
        lowest = "–" if row.lowest_score is None else f"{row.lowest_score:.4f}"
        scores = [f"{results[place][name]:.2f}" for name in ("bleu", "chrf")] if results else []
        table.add_row(str(row.limit), str(row.tokens), str(row.pairs), lowest, *scores)
    out.print(table)
