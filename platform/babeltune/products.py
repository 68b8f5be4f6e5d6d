"""fp32 matrix products on the CPU through oneDNN: those of students, of the teacher, of the losses and of mining.

torch gives them to MKL, which keeps to AVX2 on AMD's processors. oneDNN, which torch brings too, uses the AVX-512 of
any processor: 230 in place of 100 GFLOP/s a core on a Zen 5. What is no fp32 on a CPU, or small, goes to torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import Float

SMALL = 1 << 20
"""Multiplications below which a product is left to torch: oneDNN first makes a program for every new shape."""

ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # whether this torch brings oneDNN


def product(a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    """a @ b. It is not differentiable: losses that call it know their gradient."""
    return _affine(a, b.T, None) if _by_onednn(a, b) else a @ b


def linear(
    x: Float[Tensor, "rows inner"], weight: Float[Tensor, "columns inner"], bias: Float[Tensor, "columns"] | None
) -> Float[Tensor, "rows columns"]:
    """x @ weight.T + bias, differentiable once."""
    if not _by_onednn(x, weight.T):
        return torch.nn.functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class OneDNNLinear(torch.nn.Linear):
    """A linear layer by `linear`; its weights are those of torch's."""

    def forward(self, input: Float[Tensor, "*rows inner"]) -> Float[Tensor, "*rows columns"]:
        if not input.is_cpu:
            return super().forward(input)
        result = linear(input.reshape(-1, self.in_features), self.weight, self.bias)
        return result.view(*input.shape[:-1], self.out_features)


def use_onednn(model: torch.nn.Module) -> None:
    """Lets the model's linear layers multiply through oneDNN. A class derived from torch's stays as it is."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = OneDNNLinear


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    return (
        a.device.type == b.device.type == "cpu"
        and a.dtype == b.dtype == torch.float32
        and len(a) * b.numel() >= SMALL
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and ONEDNN
    )


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias by oneDNN, which has no fast program for a weight that is a part of wider rows."""
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _affine(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), above = ctx.saved_tensors, gradients[0]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(above, weight) if of_x else None,
            product(above.T, x) if of_weight else None,
            above.sum(0) if of_bias else None,
        )
