"""The costs of two dropped engines beside ours: obstore for small objects, and DuckDB for text.

`docs/architecture.md` says why they were dropped. The product needs neither: `pip install 'babeltune[tried]'` brings
them. Objects go to an S3 server (moto) of another process: each is written if it is absent, and then read. Text is
the corpus of `benchmarks.corpus`: three tables are read, and long, equal, repeated and sealed sentences go. Both must
keep the same number of pairs. Our own function makes the keys of both. Memory is the peak of anonymous memory. At
last two writers meet in a folder, and files are read that are not as they should be, beside one that is. `python -m
benchmarks.prototypes` writes docs/measured/prototypes.json and the table of docs/architecture.md."""

import contextlib
import logging
import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb  # type: ignore[import-not-found, unused-ignore]
import fsspec
import obstore  # type: ignore[import-not-found, unused-ignore]
import pyarrow as pa
from obstore.store import LocalStore, S3Store  # type: ignore[import-not-found, unused-ignore]

from babeltune.data.corpus import build_corpus
from babeltune.data.sources import read_source
from babeltune.data.text_keys import text_key
from babeltune.errors import DataError
from babeltune.files import write_whole
from babeltune.schema.records import Bitext, CsvSource, Data
from babeltune.storage.object_store import ObjectStore
from benchmarks.__main__ import commit
from benchmarks.bucket_requests import BUCKET, RequestCounts, server
from benchmarks.corpus import make_data, watched
from benchmarks.figures import Figures
from benchmarks.race import in_own_process

TIMES = 3  # rounds
OBJECTS, ROUNDS, BYTES = 200, 200, 1_000  # small objects, meetings of two writers, and the bytes of an object
PAIRS = int(os.environ.get("PAIRS", "500000"))
ROWS = 1_000  # rows of the files that are not as they should be
KEPT = """
WITH rows AS (
  {rows}
), keyed AS (
  SELECT *, key(l) AS a, key(r) AS b FROM rows WHERE length(l) <= {longest} AND length(r) <= {longest}
), sealed AS MATERIALIZED (
  {sealed}
)
SELECT count(*) FROM (
  SELECT DISTINCT pair, a, b FROM keyed
  WHERE a <> b AND a NOT IN (SELECT key FROM sealed) AND b NOT IN (SELECT key FROM sealed)
)
"""
TABLE = "read_csv('{}', delim='\t', header=true, all_varchar=true, quote='', escape='')"
ROW = "{},je dis «{}» demain\n"  # of the files that are not as they should be
READ = "read_csv('{}', header=true, delim=',', quote='\"', auto_detect=false, store_rejects=true, strict_mode={}, {})"
COLUMNS = "columns={'eng': 'VARCHAR', 'fra': 'VARCHAR'}"
BAD = {
    "nothing wrong": "eng,fra\n1,un\n",
    "a quotation mark without its second": 'eng,fra\n1,"un\n',
    "a bare carriage return in a line": "eng,fra\n1,un\rdeux\n",
    "lines that end in two ways": "eng,fra\r\n1,un\r\n",
}


@contextlib.contextmanager
def bucket() -> Iterator[None]:
    """An S3 server in a process of its own, so that its CPU time is nobody's."""
    context = multiprocessing.get_context("spawn")
    ours, child_end = context.Pipe()
    process = context.Process(target=_serve, args=(child_end,))
    process.start()
    os.environ |= ours.recv()
    try:
        yield
    finally:
        os.kill(process.pid or 0, signal.SIGTERM)
        process.join()


def _serve(pipe: Any) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with server(RequestCounts()):
        pipe.send({name: value for name, value in os.environ.items() if name.startswith("AWS_")})
        threading.Event().wait()


def objects(engine: str) -> tuple[float, float]:
    """Seconds and CPU seconds of writing small objects and reading them."""
    data = b"x" * BYTES
    store = S3Store(BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
    object_store = ObjectStore(f"s3://{BUCKET}/ours")
    begun, cpu = time.monotonic(), time.process_time()
    if engine == "obstore":
        for number in range(OBJECTS):
            obstore.put(store, f"theirs/{time.time_ns()}-{number}", data, mode="create")
        for entry in obstore.list(store, "theirs/").collect():
            assert bytes(obstore.get(store, entry["path"]).bytes()) == data
    else:
        for number in range(OBJECTS):
            object_store.write_if(f"{time.time_ns()}-{number}", data, None)
        for key in object_store.entries():
            assert object_store.read(key) == data
    return time.monotonic() - begun, time.process_time() - cpu


def both_won(write: Callable[[Path, int], bool]) -> int:
    """In how many meetings both writers of one name in a folder made it, as they saw it."""
    doubled = 0
    with TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            barrier = threading.Barrier(2)
            outcomes: list[bool] = []

            def meet(
                writer: int, path: Path = Path(folder) / f"{number}", barrier: Any = barrier, outcomes: Any = outcomes
            ) -> None:
                barrier.wait()
                outcomes.append(write(path, writer))

            writers = [threading.Thread(target=meet, args=(writer,)) for writer in range(2)]
            for thread in writers:
                thread.start()
            for thread in writers:
                thread.join()
            doubled += outcomes == [True, True]
    return doubled


def by_ours(path: Path, writer: int) -> bool:
    """Whether the file was made."""
    return ObjectStore(f"file://{path.parent}").write_if(path.name, b"%d" % writer, None) is not None


def by_fsspec(path: Path, writer: int) -> bool:
    """Whether the file was made."""
    try:
        fsspec.filesystem("file").pipe_file(str(path), b"%d" % writer, mode="create")
    except FileExistsError:
        return False
    return True


def by_obstore(path: Path, writer: int) -> bool:
    """Whether the file was made."""
    try:
        obstore.put(LocalStore(path.parent), path.name, b"%d" % writer, mode="create")
    except obstore.exceptions.AlreadyExistsError:
        return False
    return True


def text(engine: str, pairs: int) -> tuple[int, float, int]:
    """Pairs that are left, CPU seconds, and the peak of memory in bytes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = make_data(folder, pairs)
        data = replace(
            data, overlap="exact", split=None, train=tuple(replace(source, cap=None) for source in data.train)
        )
        cpu = time.process_time()
        with watched() as peak:
            count = in_sql(data, folder) if engine == "duckdb" else len(build_corpus(data, folder, 0).pairs)
        return count, time.process_time() - cpu, peak()


def in_sql(data: Data, folder: Path) -> int:
    """The pairs that DuckDB leaves. Keys come from a Python function over Arrow batches."""
    database = duckdb.connect(config={"threads": 1, "memory_limit": "300MB", "temp_directory": str(folder / "spill")})

    def key(texts: pa.Array) -> pa.Array:
        return pa.array([text_key(cell.strip()) for cell in texts.to_pylist()], pa.string())

    database.create_function("key", key, ["VARCHAR"], "VARCHAR", type="arrow")
    sets = [task.source for task in (*data.dev, *data.test) if isinstance(task, Bitext)]
    train, sealed = (
        [(TABLE.format(folder / str(each.path)), *(each.columns or ())) for each in some] for some in (data.train, sets)
    )
    rows = "\n  UNION ALL ".join(
        f"SELECT '{left}-{right}' AS pair, {left} AS l, {right} AS r FROM {table}" for table, left, right in train
    )
    keys = "\n  UNION ".join(f"SELECT key({side}) AS key FROM {table}" for table, *sides in sealed for side in sides)
    counts = database.execute(KEPT.format(rows=rows, sealed=keys, longest=data.max_characters)).fetchone()
    assert counts is not None
    return int(counts[0])


def rows_read(engine: str, bad: str) -> str:
    """How many good rows of a table are read as they stand if one row is so; or that the file is refused. DuckDB reads
    without its sniffer, which refuses more of these: `strict`, or `lenient`."""
    with TemporaryDirectory() as name:
        path, numbers = Path(name) / "rows.csv", range(ROWS // 2)
        good = [ROW.format(number, number) for number in numbers]
        write_whole(path, ("".join(good) + BAD[bad].partition("\n")[2] + "".join(good)).encode())
        path.write_bytes(BAD[bad].partition("\n")[0].encode() + b"\n" + path.read_bytes())
        texts = {line.rstrip("\n").partition(",")[2] for line in good}
        try:
            if engine != "ours":
                with duckdb.connect() as database:
                    rows = READ.format(path, str(engine == "strict").lower(), COLUMNS)
                    kept_texts = [text for (text,) in database.execute(f"SELECT fra FROM {rows}").fetchall()]
                    tables = database.execute("SELECT table_name FROM duckdb_tables()").fetchall()
                    count = "SELECT count(*) FROM reject_errors"
                    reported = database.execute(count).fetchall()[0][0] if ("reject_errors",) in tables else 0
                return f"{sum(text in texts for text in kept_texts):,} read, {reported} reported"
            source = CsvSource(
                name="bad", path="rows.csv", columns={"eng": "eng", "fra": "fra"}, on_error="drop", max_dropped=1
            )
            corpus = read_source(source, Path(name), others={})
            kept_texts = list(corpus.columns["fra"][:])
            return f"{sum(text in texts for text in kept_texts):,} read, {sum(corpus.dropped.values())} reported"
        except (DataError, duckdb.Error):
            return "refused"


def shown(rounds: Sequence[Mapping[str, Sequence[float]]], engine: str, figure: int, per: float) -> str:
    """The median of a figure, and its least and largest round."""
    figures = sorted(measurements[engine][figure] / per for measurements in rounds)
    return f"{statistics.median(figures):,.3g} ({figures[0]:,.3g} to {figures[-1]:,.3g})"


def table(record: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    lines = ["| what | ours | tried |", "|---|--:|--:|"]
    works = (
        ("objects", "obstore, ms of an object that is written and read", 0, OBJECTS / 1000),
        ("objects", "obstore, CPU ms of it", 1, OBJECTS / 1000),
        ("texts", f"DuckDB, CPU µs of a pair of {record['pairs']:,}", 1, record["pairs"] / 1e6),
        ("texts", "DuckDB, peak of memory in MB", 2, 1e6),
    )
    for name, title, figure, per in works:
        ours, peers = (shown(record[name], engine, figure, per) for engine in record[name][0])
        lines.append(f"| {title} | {ours} | {peers} |")
    doubled_by_engine = record["both_won"]
    peers = ", ".join(f"{engine} {doubled}" for engine, doubled in doubled_by_engine.items() if engine != "ours")
    lines.append(f"| in a folder, meetings of {ROUNDS} that both writers won | {doubled_by_engine['ours']} | {peers} |")
    for bad, answers in record["bad_rows"].items():
        words = f"DuckDB, {ROWS:,} good rows of CSV with one between them with {bad}"
        lines.append(f"| {words} | {answers['ours']} | {answers['strict']}; leniently {answers['lenient']} |")
    return "\n".join(lines) + "\n"


FIGURES = Figures("prototypes", "docs/architecture.md", "the prototypes' figures", table)


def main() -> None:
    """Measures, and writes the record and the page."""
    record: dict[str, Any] = {
        "commit": commit(),
        "load": os.getloadavg(),
        "versions": {"obstore": obstore.__version__, "duckdb": duckdb.__version__},
        "pairs": PAIRS,
        "texts": [{name: in_own_process(text, name, PAIRS) for name in ("ours", "duckdb")} for _ in range(TIMES)],
        "both_won": {"ours": both_won(by_ours), "fsspec": both_won(by_fsspec), "obstore": both_won(by_obstore)},
    }
    record["bad_rows"] = {bad: {name: rows_read(name, bad) for name in ("ours", "strict", "lenient")} for bad in BAD}
    with bucket():
        record["objects"] = [
            {name: in_own_process(objects, name) for name in ("ours", "obstore")} for _ in range(TIMES)
        ]
    if other := [some for some in record["texts"] if some["ours"][0] != some["duckdb"][0]]:
        sys.exit(f"the two leave different numbers of pairs: {other[0]}")
    FIGURES.keep(record)


if __name__ == "__main__":
    main()
