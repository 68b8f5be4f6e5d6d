"""Benchmarks of a GPU: training against sentence-transformers, several trials on it, the soft loss of 65,536 pairs,
mining, two ranks, and a pretrained encoder in ten minutes.

Wall seconds are measured; each part's module says how. On a machine with a GPU, this is all, in some five minutes:

    python -m benchmarks.gpu --json docs/measured/gpu.json
    python -m benchmarks.gpu --only pretrained --encoder mE5 --json pretrained.json       ten minutes more

The file is written after each part. Parts that would begin after `--minutes` are left out, and named. With several
GPUs, `--only ranks` says what NCCL does with two of them: please send the file back."""

import argparse
import importlib
import json
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from babeltune.files import write_whole
from benchmarks.gpu.timing import DEVICE, TINY, Size

PARTS = {
    "train": "training.measure",
    "trials": "trials.measure",
    "soft_loss": "soft_loss.measure",
    "mining": "mining.measure",
    "ranks": "ranks.measure",
    "train_larger": "training.measure_larger",
    "pretrained": "pretrained.measure",
}
"""Module and function of each part. The first ones matter most: minutes of a GPU are few. They are imported when they
begin, since each process that a part starts imports this file."""


def measured(name: str, size: Size, storage: Path) -> tuple[dict[str, Any], list[str]]:
    """The figures of a part, and its missed goals. There are no figures if it failed."""
    module_name, _, function = PARTS[name].partition(".")
    try:
        module = importlib.import_module(f"benchmarks.gpu.{module_name}")
        result = getattr(module, function)(storage, size)
    except Exception as error:  # the other parts are measured all the same
        traceback.print_exc()
        return {}, [f"{name}: {type(error).__name__}: {error}"]
    return result, list(module.faults(result))


def main() -> None:
    """Measures and prints all parts, and ends with 1 if something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="this part; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--minutes", type=float, default=5.0, help="no part begins later than this")
    parser.add_argument("--encoder", metavar="FOLDER", help="the encoder of the part pretrained")
    parser.add_argument("--tiny", action="store_true", help="small sizes, also without a GPU; the figures say nothing")
    args = parser.parse_args()
    if DEVICE == "cpu" and not args.tiny:
        parser.error("torch sees no GPU here; run it where there is one, or add --tiny to see whether it runs")
    size = replace(TINY if args.tiny else Size(), encoder=args.encoder)
    from datasets import disable_progress_bars
    from transformers.utils import logging

    from benchmarks.__main__ import commit

    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, tiny sizes"
    facts = {"device": device, "torch": torch.__version__, "commit": commit()}
    results: dict[str, Any] = {}
    broken: list[str] = []
    begun = time.perf_counter()
    with TemporaryDirectory() as storage:  # its text is prepared once for all parts
        for name in args.only or PARTS:
            started = time.perf_counter()
            if started - begun > 60 * args.minutes:
                print(f"{name}: not measured after {args.minutes:g} minutes; --only {name} measures it", flush=True)
                continue
            results[name], faults = measured(name, size, Path(storage))
            broken += faults
            if args.json:
                write_whole(args.json, (json.dumps({**facts, **results, "broken": broken}, indent=1) + "\n").encode())
            print(f"{name}, {time.perf_counter() - started:.0f} s: {json.dumps(results[name], indent=1)}", flush=True)
    for fault in broken:
        print(f"gpu: {fault}", file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
