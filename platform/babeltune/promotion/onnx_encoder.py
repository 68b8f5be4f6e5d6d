"""Encodes texts with a folder of `babeltune export --format onnx`. It needs numpy, tokenizers and onnxruntime alone."""

import json
import os
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


class OnnxEncoder:
    """A Transformer as an ONNX graph on the CPU. `threads`: 0 is one for each core."""

    def __init__(self, folder: str, threads: int = 0) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or onnxruntime reports its use to Microsoft
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = threads
        # A thread that waits for the next operator would spin, and take its core from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.prompt = json.loads(Path(folder, "encoder.json").read_text(encoding="utf-8"))["prompt"]
        self.dim = self.session.get_outputs()[0].shape[1]

    def encode(self, texts: list[str], batch: int = 8) -> np.ndarray:
        """The vectors: float32 [texts, dim]. Texts with like numbers of tokens share a batch."""
        ids = [self.tokenizer.encode(self.prompt + text).ids for text in texts]
        vectors: np.ndarray = np.zeros((len(texts), self.dim), np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(ids[row]))
        for rows in (order[start : start + batch] for start in range(0, len(texts), batch)):
            mask = np.arange(len(ids[rows[-1]])) < np.array([[len(ids[row])] for row in rows])
            tokens = np.zeros(mask.shape, np.int64)
            tokens[mask] = np.concatenate([ids[row] for row in rows])
            inputs = {"input_ids": tokens, "attention_mask": mask.astype(np.int64)}
            (vectors[rows],) = self.session.run(None, inputs)
        return vectors
