"""The commands that mine text with a model: mine, score, encode."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from babeltune.cli.common import ClusterFile, Json, app, cluster_of, err, out, say, warn

if TYPE_CHECKING:
    from babeltune.mining.vectors import Model

EVERY = 5.0
"""Seconds between two lines of progress, where standard error is no terminal."""

ModelName = Annotated[str, typer.Argument(help="A model folder, hub id, or models:/NAME@ALIAS.")]
Neighbours = Annotated[int, typer.Option("--k", help="Neighbours of each sentence.", min=1)]
MarginName = Annotated[
    Literal["ratio", "distance", "absolute"],
    typer.Option("--margin", help="A pair's cosine over, or less, the mean cosine around it; or the cosine itself."),
]
Half = Annotated[
    Literal["fp32", "bf16"],
    typer.Option("--precision", help="Of the search; what bf16 finds is scored again in fp32."),
]
IndexName = Annotated[
    Literal["exact", "ivf", "pq", "hnsw"],
    typer.Option("--index", help="Exact search, or candidates of a faiss index, scored exactly."),
]
Prompt = Annotated[str | None, typer.Option("--prompt", help="Put before every sentence; the model's own otherwise.")]
Source = Annotated[
    str | None, typer.Option("--source-language", help="Of a model with layers for each language: the sources'.")
]
Target = Annotated[str | None, typer.Option("--target-language", help="The same for the targets.")]


@app.command()
def mine(
    source: Annotated[Path, typer.Argument(help="Text, one sentence a line; .gz is unpacked.")],
    target: Annotated[Path, typer.Argument(help="The same in the other language.")],
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="Where the pairs go: score, source, target, tab-separated.")],
    k: Neighbours = 4,
    margin: MarginName = "ratio",
    retrieval: Annotated[
        Literal["max", "forward", "backward", "intersection", "union"],
        typer.Option(help="max: each sentence in one pair; else the best of each sentence, of one side or both."),
    ] = "max",
    threshold: Annotated[float | None, typer.Option(help="Only pairs with a score above it.")] = None,
    precision: Half = "fp32",
    index: IndexName = "exact",
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file: encode and search as Ray tasks there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the translations of one file's sentences in another file, scored by margin."""
    from babeltune.errors import SpecError
    from babeltune.mining import mine as mining

    if cluster is not None and index != "exact":
        raise SpecError(f"--index {index} searches on this machine alone; leave out --cluster, or --index")
    chosen = cluster_of(cluster)
    done = mining.mine(
        source,
        target,
        _models(model, cluster, prompt, source_language, target_language),
        out_,
        mining.Settings(k=k, margin=margin, retrieval=retrieval, threshold=threshold, precision=precision, index=index),
        Path(chosen.storage).absolute() / "mining",
        meter(),
        cluster=None if cluster is None else chosen,
    )
    warn(_about_lines(done, ("source", source), ("target", target)))
    warn(mining.warnings_about(done))
    say(done, as_json, lambda: out.print(f"{done['pairs']} pairs in {out_}"))


@app.command()
def score(
    pairs: Annotated[Path, typer.Argument(help="A TSV of pairs; .gz is unpacked.")],
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="Where the pairs go, in order, with their score before them.")],
    columns: Annotated[
        str | None, typer.Option(help="SOURCE,TARGET as the first line names them; the first two when left out.")
    ] = None,
    k: Neighbours = 4,
    margin: MarginName = "ratio",
    precision: Half = "fp32",
    index: IndexName = "exact",
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Score given pairs by margin, against the neighbours in their own file."""
    from babeltune.errors import SpecError
    from babeltune.mining import mine as mining

    named = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if named is not None and len(named) != 2:
        raise SpecError(f"--columns {columns!r} names {len(named)}; give two, such as --columns fra,eng")
    done = mining.score(
        pairs,
        _models(model, cluster, prompt, source_language, target_language),
        out_,
        mining.Settings(k=k, margin=margin, precision=precision, index=index),
        Path(cluster_of(cluster).storage).absolute() / "mining",
        meter(),
        columns=None if named is None else (named[0], named[1]),
    )
    warn(_about_lines(done, ("lines", pairs)))
    warn(mining.warnings_about(done))
    say(done, as_json, lambda: out.print(f"{done['pairs']} pairs, mean {done['mean']:.4f}, in {out_}"))


@app.command()
def encode(
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="The .npy file: fp32, a row for each line.")],
    prompt: Prompt = None,
    language: Annotated[
        str | None, typer.Option(help="Of a model with layers for each language: the lines' language.")
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Encode the lines of standard input to a NumPy file."""
    from babeltune.mining import mine as mining

    chosen, _ = _models(model, cluster, prompt, language, language)
    done = mining.encode(sys.stdin.buffer, chosen, out_, meter())
    if done["replaced"]:
        warn([f"{done['replaced']} lines are not UTF-8; what could not be read was replaced by U+FFFD"])
    say(done, as_json, lambda: out.print(f"{done['rows']} vectors of {done['dim']} dimensions in {out_}"))


def _models(
    name: str, cluster: str | None, prompt: str | None, source: str | None, target: str | None
) -> tuple[Model, Model]:
    from babeltune.mining.vectors import model_at
    from babeltune.promotion.promote import model_folder

    folder = model_folder(name, cluster_of(cluster))
    first = model_at(folder, prompt=prompt, language=source)
    return first, first if source == target else model_at(folder, prompt=prompt, language=target)


def _about_lines(done: dict[str, Any], *files: tuple[str, Path]) -> list[str]:
    from babeltune.mining.sentences import Lines

    read = [(Lines(**done[name]), path) for name, path in files]
    return [f"{path}: of {lines.read} lines, {lines.faults()}" for lines, path in read if lines.faults()]


def meter() -> Callable[[str, int, int], None]:
    """Writes progress to standard error: at each stage's end, and every few seconds between."""
    last: dict[str, float] = {}

    def tell(stage: str, done: int, of: int) -> None:
        now = time.monotonic()
        if stage not in last:
            last[stage] = now
        elif done != of and now - last[stage] < EVERY:
            return
        last[stage] = now
        err.print(f"{stage}: {done:,}" + (f" of {of:,}" if of else ""), highlight=False)

    return tell
