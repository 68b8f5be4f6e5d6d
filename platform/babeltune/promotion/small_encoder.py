"""Encodes texts with a folder of `babeltune export`. It needs numpy, safetensors and tokenizers alone."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer


class SmallEncoder:
    """Token vectors as whole numbers, each row with a scale of its own."""

    def __init__(self, folder: str) -> None:
        stored = load_file(f"{folder}/model.safetensors")
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.prompt = json.loads(Path(folder, "encoder.json").read_text(encoding="utf-8"))["prompt"]
        self.table, self.scales = stored["table"], stored["scales"]

    def encode(self, texts: list[str]) -> np.ndarray:
        """Vectors of length 1: float32 [texts, dim]. A text without a known token has zeros."""
        ids = self.tokenizer.encode_batch([self.prompt + text for text in texts], add_special_tokens=False)
        vectors: np.ndarray = np.zeros((len(ids), self.rows([0]).shape[1]), np.float32)
        for vector, each in zip(vectors, ids, strict=True):
            vector += self.scales[each.ids] @ self.rows(each.ids)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def rows(self, ids: list[int]) -> np.ndarray:
        """The numbers of these tokens. A byte holds one of 8 bits, or two of 4 bits above -8."""
        rows: np.ndarray = self.table[ids]
        if rows.dtype == np.int8:
            return rows
        return np.stack([rows & 15, rows >> 4], 2).reshape(len(ids), 2 * rows.shape[1]) - np.float32(8)
