"""The descent that fine-tunes a whole transformers model, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from babeltune.errors import TrainingError

if TYPE_CHECKING:
    from jaxtyping import Float

NORM = 1.0  # the norm at which gradients are clipped


class Descent:
    """AdamW over all weights of a model, its rate times `share(step)`, steps counted from 0."""

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        share: Callable[[int], float],
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=learning_rate, betas=betas, eps=1e-8, weight_decay=weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, share)
        self._steps = 0

    def step(self, loss: Float[Tensor, ""]) -> float:
        """One step down this loss, which is returned as a number; `TrainingError` if it is not finite."""
        self._steps += 1
        value = float(loss.detach())
        if not loss.isfinite():
            raise TrainingError(f"the loss is {value} in step {self._steps}; lower --learning-rate")
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, NORM)
        self._optimizer.step()
        self._schedule.step()
        return value
