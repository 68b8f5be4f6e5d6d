"""Size, speed and loss of a promoted model in each of its forms.

`python -m benchmarks.afternoon --place FOLDER` makes the sweep; `python -m benchmarks.exports FOLDER` exports its
first trial, which is wider than its vectors, and its champion as tables of whole numbers, and a Transformer as a
graph. A linear layer is multiplied into a table, so that a narrow one grows. Losses are of translations, search and
similarity: a small sweep of `data/search_and_similarity.yaml` has the sets. Speeds are texts a CPU second, tokenizing
among it, with one thread and with two. A thread that waits does not spin. Both forms encode in turn, and the best of
three rounds counts, so that other programs disturb little. The adapter turns queries of the sweep's second best trial
into the champion's space. `docs/how-to/promote.md` gets the table."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from babeltune.models.hub import baseline_row, model_folder
from babeltune.schema.cluster import Cluster
from benchmarks.__main__ import commit
from benchmarks.afternoon import SWEEP, trial_at
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
TRANSFORMER = "intfloat/multilingual-e5-small"
MODEL = "models:/clients@champion"
FORMS = {
    "static": ({"bits": 8}, {"bits": 4}, {"bits": 8, "dim": 128}),
    "narrow static": ({"bits": 8},),
    "Transformer": ({"bits": 32}, {"bits": 8}),
}
WIDE = "t0000"  # the afternoon's first trial, whose points stand in its file: 512 numbers a token
TEXTS, ROUNDS = {"static": 400, "narrow static": 400, "Transformer": 100}, 3
THREADS = (1, 2)
GOAL = (2.5, 0.005)
"""How many times as fast as before a Transformer of eight bits should be with one thread, and what it may lose."""
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # instructions of a CPU for whole numbers


def rates(encoders: Sequence[Callable[[list[str]], object]], texts: list[str]) -> list[float]:
    """Texts a CPU second of each encoder: the best of some rounds, in which they take turns."""
    seconds = [float("inf")] * len(encoders)
    for encode in encoders:
        encode(texts[:32])
    for _ in range(ROUNDS):
        for number, encode in enumerate(encoders):
            begun = time.process_time()
            encode(texts)
            seconds[number] = min(seconds[number], time.process_time() - begun)
    return [len(texts) / duration for duration in seconds]


def scores_sweep(cluster: Cluster) -> str:
    """The id of a sweep of the storage whose dev sets have translations, search and similarity."""
    data, text = ROOT / "benchmarks/data/search_and_similarity.yaml", "search_spaces/quickstart.yaml"
    with TemporaryDirectory() as name:
        file = Path(name) / "cluster.yaml"
        file.write_text(json.dumps({"storage": cluster.storage, "mlflow": cluster.mlflow}), encoding="utf-8")
        command = [sys.executable, "-m", "babeltune.cli", "submit", text, "--with", str(data)]
        process = subprocess.run(
            [*command, "--trials", "1", "--cluster", str(file), "--accept-changes", "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
    return str(json.loads(process.stdout)["sweep"])


def row(
    kind: str, model: str, form: dict[str, int], cluster: Cluster, place: Path, texts: list[str], sweep: str
) -> dict[str, Any]:
    """One form of a model: bytes, loss, and the rates of the model and of the form by the number of threads."""
    import torch
    from sentence_transformers import SentenceTransformer

    from babeltune.promotion.model_names import model_folder
    from babeltune.promotion.readers import reader_of
    from babeltune.promotion.small_table import SmallForm, export_small

    out = place / f"{kind}{len(list(place.iterdir()))}"
    result = export_small(model, out, cluster, form=SmallForm(**form), sweep=sweep, most_lost=1.0)  # type: ignore[arg-type]
    whole = SentenceTransformer(model_folder(model, cluster), device="cpu")
    before, rates_by_threads = torch.get_num_threads(), {}
    for threads in THREADS:
        torch.set_num_threads(threads)
        reader = reader_of(out, threads)
        assert reader is not None
        rates_by_threads[str(threads)] = rates([lambda part: whole.encode(part), reader.encode], texts[: TEXTS[kind]])
    torch.set_num_threads(before)
    return {
        "model": kind,
        "bits": result.bits,
        "dim": result.dim,
        "sizes": result.sizes,
        "lost": result.losses,
        "rates": rates_by_threads,
    }


def adapted(cluster: Cluster, place: Path) -> dict[str, Any]:
    """The recall of the second best trial's queries in the champion's index."""
    from babeltune.promotion.adapter import make_adapter
    from babeltune.sweep.state.folder import find_sweep
    from babeltune.sweep.state.leaderboard import leaderboard

    folder = find_sweep(Path(cluster.storage), SWEEP)
    trials = [row.name for row in leaderboard(folder) if row.name[1:].isdigit() and row.metrics]
    result = make_adapter(MODEL, f"{SWEEP}/{trials[1]}", place / "adapted", cluster, least=0.0)
    before, after = (sum(recall[side] for recall in result.recalls.values()) / len(result.recalls) for side in (0, 1))
    return {"map": result.map, "index": result.index, "recall": [before, after], "kept": result.share}


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    means = list(record["rows"][0]["lost"])
    losses = " | ".join(f"loss, {name}" for name in means)
    titles = f"model | form | MB | of before | {losses} | texts a CPU second | times | times, two threads"
    lines = [f"| {titles} |", "|---|---|" + "--:|" * (5 + len(means))]
    for figures in record["rows"]:
        before, after = figures["sizes"]
        loss_cells = " | ".join(f"{figures['lost'][name]:+.4f}" for name in means)
        (slow, fast), (slow_two, fast_two) = (figures["rates"][str(threads)] for threads in THREADS)
        lines.append(
            f"| {figures['model']} | {figures['bits']} bits, {figures['dim']} numbers | {after / 1e6:.1f} "
            f"| {after / before:.1%} | {loss_cells} "
            f"| {fast:,.0f} | {fast / slow:.2f} "
            f"| {fast_two / slow_two:.2f} |"
        )
    bridge, has = record["adapter"], "has" if record["vnni"] else "has no"
    before, after = bridge["recall"]
    words = [
        f"The Transformer is {record['transformer']}. {goal_in_words(record['rows'])} The "
        f"CPU {has} instructions for whole numbers (VNNI).",
        f"An adapter ({bridge['map']}) keeps {bridge['kept']:.1%} of Recall@10 in an index of {bridge['index']:,} "
        f"texts: {before:.3f} with the old model, {after:.3f} with the new one.",
    ]
    return "\n".join([*lines, "", " ".join(words), ""])


FIGURES = Figures("exports", "docs/how-to/promote.md", "forms", table)


def goal_in_words(rows: Sequence[dict[str, Any]]) -> str:
    """Whether the Transformer of eight bits is as fast, and as good, as it should be."""
    row = next(candidate for candidate in rows if (candidate["model"], candidate["bits"]) == ("Transformer", 8))
    slow, fast = row["rates"]["1"]
    faster, most_loss = GOAL
    most = max(row["lost"].values())
    reached = fast / slow >= faster and most <= most_loss
    verdict = "reached" if reached else "missed"
    return (
        f"The goal for its eight bits, at least {faster} times as fast at a loss of at most {most_loss}, is {verdict}: "
        f"{fast / slow:.2f} times at {most:+.4f}."
    )


def main() -> None:
    """Exports, measures, and writes the record and the page."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # before torch starts threads
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, help="the folder of the afternoon")
    parser.add_argument("--transformer", default=TRANSFORMER, help="a Transformer, as a folder or a hub id")
    parser.add_argument("--json", type=Path, help=f"the record; {FIGURES.record.name} also writes the page")
    options = parser.parse_args()
    storage = (options.place / "storage").absolute()
    cluster = Cluster(storage=str(storage), mlflow=f"sqlite:///{storage}/mlflow.db")
    texts = (options.place / "march.txt").read_text(encoding="utf-8").splitlines()
    transformer = str(model_folder(options.transformer, None, setting="--transformer"))
    with TemporaryDirectory() as name, trial_at(options.place, WIDE) as wide:
        place, models = Path(name), {"static": wide, "narrow static": MODEL, "Transformer": transformer}
        sweep = scores_sweep(cluster)
        rows = [
            row(kind, models[kind], form, cluster, place, texts, sweep)
            for kind, forms in FORMS.items()
            for form in forms
        ]
        bridge = adapted(cluster, place)
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    vnni = any(flag in flags for flag in VNNI)
    name = baseline_row(options.transformer)
    record = {"commit": commit(), "transformer": name, "vnni": vnni, "rows": rows, "adapter": bridge}
    print(table(record))
    if options.json:
        FIGURES.keep(record, options.json)


if __name__ == "__main__":
    main()
