"""The command filter: the best pairs of a noisy corpus, and the translation models that they train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from babeltune.cli.common import ClusterFile, Json, app, cluster_of, err, out, say, warn
from babeltune.errors import DataError, SpecError

if TYPE_CHECKING:
    from babeltune.filtering.select import Columns, Pairs, Ranked
    from babeltune.filtering.translate import Recipe


@app.command("filter")
def filter_(
    pairs: Annotated[str, typer.Argument(help="A TSV of sources and targets, gzipped or not.")],
    model: Annotated[str, typer.Argument(help="A model folder, hub id, or models:/NAME@ALIAS, which scores.")],
    out_: Annotated[Path, typer.Option("--out", help="A new folder for the subsets and report.json.")],
    tokens: Annotated[str, typer.Option(help="Sizes in target tokens, such as 1000000,2000000.")],
    columns: Annotated[
        str | None, typer.Option(help="SOURCE,TARGET in the header; without it, the first two, and no header.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="ISO 639-1 codes among which a source's language is told, and en; else all.")
    ] = None,
    k: Annotated[int, typer.Option(help="Neighbours of the margin.", min=1)] = 4,
    margin: Annotated[Literal["ratio", "distance", "absolute"], typer.Option(help="Which margin ranks.")] = "ratio",
    on_error: Annotated[Literal["fail", "drop"], typer.Option(help="What is done about broken rows.")] = "fail",
    train: Annotated[
        str | None, typer.Option(help="Train a translation model on each subset: a folder, a hub id, or scratch.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="The TSV that translation models are scored on.")] = None,
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
    from babeltune.filtering import select, translate
    from babeltune.promotion.promote import model_folder

    sizes, names = sizes_of(tokens), columns_of(columns)
    if (train is None) != (test is None):
        raise SpecError("--train and --test go together: the model that is trained, and the pairs it is scored on")
    if out_.exists():
        raise SpecError(f"--out {out_} exists already; name a new folder, or remove it first")
    recipe = None
    if train is not None:
        translate.scorers()
        recipe = translate.Recipe(
            model=train, steps=steps, batch=batch, learning_rate=learning_rate, max_tokens=max_tokens, beams=beams,
            seed=seed, source_code=source_code, target_token=target_token, layers=layers, width=width,
            vocabulary=vocabulary,
        )  # fmt: skip
    identify = select.language_identifier(languages.split(",") if languages else None)
    given = select.without_repetitions(select.read_pairs(pairs, names, drop=on_error == "drop"))
    tests = select.read_pairs(test, names) if test is not None else None
    if tests is not None:
        given = select.without_test(given, tests)
    given, found = select.without_english(given, identify)
    if not len(given):
        raise DataError(f"{pairs}: nothing is left of {given.read} pairs; dropped: {dict(given.dropped)}")
    folder = model_folder(model, cluster_of(cluster))
    ranked, given = select.rank(given, select.score_pairs(given, select.encoder(folder, names), k, margin))
    report: dict[str, Any] = {
        "pairs": {"path": pairs, "sha256": given.digest, "read": given.read},
        "model": model,
        "margin": margin,
        "k": k,
        "dropped": dict(given.dropped),
        "source_languages": found,
        "kept": len(ranked.source),
        "token": "what stands between blanks in the target",
        "subsets": write(out_, ranked, sizes),
    }
    if recipe is not None and tests is not None:
        report["translation"] = {
            "recipe": asdict(recipe),
            "test": {"path": test, "sha256": tests.digest, "pairs": len(tests)},
            "results": translations(out_, ranked, report["subsets"], recipe, tests),
        }
    (out_ / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    warn(
        f"{row['asked']} target tokens were asked for and all that is left has {row['tokens']}"
        for row in report["subsets"]
        if row["pairs"] == len(ranked.source) and row["tokens"] < row["asked"]
    )
    say(report, as_json, lambda: show(report))


def sizes_of(text: str) -> list[int]:
    """Ascending numbers of tokens; raises `SpecError` for what is none."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise SpecError(f"--tokens {text!r}: sizes are whole numbers above 0, such as 1000000,2000000")
    return sorted(set(map(int, parts)))


def columns_of(text: str | None) -> Columns | None:
    """The two names; raises `SpecError` for another number of them."""
    if text is None:
        return None
    names = text.split(",")
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise SpecError(f"--columns {text!r} is not SOURCE,TARGET, such as khm,eng")
    return names[0], names[1]


def write(folder: Path, ranked: Ranked, sizes: list[int]) -> list[dict[str, Any]]:
    """Writes a file for each size; returns what each holds."""
    from babeltune.filtering.select import subset, write_subset

    folder.mkdir(parents=True)
    rows = []
    for asked in sizes:
        count, tokens = subset(ranked, asked)
        name = f"top-{asked}.tsv"
        write_subset(folder / name, ranked, count)
        lowest = ranked.scores[count - 1] if count else None
        rows.append({"asked": asked, "file": name, "pairs": count, "tokens": tokens, "lowest_score": lowest})
    return rows


def translations(
    folder: Path, ranked: Ranked, subsets: list[dict[str, Any]], recipe: Recipe, test: Pairs
) -> list[dict[str, Any]]:
    """Trains a model on each subset that holds a pair, and scores it."""
    from babeltune.filtering import translate

    most = subsets[-1]["pairs"]
    start = translate.starting_model(recipe, [*ranked.source[:most], *ranked.target[:most]], folder / "start")
    results = []
    for row in subsets:
        count, place = row["pairs"], folder / f"top-{row['asked']}"
        if not count:
            raise DataError(f"no pair fits in {row['asked']} tokens, so there is nothing to train on; ask for more")
        loss = translate.train(recipe, start, ranked.source[:count], ranked.target[:count], place, told(row["asked"]))
        scores = translate.score_model(recipe, place, test.source, test.target)
        results.append({"asked": row["asked"], "model": place.name, "loss": loss, **scores})
    shutil.rmtree(folder / "start", ignore_errors=True)
    return results


def told(asked: int) -> Callable[[int, int, float], None]:
    """Says how far the training on a subset is."""
    return lambda step, of, loss: err.print(f"top {asked}: step {step}/{of}, loss {loss:.3f}")


def show(report: dict[str, Any]) -> None:
    """What was dropped, and the subsets with the scores of their translation models."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())
    out.print(f"{report['kept']} of {report['pairs']['read']} pairs are ranked; dropped: {reasons or 'none'}")
    results = report.get("translation", {}).get("results", [])
    table = Table("tokens asked", box=None, pad_edge=False, header_style="bold")
    for title in ("tokens", "pairs", "lowest score", *(["BLEU", "chrF"] if results else [])):
        table.add_column(title, justify="right")
    for place, row in enumerate(report["subsets"]):
        lowest = "–" if row["lowest_score"] is None else f"{row['lowest_score']:.4f}"
        scores = [f"{results[place][name]:.2f}" for name in ("bleu", "chrf")] if results else []
        table.add_row(str(row["asked"]), str(row["tokens"]), str(row["pairs"]), lowest, *scores)
    out.print(table)
