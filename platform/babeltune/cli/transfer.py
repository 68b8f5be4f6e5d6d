"""The command transfer: zero-shot transfer as XTREME measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from babeltune.cli.common import ClusterFile, Json, cluster_of, out, plain_table, registered, say, say_line, steps_shown
from babeltune.cli.program import app
from babeltune.errors import SpecError
from babeltune.files import json_text, make_place, write_out

if TYPE_CHECKING:
    from babeltune.apps.transfer.finetune import FineTuning, Outcome, TransferRecord
    from babeltune.apps.transfer.formats import Examples, Task

    AllExamples = tuple[Examples, Examples | None, dict[str, Examples]]  # to train on, of the dev file, by language

ENGLISH_CODES = ("en", "eng")


@app.command()
def transfer(
    model: Annotated[str, typer.Argument(help="A model folder, hub id, or NAME@ALIAS.", callback=registered)],
    with_: Annotated[
        str | None, typer.Option("--with", help="The task's data set on the hub: a file of search_spaces/transfer.")
    ] = None,
    task: Annotated[
        Literal["xnli", "pawsx", "pos", "ner"] | None,
        typer.Option(help="Sentence pairs (xnli, pawsx) or words (pos, ner), in the published formats."),
    ] = None,
    train: Annotated[str | None, typer.Option(help="The English training file.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="LANGUAGE=FILE, once for each language.")] = None,
    dev: Annotated[str | None, typer.Option(help="English dev file: its best epoch is kept, else the last.")] = None,
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
    from babeltune.data.teacher import folder_digest
    from babeltune.promotion.model_names import model_folder

    files = task_files(task, train, dev, test) if with_ is None else hub_set(with_, task, train, dev, test)
    if out_ is not None:
        make_place(out_, [Path(with_)] if with_ is not None else files.paths())
    with steps_shown("reading the examples"):
        english, development, tests = examples = files.read(drop=on_error == "drop")
        folder = Path(model_folder(model, cluster_of(cluster)))
        settings = finetune.FineTuning(
            epochs=epochs or finetune.EPOCHS[files.task], learning_rate=learning_rate, batch=batch,
            max_tokens=max_tokens, seed=seed,
        )  # fmt: skip
        outcome = finetune.transfer(
            folder, files.task, english, tests, settings, dev=development,
            progress=lambda done, of, loss: say_line(f"epoch {done}/{of}, loss {loss:.4f}"),
        )  # fmt: skip
    record = transfer_record(model, folder_digest(folder), files, examples, settings, outcome)
    if out_ is not None:
        write_out(out_, (json_text(record, indent=2) + "\n").encode())
    say(record, as_json, lambda: show(record))


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """Where a task's examples are, and how each is read."""

    task: Task
    train: str  # the English training file, or the name of a split on the hub
    dev: str | None
    tests: dict[str, str]  # the file or split of each language
    read_one: Callable[[str, str, bool], Examples]  # reads one of them in a language, and drops broken rows or not

    def paths(self) -> list[Path]:
        """All of them as paths."""
        return [Path(file) for file in (self.train, self.dev, *self.tests.values()) if file]

    def read(self, *, drop: bool) -> AllExamples:
        """The examples of the training file, of the dev file, and of each language's test."""
        # XNLI's release holds all languages in one file, under its own two-letter codes.
        train = self.read_one(self.train, "en", drop)
        dev = self.read_one(self.dev, "en", drop) if self.dev is not None else None
        return train, dev, {language: self.read_one(path, language, drop) for language, path in self.tests.items()}


def task_files(task: Task | None, train: str | None, dev: str | None, test: list[str] | None) -> TaskFiles:
    """The files that the options name. Raises `SpecError` for those that are missing."""
    from babeltune.apps.transfer.formats import read_examples

    if task is None or train is None or not test:
        lacks = ", ".join(name for name, value in (("--task", task), ("--train", train), ("--test", test)) if not value)
        raise SpecError(f"transfer lacks {lacks}; give them, or a data set --with search_spaces/transfer/xnli.yaml")

    def read(path: str, language: str, drop: bool) -> Examples:
        return read_examples(path, task, language, drop=drop)

    return TaskFiles(task=task, train=train, dev=dev, tests=file_languages(test), read_one=read)


def hub_set(overlay: str, *others: object) -> TaskFiles:
    """The splits of an overlay's data set. Raises `SpecError` if options name files beside it."""
    from babeltune.apps.transfer.hub_sets import ENGLISH, read_overlay, read_part

    if any(other is not None for other in others):
        raise SpecError("--with names the task and its data set; leave out --task, --train, --dev and --test")
    source = read_overlay(overlay)
    split_of = {source.described(language, split): split for language in source.subsets for split in source.splits()}

    def read(name: str, language: str, drop: bool) -> Examples:
        return read_part(source, language, split_of[name], drop=drop)

    return TaskFiles(
        task=source.task,
        train=source.described(ENGLISH, source.train),
        dev=source.described(ENGLISH, source.dev) if source.dev is not None else None,
        tests={language: source.described(language, source.test) for language in source.subsets},
        read_one=read,
    )


def file_languages(words: list[str]) -> dict[str, str]:
    """The files by language; raises `SpecError` for what is not LANGUAGE=FILE, or a language given twice."""
    files: dict[str, str] = {}
    for text in words:
        language, equals, path = text.partition("=")
        if not (language and equals and path):
            raise SpecError(f"--test {text!r} is not LANGUAGE=FILE, such as fr=test-fr.tsv")
        if language in files:
            twice = f"given twice, {files[language]!r} and {path!r}"
            raise SpecError(f"--test {language}: {twice}; name each language once")
        files[language] = path
    return files


def transfer_record(
    model: str, digest: str, files: TaskFiles, examples: AllExamples, settings: FineTuning, outcome: Outcome
) -> TransferRecord:
    """The record of a transfer: model, text, the scores of each language and their averages."""
    from babeltune.apps.transfer.finetune import DevText, ExampleFile, TransferRecord
    from babeltune.apps.transfer.scores import average

    def facts(path: str, read: Examples) -> dict[str, Any]:
        return {"path": path, "sha256": read.digest, "rows": len(read), "dropped": dict(read.dropped)}

    train, dev, tests = examples
    scores = outcome.scores
    others = {code: row for code, row in scores.items() if code not in ENGLISH_CODES}
    return TransferRecord(
        task=files.task,
        model=model,
        model_digest=digest,
        settings=settings,
        train=ExampleFile(**facts(files.train, train)),
        dev=DevText(**facts(files.dev, dev), scores=outcome.dev) if files.dev and dev else None,
        tests={language: ExampleFile(**facts(files.tests[language], read)) for language, read in tests.items()},
        losses=outcome.losses,
        scores=scores,
        average=average(scores),
        english=next((scores[code] for code in ENGLISH_CODES if code in scores), None),
        others=average(others) or None,
    )


def show(record: TransferRecord) -> None:
    """The scores of each language in per cent, English first, and their averages."""
    scores = record.scores
    metrics = list(record.average)
    table = plain_table("language", numbers=(*metrics, "rows", "dropped"))
    for language in sorted(scores, key=lambda code: (code not in ENGLISH_CODES, code)):
        read = record.tests[language]
        values = [f"{100 * scores[language][metric]:.1f}" for metric in metrics]
        table.add_row(escape(language), *values, str(read.rows), str(sum(read.dropped.values())))
    for title, row in (("average", record.average), ("without English", record.others)):
        if row is not None:
            table.add_row(title, *(f"{100 * row[metric]:.1f}" for metric in metrics), "", "")
    out.print(table)
    if dropped := record.train.dropped:
        out.print(f"training rows left out: {', '.join(f'{count} {reason}' for reason, count in dropped.items())}")
