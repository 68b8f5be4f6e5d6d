"""A small corpus with everything that cleaning looks for, cut into shards as if it were large, and what came of it."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from any_source import any_source
from babeltune.data import file_shards, text_shards
from babeltune.data.contamination import find_near_anew
from babeltune.data.corpus import Corpus, build_corpus
from babeltune.data.store import digest_of_texts
from babeltune.data.text_shards import TextShards
from babeltune.schema.records import Bitext, Clean, Data, PivotSource, Source, Split
from babeltune.sweep.sync.shards import Carrier, on_a_node

NEAR = "a sentence of the test that is rather long and has many words"


def table(folder: Path, name: str, left: str, right: str, rows: list[tuple[str, str]], **settings: object) -> Source:
    lines = [f"{left}\t{right}", *("\t".join(row) for row in rows)]
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return any_source(**{"name": name, "path": f"{name}.tsv", "columns": {left: left, right: right}, **settings})


def data_in(folder: Path) -> Data:
    """Repeats, equal and nearly equal texts of the sets, a pivot, a cap and a split."""
    rows = [(f"English {i % 60}", f"français {i % 45}") for i in range(90)]
    copies = [(f"{NEAR}s", f"z {i}") for i in range(9)] + [("same", "Same"), ("English 1", "français 1")]
    copies += [("Il ne sait pas ce que je veux.", "He does not know what I want.")]
    train = (
        table(folder, "first", "eng", "fra", rows),
        table(folder, "made", "kor", "eng", [(f"한국어 {i}", f"english {i}!") for i in range(70)], cap=40),
        PivotSource(name="joined", format="pivot", left="first", right="made", join="eng", pairs=("fra-kor",)),
        table(folder, "copies", "eng", "fra", copies),
    )
    dev = Bitext(name="d", source=table(folder, "d", "fra", "eng", [("français 3", "Other"), ("x", "English 7")]))
    test = Bitext(name="t", source=table(folder, "t", "fra", "eng", [("y", NEAR)]))
    return Data(
        train=train, dev=(dev,), test=(test,), overlap="near", split=Split(pairs=3), clean=Clean(language="drop")
    )


@contextmanager
def tiny_shards(texts: int = 7, size: int = 200) -> Iterator[None]:
    """More than ten texts or bytes are many. `texts` texts are a shard, and `size` bytes a part of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_shards, "MANY", 10)
        patch.setattr(text_shards, "SHARD", texts)
        patch.setattr(text_shards, "WINDOW", 3)
        patch.setattr(file_shards, "MANY_BYTES", 10)
        patch.setattr(file_shards, "PART_BYTES", size)
        yield


def cleaned(data: Data, folder: Path, shards: TextShards | None = None) -> Corpus:
    return build_corpus(data, folder, 0, near=find_near_anew, shards=shards)


def digest_of(corpus: Corpus) -> str:
    """Of all that a corpus holds."""
    arrays = (corpus.pairs, corpus.pair_groups, corpus.weights)
    others = (corpus.groups, corpus.tasks, corpus.counts, corpus.overlap, corpus.digests, corpus.contamination.plain())
    content = [array.tobytes() for array in arrays] + [repr(each).encode() for each in others]
    content.append(digest_of_texts([*corpus.texts, *corpus.languages]).encode())
    return hashlib.sha256(b"\0".join(content)).hexdigest()


def run_with_files(function, arguments, *, gpu=False):
    """As on nodes that share no folder."""
    carrier = Carrier().of(arguments)
    for each in arguments:
        count, made = on_a_node(function, each, carrier.pack(each), carrier.pack_shared())
        carrier.unpack(each, made)
        yield count
