"""Batches of texts that a student looks up in a table: vectors in, loss and gradient out."""

import random

import torch

from babeltune.method import Batch, tokens_from
from babeltune.method.distributed import ProcessGroup


def gaussian(rows, columns, seed):
    """Numbers from N(0, 1), as lists, so that formulas can be written with loops."""
    generator = random.Random(seed)
    return [[generator.gauss(0, 1) for _ in range(columns)] for _ in range(rows)]


def batch_of(n, *, source_ids=None, target_ids=None, **fields):
    """`n` pairs: text i is a source, text n + i its target; fields given as lists become tensors."""
    tensors = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Batch(
        source=tokens_from([[i] for i in range(n)]),
        target=tokens_from([[n + i] for i in range(n)]),
        source_ids=torch.tensor(source_ids or list(range(n))),
        target_ids=torch.tensor(target_ids or list(range(n, 2 * n))),
        **{"total": n, **tensors},
    )


def run(method, vectors, batch):
    """The loss of a student whose vector of text i is row i, and its gradient."""
    table = torch.tensor(vectors, requires_grad=True)
    loss = method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup())
    loss.total.backward()
    return loss, table.grad
