"""Whether a search finds the noise: thresholds of margin and language over text whose broken part is known.

Of a bitext, a fifth of the left sides are shuffled, and a tenth come from a text in another language. A sweep searches
`data.sampling.least_margin` and `least_language`; its first trial leaves nothing out. What the best trial's thresholds
leave of the noise and of the good pairs is counted, and its dev score is compared with the first trial's."""

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import babeltune
from babeltune.data.prepared import read_prepared
from babeltune.data.thresholds import passing
from babeltune.files import write_whole
from babeltune.schema.records import Sampling
from babeltune.sweep.state.folder import SweepFolder
from benchmarks.__main__ import commit

SHUFFLED, FOREIGN = 0.2, 0.1
AIM = "dev/clean/accuracy"
MARGIN, LANGUAGE = "data.sampling.least_margin", "data.sampling.least_language"
SWEEP = """
version: 1
name: noisy
method: mse_distillation
parameters:
  {margin}: {{float: [0, 1.2]}}
  {language}: {{float: [0, 0.9]}}
objectives: [{{metric: {aim}}}]
data:
  root: {root}
  train: [{{name: noisy, path: noisy.tsv, columns: {{{left}: {left}, {right}: {right}}}}}]
  dev: [{{name: clean, source: {{name: dev, path: {dev}, columns: {{{left}: {left}, {right}: {right}}}}}}}]
student: {{kind: static, width: 256, vocabulary: 8000, max_tokens: 64, projection: teacher}}
teacher: {{model: {teacher}, prompt: {prompt}}}
training: {{pairs: 60000, reports: 2, global_batch: 256, learning_rate: 3e-3, embedding_learning_rate: 3}}
scheduler: {{kind: none}}
sampler: {{kind: tpe, startup: 6, points: [{{{margin}: 0, {language}: 0}}]}}
budget: {{trials: {trials}, workers: 1}}
"""


def rows_of(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """The columns of a TSV file, which may be packed."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    places = [lines[0].index(column) for column in columns]
    return [[line[place] for place in places] for line in lines[1:]]


def noisy(rows: Sequence[Sequence[str]], foreign: Sequence[str]) -> tuple[list[list[str]], set[tuple[str, str]]]:
    """The rows with their noise, and the pairs that are noise."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(rows))
    shuffled, strange = np.split(order[: int((SHUFFLED + FOREIGN) * len(rows))], [int(SHUFFLED * len(rows))])
    left, right = ([row[side] for row in rows] for side in (0, 1))
    for place, source in zip(shuffled, np.roll(shuffled, 1), strict=True):
        left[place] = rows[source][0]
    for place, text in zip(strange, foreign, strict=False):
        left[place] = text
    pairs = list(zip(left, right, strict=True))
    return list(map(list, pairs)), {pairs[place] for place in [*shuffled, *strange]}


def written(place: Path, options: argparse.Namespace) -> set[tuple[str, str]]:
    """Writes the noisy text and the sweep file; the noise is returned."""
    languages = options.columns.split(",")
    foreign = [row[0] for row in rows_of(options.foreign, [options.foreign_column])]
    rows, noise = noisy(rows_of(options.text, languages)[: options.rows], foreign)
    lines = ["\t".join(row) + "\n" for row in [languages, *rows]]
    (place / "noisy.tsv").write_text("".join(lines), encoding="utf-8")
    sweep = SWEEP.format(
        root=place,
        left=languages[0],
        right=languages[1],
        dev=options.dev.absolute(),
        teacher=options.teacher,
        prompt=json.dumps(options.prompt),
        trials=options.trials,
        aim=AIM,
        margin=MARGIN,
        language=LANGUAGE,
    )
    (place / "noisy.yaml").write_text(sweep, encoding="utf-8")
    (place / "cluster.yaml").write_text(f"name: here\nstorage: {place}/storage\n", encoding="utf-8")
    return noise


def figures(place: Path, noise: set[tuple[str, str]]) -> dict[str, Any]:
    """Submits the sweep, and counts what its best trial leaves of the noise and of the good pairs."""
    sweep = babeltune.submit(place / "noisy.yaml", cluster=place / "cluster.yaml")
    table = babeltune.runs(sweep.id, cluster=place / "cluster.yaml").dropna(subset=[f"setting.{MARGIN}"])
    first, best = table.loc["t0000"], table.loc[table[AIM].idxmax()]
    prepared = read_prepared(SweepFolder(sweep.folder).prepared)
    texts = [prepared.texts_of(prepared.pairs()[:, side].astype(np.int64)) for side in (0, 1)]
    is_noise = np.array([pair in noise or pair[::-1] in noise for pair in zip(*texts, strict=True)])
    margin, language = (float(best[f"setting.{name}"]) for name in (MARGIN, LANGUAGE))
    passed = np.zeros(len(is_noise), bool)
    passed[passing(prepared, Sampling(least_margin=margin, least_language=language))] = True
    return {
        "trials": len(table),
        "pairs": len(is_noise),
        "noise": int(is_noise.sum()),
        "least_margin": margin,
        "least_language": language,
        "noise_left": float((passed & is_noise).sum() / is_noise.sum()),
        "good_left": float((passed & ~is_noise).sum() / (~is_noise).sum()),
        "accuracy_without_thresholds": float(first[AIM]),
        "accuracy_of_the_best": float(best[AIM]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a TSV file of parallel text")
    parser.add_argument("foreign", type=Path, help="a TSV file with text in another language")
    parser.add_argument("dev", type=Path, help="a TSV file of clean parallel text, with the columns of the first")
    parser.add_argument("--columns", default="fra,eng", help="the text's two languages")
    parser.add_argument("--foreign-column", default="rus")
    parser.add_argument("--teacher", required=True, help="a model that knows both languages")
    parser.add_argument("--prompt", default="query: ", help="what the teacher wants before a text")
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        record = figures(Path(folder), written(Path(folder), options))
    print(json.dumps(record, indent=1))
    if options.json:
        write_whole(options.json, (json.dumps({"commit": commit(), **record}, indent=0) + "\n").encode())


if __name__ == "__main__":
    main()
