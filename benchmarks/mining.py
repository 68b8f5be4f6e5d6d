"""Neighbours of both directions against two faiss searches, margins against LASER's loop, memory, and real text.

16,384 x 32,768 unit vectors of 384 dimensions, k = 4, fp32: ours is the search of `mine` in shards on the disk. It
multiplies each pair once, and keeps what it has found. The peer is `faiss.IndexFlatIP` (filled beforehand) searched in
either direction. Both get the same threads, and CPU seconds are compared. Then: the neighbours must be the same, ties
aside; margins are scored again at least 100 times faster than by LASER's loop over candidates. (The loop takes each dot
product again; ours has the search's cosines.) Anonymous memory above the results must not grow with n. Last,
`--sentences` real translations are mined end to end: as many must be found as by LASER's steps with faiss."""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from babeltune.apps.mining.resumable_search import ResumableSearch, both_ways_resumable
from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import nothing
from babeltune.apps.mining.vectors import KIND, SHARD
from babeltune.data.store import Array, Contents, build
from babeltune.evaluation.bitext import candidate_scores, match
from babeltune.evaluation.knn import Matches
from benchmarks.race import cpu_seconds, options, own_peak, peak_memory, race, verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEFT, RIGHT, DIM, K = 16_384, 32_768, 384, 4
GOAL, LOOP_GOAL = 1.5, 100
MEMORY = (4_096, 16_384, 65_536)
FLAT = 1.5  # largest growth of memory from the smallest n to the largest; allocators keep what they freed
SAMPLED = 0.005  # seconds between two looks at a process's memory
TIE = 1e-6  # cosines this near are a tie: two products in fp32 differ by less
RECALL_GOAL = 0.999
"""The share of the reference's recall that is ours at least: a search that misses one neighbour in a hundred, or puts a
text beside another's vector, finds less."""
THREADS = 2
TEXT = ("wmt_news/fra-eng.tsv.gz", "tatoeba_challenge/fra-eng.tsv.gz")
MORE = ("wmt_news/*-eng.tsv.gz", "tatoeba_challenge/*-eng.tsv.gz")
"""Other languages' text, if more sentences are asked for than the French has."""


def make_vectors(left: int, right: int, dim: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit vectors; the first on the right lie near those on the left."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(count, dim)).astype(np.float32) for count in (left, right))
    paired = min(left, right)
    y[:paired] += x[:paired]
    for vectors in (x, y):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return x, y


def write_shards(root: Path, parts: Iterable[NDArray[np.float32]], side: str) -> list[Path]:
    """One side's vectors in shards, as `mine` has them of its sentences."""
    folders = []
    for number, part in enumerate(parts):

        def write(folder: Path, part: NDArray[np.float32] = part) -> Contents:
            part.tofile(folder / "rows.bin")
            return Contents(arrays={"rows": Array("<f4", part.shape[1], (("rows.bin", len(part)),))})

        folders.append(build(root, KIND, {"benchmark": side, "shard": number}, write))
    return folders


def in_shards(root: Path, vectors: NDArray[np.float32], side: str) -> list[Path]:
    """These vectors in shards."""
    return write_shards(root, (vectors[start : start + SHARD] for start in range(0, len(vectors), SHARD)), side)


def search(root: Path, left: Sequence[Path], right: Sequence[Path]) -> Matches:
    """The search of `mine`, in this process."""
    return both_ways_resumable(ResumableSearch(root, (left, right), K))


class Peer:
    """An exact faiss index of either side."""

    def __init__(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        self.queries = x, y
        self.indices = tuple(faiss.IndexFlatIP(x.shape[1]) for _ in range(2))
        for index, vectors in zip(self.indices, (y, x), strict=True):
            index.add(vectors)

    def search(self, k: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Cosines and neighbours, left in right and right in left."""
        return [index.search(vectors, k) for index, vectors in zip(self.indices, self.queries, strict=True)]


def different(ours: Matches, peer: list[tuple[NDArray[np.float32], NDArray[np.int64]]]) -> int:
    """Neighbours that differ and are no tie."""
    count = 0
    for side, (cosine, index) in zip((ours.forward, ours.backward), peer, strict=True):
        wrong = side.index.numpy() != index
        count += int((wrong & (np.abs(side.cosine.numpy() - cosine) > TIE)).sum())
    return count


def by_loop(x: NDArray[Any], y: NDArray[Any], matches: Matches) -> NDArray[np.float64]:
    """LASER's `score_candidates` (source/mine_bitexts.py)."""
    candidates = matches.forward.index.numpy()
    forward, backward = (side.cosine.mean(dim=1).numpy() for side in (matches.forward, matches.backward))
    rows, columns = candidates.shape
    scores = np.zeros((rows, columns))
    for i in range(rows):
        for j in range(columns):
            k = candidates[i, j]
            scores[i, j] = x[i].dot(y[k]) / ((forward[i] + backward[k]) / 2)
    return scores


def by_laser(x: NDArray[Any], y: NDArray[Any], k: int) -> list[tuple[int, int]]:
    """LASER's mine_bitexts.py with unit vectors: two faiss searches, ratio margins, `--retrieval max`."""
    (to_right, right), (to_left, left) = Peer(x, y).search(min(k, len(x), len(y)))
    means = to_right.mean(axis=1), to_left.mean(axis=1)
    candidates = []
    for i, (cosines, neighbours) in enumerate(zip(to_right, right, strict=True)):
        scores = cosines / ((means[0][i] + means[1][neighbours]) / 2)
        candidates.append((scores.max(), i, int(neighbours[scores.argmax()])))
    for j, (cosines, neighbours) in enumerate(zip(to_left, left, strict=True)):
        scores = cosines / ((means[0][neighbours] + means[1][j]) / 2)
        candidates.append((scores.max(), int(neighbours[scores.argmax()]), j))
    pairs, seen_left, seen_right = [], set(), set()
    for _, i, j in sorted(candidates, key=lambda item: -item[0]):
        if i not in seen_left and j not in seen_right:
            seen_left.add(i)
            seen_right.add(j)
            pairs.append((i, j))
    return pairs


def margins(x: NDArray[np.float32], y: NDArray[np.float32], matches: Matches) -> tuple[float, float]:
    """How many times faster than the loop, and the largest difference of a score."""
    times = 20
    ours = cpu_seconds(lambda: [candidate_scores(matches, "ratio") for _ in range(times)]) / times
    started = time.process_time()
    reference = by_loop(x, y, matches)
    peer = time.process_time() - started
    return peer / ours, float(np.abs(candidate_scores(matches, "ratio").numpy() - reference).max())


def random_shards(count: int, dim: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """This many unit vectors, a shard at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, SHARD):
        part = rng.standard_normal((min(SHARD, count - start), dim), np.float32)
        yield part / np.linalg.norm(part, axis=1, keepdims=True)


def anonymous() -> int:
    """Bytes of this process that are no file's: mapped vectors do not count."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def search_memory(root: Path, sides: Sequence[Sequence[Path]], count: int) -> None:
    """Searches `count` vectors a side on disk, and writes to `peak` the most memory above that after the imports.

    What every search must hold for its result is left out: candidates while it runs, cosines and indices at its end."""
    before = anonymous()
    most, ended = [before], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLED):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    matches = search(root, *sides)
    ended.set()
    watcher.join()
    result = nothing(count, count, K)
    tensors = [result.forward, result.backward]
    tensors += [part for side in (matches.forward, matches.backward) for part in (side.cosine, side.index)]
    (root / "peak").write_text(str(most[0] - before - sum(part.nbytes for part in tensors)))


def memory() -> dict[int, int]:
    """n -> peak anonymous bytes above the results' of searching n x n vectors of `DIM` dimensions on disk."""
    peaks = {}
    for count in MEMORY:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            sides = [write_shards(root, random_shards(count, DIM, seed), str(seed)) for seed in range(2)]
            peak_memory(search_memory, root, sides, count)
            peaks[count] = int((root / "peak").read_text())
    return peaks


def mined_text(count: int, model: str | None) -> dict[str, Any]:
    """Mines known pairs with English end to end, French ones first: seconds, memory, recall and precision, and the
    recall of LASER's steps on vectors of the same model."""
    from babeltune.apps.mining.mine import Encoding, MiningSettings, mine
    from babeltune.apps.mining.vectors import model_at
    from babeltune.models.hub import BUNDLED, model_folder

    data = Path(os.environ.get("BABELTUNE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    files = dict.fromkeys(itertools.chain([data / name for name in TEXT], *(sorted(data.glob(g)) for g in MORE)))
    translations: dict[str, str] = {}
    for source, target in (pair for path in files for pair in read_pairs(path)):
        if len(translations) < count:
            translations.setdefault(*(" ".join(side.split()) for side in (source, target)))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, lines in (("sources", sorted(translations)), ("targets", sorted(translations.values()))):
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        encoder = model_at(str(model_folder(model or BUNDLED, None, setting="--model")))
        started = time.monotonic()
        report = mine(
            folder / "sources",
            folder / "targets",
            folder / "out.tsv",
            MiningSettings(),
            Encoding(models=(encoder, encoder), storage=folder, progress=lambda *_: None),
        )
        seconds = time.monotonic() - started
        rows = [line.split("\t")[1:] for line in (folder / "out.tsv").read_text(encoding="utf-8").splitlines()]
        # Encoded again, in another order: a shard whose vectors stand beside other texts does not pass for the truth.
        sides = [list(translations), list(dict.fromkeys(translations.values()))]
        x, y = (UnitRows(encoder.encode(side)).block(0, len(side)).numpy() for side in sides)
    reference = sum(translations[sides[0][i]] == sides[1][j] for i, j in by_laser(x, y, K))
    right = sum(translations.get(source) == target for source, target in rows)
    return {
        "sentences": [report.source.usable, report.target.usable],
        "seconds": seconds,
        "memory": own_peak(),
        "recall": right / len(translations),
        "reference": reference / len(translations),
        "precision": right / len(rows),
    }


def read_pairs(path: Path) -> list[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [(row[1], row[2]) for row in rows]


def main(left: int = LEFT, right: int = RIGHT) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--sentences", type=int, default=20_000, help="real sentences a side; 0 skips them")
    parser.add_argument("--model", help="what encodes them; the bundled English teacher when left out")
    text_args, rest = parser.parse_known_args(sys.argv[1:])
    args = options(f"{__doc__}\n--sentences N (20,000; 0: none) and --model MODEL: the real text", rest)
    torch.set_num_threads(THREADS)
    x, y = make_vectors(left, right, DIM)
    peer = Peer(x, y)
    as_many = y[: len(x)]  # a bitext has as many sentences of each language
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        lefts, rights, equals = (
            in_shards(root, vectors, side) for vectors, side in ((x, "x"), (y, "y"), (as_many, "="))
        )
        rows = race(
            lambda: cpu_seconds(lambda: search(root, lefts, rights)),
            lambda: cpu_seconds(lambda: peer.search(K)),
            args.rounds,
        )
        matches = search(root, lefts, rights)
        mined = cpu_seconds(lambda: search(root, lefts, equals))
    dev_set = cpu_seconds(lambda: match(x, as_many, K)) / mined
    print(f"the same vectors as a dev set: {dev_set:.3g} times the time of mining")
    wrong = different(matches, peer.search(K))
    loop_ratio, difference = margins(x, y, matches)
    print(f"neighbours that differ: {wrong}; margins: {loop_ratio:.3g} times LASER's loop, difference {difference:.2g}")
    bytes_above = memory()
    print(
        "anonymous memory above the results: " + ", ".join(f"n {n:,}: {b / 1e6:.0f} MB" for n, b in bytes_above.items())
    )
    text = mined_text(text_args.sentences, text_args.model) if text_args.sentences else None
    if text:
        print(
            f"{text['sentences'][0]:,} x {text['sentences'][1]:,} real sentences in {text['seconds']:.0f} s and "
            f"{text['memory'] / 2**20:.0f} MiB at most: recall {text['recall']:.3f} "
            f"(LASER's steps {text['reference']:.3f}), precision {text['precision']:.3f}"
        )
    broken = []
    if wrong:
        broken.append(f"{wrong} neighbours differ from faiss's")
    if loop_ratio < LOOP_GOAL or difference > 1e-4:
        broken.append(f"margins: {loop_ratio:.3g} times the loop (goal {LOOP_GOAL}), difference {difference:.2g}")
    if bytes_above[MEMORY[-1]] > FLAT * bytes_above[MEMORY[0]]:
        broken.append(f"memory grows with n: {bytes_above}")
    if text and text["recall"] < RECALL_GOAL * text["reference"]:
        broken.append(f"recall of real text is {text['recall']:.4f}, that of LASER's steps {text['reference']:.4f}")
    facts: dict[str, Any] = {
        "threads": THREADS,
        "margins": loop_ratio,
        "dev_set": dev_set,
        "memory": {str(n): b for n, b in bytes_above.items()},
    }
    verdict("mining", rows, GOAL, args, broken=broken, left=left, right=right, dim=DIM, text=text, **facts)


if __name__ == "__main__":
    main()
