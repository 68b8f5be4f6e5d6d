"""Adam on the rows of a table that a batch touched: torch's `SparseAdam`, in fewer passes over memory.

A row's moments change when its token occurs, and so does the row. `SparseAdam` does the same in about eighteen passes
over the touched rows; here it is done for a few rows at a time, which stay in the processor's cache."""

import math
from collections.abc import Callable, Iterable
from typing import TypedDict, cast

import torch
from torch import Tensor

CACHED = 1 << 17  # numbers of a block of rows: half a megabyte


class RowAdam(torch.optim.Optimizer):
    """Adam of parameters with sparse, coalesced gradients: each row once. Without weight decay.

    Raises:
        RuntimeError: a gradient is dense."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of the rows that have a gradient; a `closure` is not called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if not gradient.is_sparse:
                    raise RuntimeError("a parameter of RowAdam has a dense gradient; give it to AdamW")
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
                state["step"] += 1
                rows, values = gradient.indices()[0], gradient.values()
                many = max(1, CACHED // max(1, values[:1].numel()))
                for part, value in zip(torch.split(rows, many), torch.split(values, many), strict=True):
                    _update(parameter, cast(_Moments, state), part, value, cast(_Group, group))


class _Moments(TypedDict):
    """The state of a parameter."""

    step: int
    exp_avg: Tensor
    exp_avg_sq: Tensor


class _Group(TypedDict):
    """The settings of a group of parameters."""

    lr: float
    betas: tuple[float, float]
    eps: float


def _update(parameter: Tensor, state: _Moments, rows: Tensor, gradient: Tensor, group: _Group) -> None:
    """Adam's formula on these rows."""
    beta1, beta2 = group["betas"]
    step = state["step"]
    mean = state["exp_avg"].index_select(0, rows).lerp_(gradient, 1 - beta1)
    state["exp_avg"].index_copy_(0, rows, mean)
    square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    state["exp_avg_sq"].index_copy_(0, rows, square)
    size = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    new = parameter.index_select(0, rows).addcdiv_(mean, square.sqrt_().add_(group["eps"]), value=-size)
    parameter.index_copy_(0, rows, new)
