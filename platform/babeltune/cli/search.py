"""The commands about vectors that others keep: canary, index, search."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from babeltune.cli.common import ClusterFile, Json, cluster_of, finite, out, registered, say, say_out, steps_shown, warn
from babeltune.cli.mining import FIRST, GOES_ON, Codec, ModelName, Prompt, about_lines, encoding_of, models_of
from babeltune.cli.program import app
from babeltune.errors import SpecError, check_all, plural

Language = Annotated[
    str | None, typer.Option("--language", help="Of a model with layers for each language: the text's.")
]


@app.command()
def canary(
    reference: Annotated[
        str,
        typer.Argument(
            help="What is fitted: a folder of `promote` or `index`, its canary.json, or a model.", callback=registered
        ),
    ],
    model: Annotated[
        str,
        typer.Argument(
            help="A model folder, hub id, NAME@ALIAS, or the URL of a server's embeddings.", callback=registered
        ),
    ],
    least: Annotated[
        float, typer.Option(help="The cosine that each of the sentences must reach.", callback=finite)
    ] = 0.999,
    served_name: Annotated[str, typer.Option(help="Of a server: what it calls its model.")] = "default",
    prompt: Prompt = None,
    language: Language = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Say whether a model or a server gives the vectors of a model or an index, by 100 fixed sentences.

    A cosine below --least is a refusal, and ends with 3."""
    from babeltune.promotion.canary import canary_at, encoder_at, fit_of, server_encoder
    from babeltune.promotion.model_names import model_folder

    chosen = cluster_of(cluster)
    with steps_shown(FIRST):
        expected = canary_at(reference, chosen)
        if model.startswith(("http://", "https://")):
            fit = fit_of(expected, server_encoder(model, served_name), least=least)
        else:
            folder = model_folder(model, chosen)
            fit = fit_of(expected, encoder_at(folder, prompt, language), Path(folder), least)
    verdict = "fits" if fit.fits else f"does not fit (--least {least})"
    words = f"{model} {verdict} {reference}: {fit.words()}{' (by its adapter)' if fit.by_adapter else ''}"
    say(fit, as_json, lambda: say_out(words))
    raise typer.Exit(0 if fit.fits else 3)


@app.command()
def index(
    model: ModelName,
    files: Annotated[list[Path], typer.Argument(help="Text, one a line, packed or not; or tables, with --column.")],
    out_: Annotated[Path, typer.Option("--out", help="A new folder for the index.")],
    column: Annotated[str | None, typer.Option(help="The column of each file, if they are tables.")] = None,
    prompt: Prompt = None,
    language: Language = None,
    cluster: ClusterFile = None,
    codec: Codec = None,
    as_json: Json = False,
) -> None:
    """Make an index of texts, in which `search` finds what is nearest to a query.

    Needs faiss: `pip install 'babeltune[faiss]'`."""
    from babeltune.apps.mining.sentences import check_text
    from babeltune.promotion.model_files import check_free

    checks = (partial(check_text, file, codec, column) for file in files)
    check_all(partial(check_free, out_), *checks)  # before torch and the model
    from babeltune.apps.mining.text_index import build_index

    with steps_shown(FIRST, GOES_ON):
        models = models_of(model, cluster, prompt, language, language)
        columns = None if column is None else (column, column)
        done = build_index(models[0], model, files, out_, encoding_of(models, cluster, codec, columns))
    warn(about_lines(zip(files, done.lines, strict=True)))
    if zeros := done.zero_vectors:
        warn([f"a zero vector, which has no cosine with any other: {plural(zeros, 'text')}, not in the index"])
    words = f"{plural(done.rows, 'text')} of {done.dim} dimensions in {out_}"
    say(done, as_json, lambda: say_out(words))


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(help="A folder that `index` made.", metavar="FOLDER")],
    query: Annotated[str, typer.Argument(help="A text, in whatever language.")],
    model: Annotated[
        str | None,
        typer.Option(help="What encodes the query: the model of the index, or an adapter.", callback=registered),
    ] = None,
    top: Annotated[int, typer.Option(help="How many texts.", min=1)] = 10,
    prompt: Prompt = None,
    language: Language = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Find the texts of an index that are nearest to a query, with their cosines.

    A model whose vectors are not those of the index is refused, and ends with 3."""
    from babeltune.apps.mining.text_index import SearchResult, check_fit, nearest_texts, open_index
    from babeltune.apps.mining.vectors import model_at
    from babeltune.promotion.model_names import model_folder

    if not query.strip():
        raise SpecError("the query is empty; ask with some words")
    text_index = open_index(folder)
    name = model or text_index.record.model
    with steps_shown(FIRST):
        place = model_folder(name, cluster_of(cluster), setting="--model")
        fit = check_fit(text_index, place, name)
        hits = nearest_texts(text_index, model_at(place, prompt=prompt, language=language), query, top)
    table = Table("cosine", "text", "where")
    for hit in hits:
        table.add_row(f"{hit.score:.4f}", escape(hit.text), escape(f"{hit.file}:{hit.line}"))
    result = SearchResult(index=str(folder), model=name, by_adapter=fit.by_adapter, texts=tuple(hits))
    say(result, as_json, lambda: out.print(table))
