"""The command transfer: zero-shot transfer as XTREME measures it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from babeltune.cli.common import ClusterFile, Json, cluster_of, out, say, say_line, steps_shown
from babeltune.cli.program import app
from babeltune.errors import SpecError
from babeltune.files import check_place, json_text, write_out

if TYPE_CHECKING:
    from babeltune.apps.transfer.formats import Examples
    from babeltune.apps.transfer.record import Text, TransferRecord

ENGLISH = ("en", "eng")


@app.command()
def transfer(
    model: Annotated[str, typer.Argument(help="A model folder, hub id, or models:/NAME@ALIAS.")],
    task: Annotated[
        Literal["xnli", "pawsx", "pos", "ner"],
        typer.Option(help="Sentence pairs (xnli, pawsx) or words (pos, ner), in the published formats."),
    ],
    train: Annotated[str, typer.Option(help="The English training file.")],
    test: Annotated[list[str], typer.Option(help="LANGUAGE=FILE, once for each language.")],
    dev: Annotated[str | None, typer.Option(help="English; the best epoch on it is kept, else the last.")] = None,
    epochs: Annotated[int | None, typer.Option(help="XTREME: 5 for pairs, 10 for words.", min=1)] = None,
    learning_rate: Annotated[float, typer.Option(help="XTREME's for base size.", min=1e-9)] = 2e-5,
    batch: Annotated[int, typer.Option(help="Sentences per step.", min=1)] = 32,
    max_tokens: Annotated[
        int | None, typer.Option(help="Of a pair or a piece of a sentence; 128, or what a smaller model takes.", min=8)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the head, the order and dropout.", min=0)] = 1,
    on_error: Annotated[Literal["fail", "drop"], typer.Option(help="What is done about broken rows.")] = "fail",
    out_: Annotated[Path | None, typer.Option("--out", help="A JSON file for the record.")] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on an English task and score it on other languages (zero-shot, as XTREME)."""
    from babeltune.apps.transfer import finetune
    from babeltune.apps.transfer.formats import read_examples
    from babeltune.apps.transfer.record import DevText, TransferRecord
    from babeltune.apps.transfer.scores import average
    from babeltune.data.teacher import folder_digest
    from babeltune.promotion.model_names import model_folder

    if out_ is not None:
        out_.parent.mkdir(parents=True, exist_ok=True)
        check_place(out_, map(Path, [train, *([dev] if dev else []), *languages_of(test).values()]))
    files = languages_of(test)

    def read(path: str, language: str) -> Examples:
        return read_examples(path, task, language, drop=on_error == "drop")

    with steps_shown("reading the examples"):
        # XNLI's release holds all languages in one file, under its own two-letter codes.
        english, development = read(train, "en"), read(dev, "en") if dev is not None else None
        tests = {language: read(path, language) for language, path in files.items()}
        folder = Path(model_folder(model, cluster_of(cluster)))
        settings = finetune.Settings(
            epochs=epochs or finetune.EPOCHS[task], learning_rate=learning_rate, batch=batch,
            max_tokens=max_tokens, seed=seed,
        )  # fmt: skip
        outcome = finetune.transfer(
            folder, task, english, tests, settings, dev=development,
            progress=lambda done, of, loss: say_line(f"epoch {done}/{of}, loss {loss:.4f}"),
        )  # fmt: skip
    others = {language: row for language, row in outcome.scores.items() if language not in ENGLISH}
    record = TransferRecord(
        task=task,
        model=model,
        model_digest=folder_digest(folder),
        settings=settings,
        train=described(train, english),
        dev=DevText(**vars(described(dev, development)), scores=outcome.dev) if dev and development else None,
        tests={language: described(files[language], found) for language, found in tests.items()},
        losses=outcome.losses,
        scores=outcome.scores,
        average=average(outcome.scores),
        english=next((outcome.scores[code] for code in ENGLISH if code in outcome.scores), None),
        others=average(others) or None,
    )
    if out_ is not None:
        write_out(out_, (json_text(record, indent=2) + "\n").encode())
    say(record, as_json, lambda: show(record))


def languages_of(given: list[str]) -> dict[str, str]:
    """The files by language; raises `SpecError` for what is not LANGUAGE=FILE, or a language given twice."""
    files: dict[str, str] = {}
    for text in given:
        language, equals, path = text.partition("=")
        if not (language and equals and path):
            raise SpecError(f"--test {text!r} is not LANGUAGE=FILE, such as fr=test-fr.tsv")
        if language in files:
            raise SpecError(
                f"--test {language}: given twice, {files[language]!r} and {path!r}; name each language once"
            )
        files[language] = path
    return files


def described(path: str, examples: Examples) -> Text:
    """The record of a file that was read."""
    from babeltune.apps.transfer.record import Text

    return Text(path=path, sha256=examples.digest, rows=len(examples), dropped=dict(examples.dropped))


def show(record: TransferRecord) -> None:
    """The scores of each language in per cent, English first, and their averages."""
    scores = record.scores
    metrics = list(record.average)
    table = Table("language", box=None, pad_edge=False, header_style="bold")
    for title in (*metrics, "rows", "dropped"):
        table.add_column(title, justify="right")
    for language in sorted(scores, key=lambda code: (code not in ENGLISH, code)):
        read = record.tests[language]
        values = [f"{100 * scores[language][metric]:.1f}" for metric in metrics]
        table.add_row(escape(language), *values, str(read.rows), str(sum(read.dropped.values())))
    for title, row in (("average", record.average), ("without English", record.others)):
        if row is not None:
            table.add_row(title, *(f"{100 * row[metric]:.1f}" for metric in metrics), "", "")
    out.print(table)
    if dropped := record.train.dropped:
        out.print(f"training rows left out: {', '.join(f'{count} {reason}' for reason, count in dropped.items())}")
