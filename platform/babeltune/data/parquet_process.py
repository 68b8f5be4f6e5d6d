"""Writes columns of a Parquet file to standard output as Arrow streams. `arrow_readers` runs it as a process.

A small file may hold huge pages, whatever its metadata say. So `arrow_readers` watches the memory of the process.
The first stream is the file's schema. A line of JSON on standard input then names the columns and bounds, and the
second stream is their batches. It imports nothing of babeltune."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet

TOO_LARGE = 3  # exit code if the file holds more text than `most` bytes; standard error says how many


def text_bytes(array: pa.Array) -> int:
    """The bytes of an array if a value that many rows share is counted in each."""
    if pa.types.is_struct(array.type):
        return sum(map(text_bytes, array.flatten()))
    if pa.types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary.cast(pa.large_binary()))
        return int(compute.sum(lengths.take(array.indices)).as_py() or 0)
    return int(array.nbytes)


def dictionaries(file: parquet.FileMetaData, texts: list[str]) -> list[str]:
    """Those of the columns that can be read as dictionaries: Arrow cannot make them of common prefixes."""
    groups = [file.row_group(i) for i in range(file.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    prefixed = {chunk.path_in_schema for chunk in chunks if "DELTA_BYTE_ARRAY" in chunk.encodings}
    return [name for name in texts if name not in prefixed]


def batches(path: str, selection: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The wanted columns, at most `rows` rows or some `bytes` bytes at a time."""
    texts = dictionaries(parquet.read_metadata(path), selection["texts"])  # a value of many rows is sent once
    with parquet.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 20) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=0)
        rows = max(1, min(selection["rows"], int(selection["bytes"] / max(1, widest))))
        yield from file.iter_batches(rows, columns=selection["columns"])


def write(path: str) -> int:
    """Writes both streams; gives the exit code."""
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow.with_metadata({"rows": str(file.metadata.num_rows)})
    out = pa.PythonFile(sys.stdout.buffer, mode="w")
    with pa.ipc.new_stream(out, schema):
        """No batches."""
    sys.stdout.buffer.flush()
    if not (line := sys.stdin.readline()):
        return 0
    request, size, writer = json.loads(line), 0, None
    for batch in batches(path, request):
        size += sum(map(text_bytes, batch.columns))
        if size > request["most"]:
            print(size, file=sys.stderr)
            return TOO_LARGE
        writer = writer or pa.ipc.new_stream(out, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    try:
        code = write(sys.argv[1])
    except (OSError, pa.ArrowException) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the streams may be broken
