"""Reading and cleaning a corpus at three sizes: CPU time of a pair, and memory, which is not to grow with the pairs.

The text is made: sentences of 4 to 20 words whose frequencies fall as those of real words do, in three files. One
has a cap. One row in twenty repeats another, one in a hundred has equal sides. Four in a thousand are a sentence of
the test set with a letter changed, and one in a thousand is the sentence itself. Every step is run: exact and near
duplicates, overlap with 5,000 rows of dev and test sets, caps, a split, the numbering, and the sentences for the
teacher. The texts and arrays of a prepared sweep are written. Tokens and vectors are not made.

Each size runs in a process of its own. `memory` is its peak of anonymous memory: files that are mapped into memory do
not count, as the kernel takes their pages back. The ratio is the CPU time of a pair at the smallest size by that at the
largest. By default the sizes and the bounds on memory are a 64th of the real ones. `--pairs` runs other sizes once,
with the real bounds. `python -m benchmarks.corpus --pairs 1000000 5000000 --json docs/measured/corpus.json` writes the
table of the site."""

import argparse
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np

from babeltune.data import arrays, texts
from babeltune.data.contamination import find_near_anew
from babeltune.data.corpus import build_corpus, check_corpus
from babeltune.data.prepare import Requirements, asked_of_teacher, write_arrays
from babeltune.schema.records import Bitext, Data, Split, TsvSource
from benchmarks.__main__ import commit
from benchmarks.race import Options, Row, in_own_process, options, verdict

SIZES = (20_000, 40_000, 80_000)
SMALLER = 64  # what sizes and bounds are divided by, so that a run takes a minute
GROWTH = 1.25  # how many times the memory of the smallest size the largest may need
MOST_MEMORY = 3 << 30
SLOWER = 1.5  # how much more CPU time a pair may cost at the largest size
EVALUATED = 2_500  # rows of the dev set, and of the test set
BLOCK = 20_000  # rows that are made at a time
WORDS = 30_000
LANGUAGES = ("eng", "fra", "deu")
HEAD = f"{'pairs':>12} {'kept':>12} {'CPU s':>8} {'us/pair':>8} {'seconds':>8} {'memory MiB':>11}"


@dataclass(frozen=True)
class Figures:
    """The measurements at one size."""

    pairs: int
    trained: int  # pairs that are trained on
    cpu: float
    seconds: float
    memory: int  # peak of anonymous bytes

    def shown(self) -> str:
        us_per_pair = self.cpu / self.pairs * 1e6
        numbers = f"{self.pairs:>12,} {self.trained:>12,} {self.cpu:>8.1f} {us_per_pair:>8.1f}"
        return f"{numbers} {self.seconds:>8.1f} {self.memory >> 20:>11,}"


@functools.cache
def vocabulary(language: str) -> list[str]:
    """Different words of letters, the shortest first."""
    draw = np.random.default_rng([ord(letter) for letter in language])
    letters = "".join(np.array(list("etaoinshrdlucmfwygpb"))[draw.integers(0, 20, 10 * WORDS)])
    ends = np.cumsum(draw.integers(2, 10, WORDS)).tolist()
    return sorted({letters[start:end] for start, end in zip([0, *ends], ends, strict=False)}, key=lambda w: (len(w), w))


def sentences(draw: np.random.Generator, words: Sequence[str], count: int) -> list[str]:
    """Sentences in which word number n is drawn with a frequency of about 1/n."""
    sizes = draw.integers(4, 21, count)
    ranks = (len(words) ** draw.random(int(sizes.sum()))).astype(np.int64) - 1
    sample = [words[rank] for rank in ranks.tolist()]
    ends = np.cumsum(sizes).tolist()
    return [" ".join(sample[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def write_rows(file: TextIO, languages: tuple[str, str], pairs: int, seed: int, evals: Sequence[list[str]]) -> None:
    """A table of this many rows. A few come from the `evals`, the two sides of a set."""
    words = [vocabulary(language) for language in languages]
    file.write("\t".join(languages) + "\n")
    for start in range(0, pairs, BLOCK):
        count = min(BLOCK, pairs - start)
        draw = np.random.default_rng((seed, start))
        left, right = (sentences(draw, words_of_side, count) for words_of_side in words)
        chance = draw.random(count)
        for row in np.flatnonzero(chance < 0.065).tolist():
            other = int(draw.integers(EVALUATED))
            if chance[row] < 0.001:
                left[row] = evals[0][other]
            elif chance[row] < 0.005:
                left[row] = "x" + evals[0][other][1:]
            elif chance[row] < 0.015:
                right[row] = left[row]
            elif row:
                before = int(draw.integers(row))
                left[row], right[row] = left[before], right[before]
        file.writelines(f"{a}\t{b}\n" for a, b in zip(left, right, strict=True))


def make_data(folder: Path, pairs: int) -> Data:
    """Writes this many pairs in three files, a dev and a test set. Returns the data section of a sweep."""
    words = {language: vocabulary(language) for language in LANGUAGES}
    tasks = []
    sides: list[list[str]] = []
    for seed, name in enumerate(("dev", "test")):
        draw = np.random.default_rng((7, seed))
        sides = [sentences(draw, words[language], EVALUATED) for language in ("eng", "fra")]
        rows = "".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True))
        (folder / f"{name}.tsv").write_text(f"eng\tfra\n{rows}", encoding="utf-8")
        source = TsvSource(name=name, path=f"{name}.tsv", columns={"eng": "eng", "fra": "fra"})
        tasks.append(Bitext(name=name, source=source))
    shares = {"first": ("eng", "fra", 5), "second": ("eng", "deu", 3), "third": ("eng", "fra", 2)}
    train = []
    for seed, (name, (left, right, share)) in enumerate(shares.items()):
        rows_here = pairs * share // 10
        with (folder / f"{name}.tsv").open("w", encoding="utf-8") as file:
            write_rows(file, (left, right), rows_here, seed, sides)
        cap = rows_here // 2 if name == "third" else None
        train.append(TsvSource(name=name, path=f"{name}.tsv", columns={left: left, right: right}, cap=cap))
    return Data(
        train=tuple(train),
        dev=(tasks[0],),
        test=(tasks[1],),
        overlap="near",
        split=Split(pairs=200),
        max_characters=150,
    )


def anonymous() -> int:
    """Bytes of this process's memory that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Gives the peak of anonymous memory while the body ran, which a thread looks at a hundred times a second."""
    peak, over = anonymous(), threading.Event()

    def look() -> None:
        nonlocal peak
        while not over.wait(0.01):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: peak
    finally:
        over.set()
        thread.join()


def measure(folder: Path, pairs: int, smaller: int = 1) -> Figures:
    """Cleans a corpus of `pairs` pairs, with the bounds on memory divided by `smaller`."""
    arrays.LARGE_ARRAY_BYTES, texts.LARGE_TEXTS_BYTES = (
        arrays.LARGE_ARRAY_BYTES // smaller,
        texts.LARGE_TEXTS_BYTES // smaller,
    )
    arrays.PART = arrays.PART // smaller
    data = make_data(folder, pairs)
    started, cpu = time.monotonic(), time.process_time()
    with watched() as peak, arrays.scratch_in(folder):
        corpus = build_corpus(data, folder, 0, near=find_near_anew)
        check_corpus(corpus)
        arrays.histogram(corpus.pair_groups, len(corpus.groups))
        _, rows = asked_of_teacher(corpus, Requirements(frozenset({"source", "target"}), ()), copy_anchor=False)
        write_arrays(folder, corpus, rows, LANGUAGES)
    cpu_s = time.process_time() - cpu
    return Figures(pairs, len(corpus.pairs), cpu_s, time.monotonic() - started, peak())


def measure_anywhere(pairs: int, smaller: int) -> Figures:
    """`measure` in a temporary folder."""
    with TemporaryDirectory() as folder:
        return measure(Path(folder), pairs, smaller)


def faults(sizes: Sequence[Figures]) -> list[str]:
    """A line for each goal that was missed."""
    small, large, broken = sizes[0], sizes[-1], []
    if large.memory > MOST_MEMORY:
        broken.append(
            f"{large.memory / 2**30:.2f} GiB at {large.pairs:,} pairs, at most {MOST_MEMORY >> 30} are allowed"
        )
    if large.memory > GROWTH * small.memory:
        broken.append(
            f"memory is {large.memory / small.memory:.2f} times as much at {large.pairs:,} pairs as at "
            f"{small.pairs:,}, at most {GROWTH:g} are allowed"
        )
    return broken


def main(args: Options | None = None, pairs: Sequence[int] = ()) -> None:
    """Runs the benchmark."""
    args = args or options(__doc__)
    rounds: list[list[Figures]] = []
    print(HEAD, flush=True)
    for _ in range(1 if pairs else args.rounds):
        rounds.append([])
        for size in pairs or SIZES:
            rounds[-1].append(in_own_process(measure_anywhere, size, 1 if pairs else SMALLER))
            print(rounds[-1][-1].shown(), flush=True)
    rows = [Row(ours=sizes[-1].cpu / sizes[-1].pairs, peer=sizes[0].cpu / sizes[0].pairs) for sizes in rounds]
    best = [min(of_size, key=lambda figures: figures.memory) for of_size in zip(*rounds, strict=True)]
    facts: dict[str, Any] = {"commit": commit(), "sizes": [asdict(figures) for figures in best]}
    verdict("corpus", rows, 1 / SLOWER, args, broken=faults(best), unit="CPU seconds of a pair", **facts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--pairs", type=int, nargs="+", default=())
    corpus_args, rest = parser.parse_known_args()
    main(options(__doc__, rest), corpus_args.pairs)
