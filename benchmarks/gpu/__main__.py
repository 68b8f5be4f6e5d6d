"""What a GPU does: training against sentence-transformers, the soft loss of 65,536 pairs, mining, and two ranks on it.

Wall seconds are measured; each part's module says how. `python -m benchmarks.gpu --json docs/measured/gpu.json` writes
the figures after each part, `--only PART` measures some of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import disable_progress_bars
from transformers.utils import logging

from babeltune.files import write_whole
from benchmarks.__main__ import commit
from benchmarks.gpu import mining, ranks, soft_loss, training

PARTS = {"ranks": ranks, "soft_loss": soft_loss, "train": training, "mining": mining}


def measured(name: str) -> tuple[dict[str, Any], list[str]]:
    """The figures of a part, and what is not as promised; none where it failed."""
    with TemporaryDirectory() as temporary:
        try:
            found = PARTS[name].measure(Path(temporary))
        except Exception as error:  # the other parts are measured all the same
            traceback.print_exc()
            return {}, [f"{name}: {type(error).__name__}: {error}"]
    return found, list(PARTS[name].faults(found))


def main() -> None:
    """Measures and prints all parts, and ends with 1 if something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="this part; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here; run it where there is one")
    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    found: dict[str, Any] = {}
    broken: list[str] = []
    for name in given.only or PARTS:
        started = time.perf_counter()
        found[name], faults = measured(name)
        broken += faults
        if given.json:
            write_whole(given.json, (json.dumps({**facts, **found, "broken": broken}, indent=1) + "\n").encode())
        print(f"{name}, {time.perf_counter() - started:.0f} s: {json.dumps(found[name], indent=1)}", flush=True)
    for fault in broken:
        print(f"gpu: {fault}", file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
