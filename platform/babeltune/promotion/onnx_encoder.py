"""Encodes texts with a folder of `babeltune export --format onnx`. It needs numpy, tokenizers and onnxruntime alone."""

import json
import os
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


class OnnxEncoder:
    """A Transformer as an ONNX graph on the CPU; the tokenizer cuts, and pads each batch."""

    def __init__(self, folder: str) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or onnxruntime reports its use to Microsoft
        from onnxruntime import InferenceSession

        self.session = InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.prompt = json.loads(Path(folder, "encoder.json").read_text(encoding="utf-8"))["prompt"]
        self.dim = self.session.get_outputs()[0].shape[1]

    def encode(self, texts: list[str], batch: int = 32) -> np.ndarray:
        """The vectors: float32 [texts, dim]. Texts of like lengths share a batch."""
        vectors: np.ndarray = np.zeros((len(texts), self.dim), np.float32)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for places in (order[start : start + batch] for start in range(0, len(order), batch)):
            rows = self.tokenizer.encode_batch([self.prompt + texts[place] for place in places])
            inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
            (vectors[places],) = self.session.run(None, {name: np.array(each) for name, each in inputs.items()})
        return vectors
