"""The commands that mine text with a model: mine, score, retrieve, encode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from babeltune.cli.common import ClusterFile, Json, cluster_of, finite, registered, say, say_out, steps_shown, warn
from babeltune.cli.program import app
from babeltune.errors import SpecError, check_all, plural
from babeltune.files import check_place
from babeltune.stages import tell

if TYPE_CHECKING:
    from babeltune.apps.mining.mine import Encoding
    from babeltune.apps.mining.sentences import Lines
    from babeltune.apps.mining.vectors import EncodingModel


TextFile = Annotated[
    Path, typer.Argument(help="Text, one sentence a line; gzip, bzip2, xz, Zstandard and ZIP are unpacked.")
]
ModelName = Annotated[str, typer.Argument(help="A model folder, hub id, or NAME@ALIAS.", callback=registered)]
Neighbours = Annotated[int, typer.Option("--k", help="Neighbours of each sentence.", min=1)]
MarginName = Annotated[
    Literal["ratio", "distance", "absolute"],
    typer.Option("--margin", help="A pair's cosine over, or less, the mean cosine around it; or the cosine itself."),
]
Half = Annotated[
    Literal["fp32", "bf16"], typer.Option("--precision", help="Of the search; what bf16 finds is scored again in fp32.")
]
IndexName = Annotated[
    Literal["exact", "ivf", "pq", "hnsw"],
    typer.Option("--index", help="Exact search, or candidates of a faiss index, scored exactly."),
]
Prompt = Annotated[
    str | None, typer.Option("--prompt", help="Put before every sentence that MODEL encodes; its own otherwise.")
]
Source = Annotated[
    str | None, typer.Option("--source-language", help="Of a model with layers for each language: the sources'.")
]
Target = Annotated[str | None, typer.Option("--target-language", help="The same for the targets.")]
TargetModel = Annotated[
    str | None,
    typer.Option(
        "--target-model",
        help="What encodes the targets, such as the teacher of MODEL, with its own prompt; MODEL when left out.",
        callback=registered,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="SOURCE,TARGET by their names, or by numbers from 0; else the first two."),
]

TextColumns = Annotated[
    str | None,
    typer.Option("--columns", help="The column of each file, if they are tables: SOURCE,TARGET, such as fra,eng."),
]
Codec = Annotated[
    str | None, typer.Option("--encoding", help="Of all files, such as cp1252; UTF-8, UTF-16 and UTF-32 are seen.")
]

GOES_ON = "goes on where it was"  # the message of `mine`, `score` and `retrieve` after a Ctrl-C
FIRST = "loading the model"  # the step that `mine`, `score`, `retrieve` and `encode` begin with


@app.command()
def mine(
    source: TextFile,
    target: Annotated[Path, typer.Argument(help="The same in the other language.")],
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="Where the pairs go: score, source, target, tab-separated.")],
    k: Neighbours = 4,
    margin: MarginName = "ratio",
    retrieval: Annotated[
        Literal["max", "forward", "backward", "intersection", "union"],
        typer.Option(help="max: each sentence in one pair; else the best of each sentence, of one side or both."),
    ] = "max",
    threshold: Annotated[float | None, typer.Option(help="Only pairs with a score above it.", callback=finite)] = None,
    precision: Half = "fp32",
    index: IndexName = "exact",
    columns: TextColumns = None,
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    target_model: TargetModel = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file: encode and search as Ray tasks there.")
    ] = None,
    codec: Codec = None,
    as_json: Json = False,
) -> None:
    """Find the translations of one file's sentences in another file, with a score by margin."""
    from babeltune.apps.mining import mine as mining

    names = columns_of(columns, files=2)
    checks = texts_of(names, source, target, codec)  # before the model
    check_all(partial(check_place, out_, books(source, target)), *checks)
    if cluster is not None and index != "exact":
        raise SpecError(f"--index {index} searches on this machine alone; leave out --cluster, or --index")
    with steps_shown(FIRST, GOES_ON):
        models = models_of(model, cluster, prompt, source_language, target_language, target_model)
        settings = mining.MiningSettings(
            k=k, margin=margin, retrieval=retrieval, threshold=threshold, precision=precision, index=index
        )
        done = mining.mine(source, target, out_, settings, encoding_of(models, cluster, codec, names, spread=True))
    warn(about_lines([(source, done.source), (target, done.target)]))
    warn(mining.warnings_about(done))
    say(done, as_json, lambda: say_out(f"{plural(done.pairs, 'pair')} in {out_}"))


@app.command()
def score(
    pairs: Annotated[Path, typer.Argument(help="Pairs: a TSV, or another format that `init` reads; packed or not.")],
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="Where the pairs go, in order, with their score before them.")],
    columns: Columns = None,
    k: Neighbours = 4,
    margin: MarginName = "ratio",
    precision: Half = "fp32",
    index: IndexName = "exact",
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    target_model: TargetModel = None,
    cluster: ClusterFile = None,
    codec: Codec = None,
    as_json: Json = False,
) -> None:
    """Score pairs by margin, against the other sentences of the file."""
    from babeltune.apps.mining import mine as mining
    from babeltune.apps.pair_files import check_pairs

    names = columns_of(columns)
    check_all(partial(check_place, out_, books(pairs)), partial(check_pairs, str(pairs), names, codec))
    with steps_shown(FIRST, GOES_ON):
        models = models_of(model, cluster, prompt, source_language, target_language, target_model)
        settings = mining.MiningSettings(k=k, margin=margin, precision=precision, index=index)
        done = mining.score(pairs, out_, settings, encoding_of(models, cluster, codec, names))
    warn(about_lines([(pairs, done.lines)]))
    warn(mining.warnings_about(done))
    mean = "" if done.mean is None else f" mean {done.mean:.4f},"
    say(done, as_json, lambda: say_out(f"{plural(done.pairs, 'pair')},{mean} in {out_}"))


@app.command()
def retrieve(
    queries: TextFile,
    candidates: Annotated[Path, typer.Argument(help="What is searched, of any size: the same in another language.")],
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="Where what is found goes: cosine, query, candidate.")],
    gold: Annotated[
        Path | None,
        typer.Option(help="What is right for each query: numbers of the candidates' lines, from 1, or their text."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Candidates of each query.", min=1)] = 1,
    precision: Half = "fp32",
    columns: TextColumns = None,
    prompt: Prompt = None,
    source_language: Source = None,
    target_language: Target = None,
    target_model: TargetModel = None,
    cluster: ClusterFile = None,
    codec: Codec = None,
    as_json: Json = False,
) -> None:
    """Find the candidates nearest to each query, and the precision at 1 if the right ones are known."""
    from babeltune.apps.mining import retrieval
    from babeltune.data.file_readers import file_at

    names, golds = columns_of(columns, files=2), [partial(file_at, str(gold), once=True)] if gold is not None else []
    place = partial(check_place, out_, books(queries, candidates, *filter(None, [gold])))
    check_all(place, *texts_of(names, queries, candidates, codec), *golds)  # before the model
    with steps_shown(FIRST, GOES_ON):
        models = models_of(model, cluster, prompt, source_language, target_language, target_model)
        encoding = encoding_of(models, cluster, codec, names)
        done = retrieval.retrieve(queries, candidates, out_, encoding, gold=gold, k=k, precision=precision)
    warn(about_lines([(queries, done.queries), (candidates, done.candidates)]))
    warn(retrieval.warnings_about(done))
    right = f"precision at 1 {done.precision_at_1:.4f}, " if gold is not None else ""
    say(done, as_json, lambda: say_out(f"{right}{plural(done.queries.usable, 'query', 'queries')} in {out_}"))


@app.command()
def encode(
    model: ModelName,
    out_: Annotated[Path, typer.Option("--out", help="The .npy file: fp32, a row for each line.")],
    prompt: Prompt = None,
    language: Annotated[
        str | None, typer.Option(help="Of a model with layers for each language: the lines' language.")
    ] = None,
    cluster: ClusterFile = None,
    codec: Codec = None,
    as_json: Json = False,
) -> None:
    """Encode the lines of standard input to a NumPy file."""
    from babeltune.apps.mining import mine as mining

    with steps_shown(FIRST):
        chosen, _ = models_of(model, cluster, prompt, language, language)
        done = mining.encode(sys.stdin.buffer, chosen, out_, tell, codec)
    if done.replaced:
        warn([f"not UTF-8: {plural(done.replaced, 'line')}; what could not be read was replaced by U+FFFD"])
    if done.too_long:
        from babeltune.apps.mining.sentences import LONGEST

        warn([f"longer than {LONGEST:,} bytes: {plural(done.too_long, 'line')}; a vector is that of the beginning"])
    if done.zero_vectors:
        warn([f"a zero vector, which has no cosine with any other: {plural(done.zero_vectors, 'line')}"])
    say(done, as_json, lambda: say_out(f"{done.rows} vectors of {done.dim} dimensions in {out_}"))


def models_of(
    name: str,
    cluster: str | None,
    prompt: str | None,
    source: str | None,
    target: str | None,
    target_model: str | None = None,
) -> tuple[EncodingModel, EncodingModel]:
    """The model of the sources and that of the targets: one, its layers for either language, or two models.

    Raises `SpecError` for two models whose vectors do not compare."""
    from babeltune.apps.mining.vectors import model_at
    from babeltune.promotion.model_names import model_folder

    folder = model_folder(name, cluster_of(cluster))
    first = model_at(folder, prompt=prompt, language=source)
    if target_model is None:
        return first, first if source == target else model_at(folder, prompt=prompt, language=target)
    second = model_at(model_folder(target_model, cluster_of(cluster), setting="--target-model"), language=target)
    if first.width != second.width:
        raise SpecError(
            f"--target-model {target_model!r} has vectors of {second.width} dimensions, and {name!r} of {first.width}: "
            "they do not compare; name two models of one dimension"
        )
    return first, second


def encoding_of(
    models: tuple[EncodingModel, EncodingModel],
    cluster: str | None,
    codec: str | None = None,
    columns: tuple[str, str] | None = None,
    *,
    spread: bool = False,
) -> Encoding:
    """The models of a command with their storage. With `spread` a cluster that is named does the work."""
    from babeltune.apps.mining.mine import Encoding

    chosen = cluster_of(cluster)
    if chosen.mirrored is not None:
        raise SpecError(
            f"cluster {chosen.name!r}: every worker maps the vectors of mined text into memory, so its storage must be "
            f"a folder that all see, not {chosen.storage}"
        )
    return Encoding(
        models=models,
        storage=chosen.folder / "mining",
        progress=tell,
        codec=codec,
        columns=columns,
        cluster=chosen if spread and cluster is not None else None,
    )


def texts_of(
    names: tuple[str, str] | None, source: Path, target: Path, codec: str | None
) -> Iterator[Callable[[], None]]:
    """For each of two files the check that it is there, and has its column."""
    from babeltune.apps.mining.sentences import check_text

    for path, name in zip((source, target), names or (None, None), strict=True):
        yield partial(check_text, path, codec, name)


def books(*files: Path) -> list[Path]:
    """The files; `book.xlsx[Sheet2]` is `book.xlsx`."""
    from babeltune.apps.own_files.tables import named_sheet

    return [named_sheet(str(file), file)[0] for file in files]


def columns_of(text: str | None, files: int = 1) -> tuple[str, str] | None:
    """The two names; raises `SpecError` for another number of them, and for one twice of a single file."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or (files == 1 and names[0] == names[1]):
        raise SpecError(f"--columns {text!r} is not SOURCE,TARGET, such as fra,eng")
    return names[0], names[1]


def about_lines(files: Iterable[tuple[Path, Lines]]) -> list[str]:
    """The reasons why lines of the files were left out."""
    return [f"{path}: of {plural(lines.read, 'line')}, {lines.faults()}" for path, lines in files if lines.faults()]
