"""The commands about vectors that others keep: canary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from babeltune.cli.common import ClusterFile, Json, cluster_of, finite, out, say, steps_shown
from babeltune.cli.mining import FIRST, Prompt
from babeltune.cli.program import app
from babeltune.files import plain

Language = Annotated[
    str | None, typer.Option("--language", help="Of a model with layers for each language: the text's.")
]


@app.command()
def canary(
    reference: Annotated[
        str, typer.Argument(help="What is fitted: a folder of `promote` or `index`, its canary.json, or a model.")
    ],
    model: Annotated[
        str, typer.Argument(help="A model folder, hub id, models:/NAME@ALIAS, or the URL of a server's embeddings.")
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
    fits = fit.cosine >= least
    verdict = "fits" if fits else f"does not fit (--least {least})"
    words = f"{model} {verdict} {reference}: {fit.words()}{' (by its adapter)' if fit.by_adapter else ''}"
    say({"fits": fits, **plain(fit)}, as_json, lambda: out.print(words, markup=False, highlight=False, soft_wrap=True))
    raise typer.Exit(0 if fits else 3)
