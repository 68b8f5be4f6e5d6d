"""Tan et al. 2023, tables 3 and 4, on a small scale: which part of noisy text trains the best translation model.

Of a bitext, a fifth of the left sides are shuffled, and a tenth come from a text in another language, as in
`noisy_text`. Each encoder ranks the pairs by margin, and the best ones up to each number of target tokens train a
small translation model, with equally many steps. `by chance` ranks by an encoder with a random vector for each
sentence. BLEU is of clean text. The table goes to `docs/papers.md`."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from babeltune.apps.filtering.filter import Filtered, NoisyCorpus, TranslationTest, filter_corpus
from babeltune.apps.filtering.translate import Recipe
from babeltune.apps.mining.mine import Encoding, MiningSettings
from babeltune.apps.mining.vectors import model_at
from babeltune.files import plain
from babeltune.stages import no_progress
from benchmarks.__main__ import commit
from benchmarks.figures import Figures
from benchmarks.noisy_text import noisy, rows_of

ROOT = Path(__file__).parents[1]
CHANCE = "by chance"
SIZES = (15_000, 30_000, 50_000, 80_000)  # target tokens of the subsets
RECIPE = Recipe(model="scratch", steps=1000, batch=64, learning_rate=1e-3, max_tokens=40, beams=1, layers=2, width=192)


def random_encoder(folder: Path, texts: list[str]) -> str:
    """A static model with a random vector for each of these texts, whatever its words."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models

    places = {text: 1 + place for place, text in enumerate(sorted(set(texts)))}
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0} | places, "[UNK]"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)]).save(str(folder))
    return str(folder)


def judged(place: Path, name: str, model: str, prompt: str, test: str) -> dict[str, Any]:
    """The subsets that an encoder ranks first, and the scores of the models that they train."""
    translation = TranslationTest(
        RECIPE, test, lambda size, step, of, loss: print(name, size, step, of, loss, flush=True)
    )
    scorer = model_at(model, prompt=prompt)
    encoding = Encoding(models=(scorer, scorer), storage=place / "vectors", progress=no_progress)
    corpus = NoisyCorpus(str(place / "noisy.tsv"), ("fra", "eng"), ["fr", "ru"], drop=False, codec=None)
    report: Filtered = filter_corpus(corpus, place / name, list(SIZES), lambda: encoding, MiningSettings(), translation)
    assert report.translation is not None
    subsets = zip(report.subsets, report.translation.results, strict=True)
    return {"model": model, "subsets": [plain(subset) | dict(scores) for subset, scores in subsets]}


def table(record: Mapping[str, Any]) -> str:
    """BLEU of each encoder and number of tokens, as Markdown."""
    if not record["rows"]:
        return "Not measured.\n"
    titles = [*(f"{size:,} tokens" for size in SIZES), "best size"]
    lines = [f"| ranked by | {' | '.join(titles)} |", f"| --- |{' --: |' * len(titles)}"]
    for name, row in record["rows"].items():
        scores = [subset["bleu"] for subset in row["subsets"]]
        best = SIZES[max(range(len(scores)), key=scores.__getitem__)]
        lines.append(f"| {name} | {' | '.join(f'{score:.1f}' for score in scores)} | {best:,} |")
    return "\n".join(lines) + "\n"


FIGURES = Figures("filtered", "docs/papers.md", "filtered", table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder of the corpora")
    parser.add_argument("encoders", nargs="+", metavar="NAME=MODEL", help="encoders that rank the pairs")
    parser.add_argument("--prompt", default="query: ", help="what the encoders want before a text")
    options = parser.parse_args()
    challenge = options.data / "tatoeba_challenge"
    pairs = rows_of(challenge / "fra-eng.tsv.gz", ["fra", "eng"])
    foreign = [row[0] for row in rows_of(challenge / "rus-eng.tsv.gz", ["rus"])]
    rows, noise = noisy(pairs, foreign)
    record: dict[str, Any] = {"commit": commit(), "pairs": len(rows), "noise": len(noise), "rows": {}}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        lines = ["\t".join(row) + "\n" for row in [["fra", "eng"], *rows]]
        (place / "noisy.tsv").write_text("".join(lines), encoding="utf-8")
        untrained = random_encoder(place / "random", [text for row in rows for text in row])
        encoders = {CHANCE: (untrained, "")}
        encoders |= {name: (model, options.prompt) for name, _, model in (w.partition("=") for w in options.encoders)}
        for name, (model, prompt) in encoders.items():
            row = judged(place, name.replace(" ", "-"), model, prompt, str(options.data / "tatoeba/fra-eng.tsv"))
            record["rows"][name] = {**row, "model": Path(model).name}
            print(json.dumps(record["rows"][name]), flush=True)
            FIGURES.keep(record)


if __name__ == "__main__":
    main()
