"""Whether OpenVINO runs a Transformer's graph faster than onnxruntime does.

`python -m benchmarks.openvino GRAPH SMALL` takes two folders of `babeltune export --format onnx`, the second with
`--int8`, both of multilingual-e5-small. OpenVINO reads the first graph, and NNCF makes eight bits of its weights and
activations. All run one batch with one thread, in turn, and the least CPU time of some rounds counts.
`docs/how-to/promote.md` gets the sentence. The packages come with `pip install 'babeltune[tried]'`."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from babeltune.promotion.canary import fixed_sentences
from babeltune.promotion.onnx_encoder import OnnxEncoder
from benchmarks.__main__ import commit
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
MODEL = "multilingual-e5-small"
ROUNDS, TEXTS, PART = 5, 32, 4  # texts of the batch, and of each part by which NNCF chooses its scales
Inputs = dict[str, np.ndarray[Any, Any]]


def batch(folder: Path) -> Inputs:
    """Some of the fixed sentences in 20 languages, as token ids."""
    tokenizer = OnnxEncoder(str(folder), 1).tokenizer
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(fixed_sentences()[:TEXTS])
    return {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }


def runners(graph: Path, small: Path, inputs: Inputs) -> dict[str, Callable[[], object]]:
    """The functions that run the batch, by the runtime and the bits."""
    import nncf  # type: ignore[import-not-found, unused-ignore]
    import openvino  # type: ignore[import-not-found, unused-ignore]

    path, core = str(graph / "model.onnx"), openvino.Core()
    parts = [{name: rows[at : at + PART] for name, rows in inputs.items()} for at in range(0, TEXTS, PART)]
    eight = nncf.quantize(
        core.read_model(path), nncf.Dataset(parts), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(parts)
    )
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = [core.compile_model(model, "CPU", settings) for model in (core.read_model(path), eight)]
    sessions = [OnnxEncoder(str(folder), 1).session for folder in (graph, small)]
    return {
        "onnxruntime 32": lambda: sessions[0].run(None, inputs),
        "onnxruntime 8": lambda: sessions[1].run(None, inputs),
        "openvino 32": lambda: compiled[0](inputs),
        "openvino 8": lambda: compiled[1](inputs),
    }


def rates(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Texts a CPU second of each."""
    seconds = dict.fromkeys(runs, float("inf"))
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            begun = time.process_time()
            run()
            if number:  # the first one pays for memory
                seconds[name] = min(seconds[name], time.process_time() - begun)
    return {name: TEXTS / duration for name, duration in seconds.items()}


def sentence(record: dict[str, Any]) -> str:
    """The record in words."""
    rates = record["rates"]
    return (
        f"OpenVINO {record['version']} is no format of `export`: with one thread its eight bits, by NNCF, run "
        f"{rates['openvino 8']:.0f} texts a CPU second of {MODEL}, and onnxruntime's {rates['onnxruntime 8']:.0f}. "
        f"In 32 bits it is {rates['openvino 32']:.0f} to {rates['onnxruntime 32']:.0f}.\n"
    )


FIGURES = Figures("openvino", "docs/how-to/promote.md", "openvino", sentence)


def main() -> None:
    """Measures, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="a folder of `export --format onnx`")
    parser.add_argument("small", type=Path, help="one of `export --format onnx --int8`, of the same model")
    options = parser.parse_args()
    from importlib.metadata import version

    rates_by_runner = rates(runners(options.graph, options.small, batch(options.graph)))
    record = {"commit": commit(), "version": version("openvino"), "rates": rates_by_runner}
    print(sentence(record))
    FIGURES.keep(record)


if __name__ == "__main__":
    main()
