"""What a promoted model costs and loses in each of its forms.

`python -m benchmarks.afternoon --place FOLDER` makes the sweep; `python -m benchmarks.exports FOLDER` exports its
champion as a table of whole numbers, and a Transformer as a graph. Losses are of the sweep's dev sets. Speeds are texts
a CPU second on one core, tokenizing among it, the best of three rounds, so other programs disturb them little.
`docs/how-to/promote.md` gets the table."""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from babeltune.files import json_text, write_whole
from babeltune.models.hub import BUNDLED, model_folder
from babeltune.schema.cluster import Cluster
from benchmarks.__main__ import commit
from benchmarks.afternoon import SWEEP
from benchmarks.readme import between_marks

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "docs/measured/exports.json", ROOT / "docs/how-to/promote.md"
MARK = "forms"  # the name of the marks between which the page has the table
MODEL = "models:/clients@champion"
FORMS = {"static": ({"bits": 8}, {"bits": 4}, {"bits": 8, "dim": 128}), "Transformer": ({"bits": 32}, {"bits": 8})}
TEXTS, ROUNDS = 400, 3
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # instructions of a CPU for whole numbers


def rate(encode: Callable[[list[str]], object], texts: list[str]) -> float:
    """Texts a CPU second: the best of some rounds."""
    encode(texts[:32])
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        encode(texts)
        seconds.append(time.process_time() - begun)
    return len(texts) / min(seconds)


def row(kind: str, model: str, form: dict[str, int], cluster: Cluster, place: Path, texts: list[str]) -> dict[str, Any]:
    """One form of a model: bytes, loss and speeds."""
    import torch
    from sentence_transformers import SentenceTransformer

    from babeltune.promotion.model_names import model_folder
    from babeltune.promotion.onnx_encoder import OnnxEncoder
    from babeltune.promotion.small_encoder import SmallEncoder
    from babeltune.promotion.small_table import Form, export_small

    out = place / f"{kind}{len(list(place.iterdir()))}"
    done = export_small(model, out, cluster, form=Form(**form), sweep=SWEEP, most_lost=1.0)  # type: ignore[arg-type]
    whole = SentenceTransformer(model_folder(model, cluster), device="cpu")
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, {min(cores)})
        torch.set_num_threads(1)
        encoder = OnnxEncoder(str(out)) if done.format == "onnx" else SmallEncoder(str(out))
        rates = [rate(lambda part: whole.encode(part), texts), rate(encoder.encode, texts)]
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
    return {
        "model": kind,
        "bits": done.bits,
        "dim": done.dim,
        "sizes": done.sizes,
        "lost": max(done.losses.values()),
        "rates": rates,
    }


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = ["| model | form | MB | of before | loss | texts a CPU second | times |", "|---|---|--:|--:|--:|--:|--:|"]
    for each in record["rows"]:
        (before, after), (slow, fast) = each["sizes"], each["rates"]
        lines.append(
            f"| {each['model']} | {each['bits']} bits, {each['dim']} numbers | {after / 1e6:.1f} "
            f"| {after / before:.1%} | {each['lost']:+.4f} | {fast:,.0f} | {fast / slow:.2f} |"
        )
    has = "has" if record["vnni"] else "has no"
    return "\n".join(lines) + (
        f"\n\nThe loss is the largest of a mean of the dev sets; the CPU {has} instructions for whole numbers (VNNI).\n"
    )


def with_table(page: str, record: dict[str, Any]) -> str:
    """The page with the record's table between its marks."""
    return between_marks(page, MARK, table(record))


def main() -> None:
    """Exports, measures, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, help="the folder of the afternoon")
    parser.add_argument("--transformer", default=BUNDLED, help="a Transformer, as a folder or a hub id")
    parser.add_argument("--json", type=Path, help=f"the record; {RECORD.name} also writes the page")
    options = parser.parse_args()
    storage = (options.place / "storage").absolute()
    cluster = Cluster(storage=str(storage), mlflow=f"sqlite:///{storage}/mlflow.db")
    texts = (options.place / "march.txt").read_text(encoding="utf-8").splitlines()[:TEXTS]
    transformer = str(model_folder(options.transformer, None, setting="--transformer"))
    with TemporaryDirectory() as name:
        place = Path(name)
        rows = [
            row(kind, MODEL if kind == "static" else transformer, form, cluster, place, texts)
            for kind, forms in FORMS.items()
            for form in forms
        ]
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    vnni = any(flag in flags for flag in VNNI)
    record = {"commit": commit(), "transformer": options.transformer, "vnni": vnni, "rows": rows}
    print(table(record))
    if options.json:
        write_whole(options.json, (json_text(record, indent=1) + "\n").encode())
        if options.json.resolve() == RECORD:
            write_whole(PAGE, with_table(PAGE.read_text(encoding="utf-8"), json.loads(json_text(record))).encode())


if __name__ == "__main__":
    main()
