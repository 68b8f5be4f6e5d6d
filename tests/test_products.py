"""fp32 matrix products on the CPU: oneDNN's and torch's are the same."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from babeltune.products import SMALL, linear, product, use_onednn
from kernels import SeenKernels

torch.manual_seed(0)
LARGE = torch.randn(160, 96), torch.randn(96, 144)
WIDER = torch.randn(160, 200), torch.randn(200, 144)


@pytest.fixture
def called() -> Iterator[list[tuple[Any, ...]]]:
    """Grows with every product that oneDNN computes."""
    with SeenKernels("mkldnn::_linear_pointwise") as seen:
        yield seen.calls


needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize(
    ("a", "b"),
    [
        LARGE,
        (LARGE[0].T.contiguous().T, LARGE[1]),
        (LARGE[0], LARGE[1].T.contiguous().T),
        (WIDER[0][:, :96], WIDER[1][:96]),
        (LARGE[0], torch.randn(144, 200)[:, 50:146].T),
    ],
    ids=["plain", "first transposed", "second transposed", "part of wider rows", "part, transposed"],
)
def test_products_of_any_layout_equal_those_of_torch(a: Tensor, b: Tensor, called: list[tuple[Any, ...]]) -> None:
    torch.testing.assert_close(product(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert called


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_the_linear_layer_and_its_gradients_equal_those_of_torch(bias: bool, called: list[tuple[Any, ...]]) -> None:
    def values(compute: Any) -> list[Tensor]:
        x, weight = LARGE[0].clone().requires_grad_(), LARGE[1].T.contiguous().requires_grad_()
        leaves = [x, weight, *([torch.ones(144).requires_grad_()] if bias else [])]
        output = compute(x, weight, leaves[2] if bias else None)
        return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]

    for actual, expected in zip(values(linear), values(torch.nn.functional.linear), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)
    assert len(called) == 3


@needs_onednn
def test_a_layer_that_is_not_trained_gets_no_gradient(called: list[tuple[Any, ...]]) -> None:
    x, weight = LARGE[0].clone().requires_grad_(), LARGE[1].T.contiguous()
    linear(x, weight, None).sum().backward()
    assert x.grad is not None
    assert weight.grad is None
    assert len(called) == 2  # the value and the gradient of x


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (LARGE[0].double(), LARGE[1].double()),
        (LARGE[0][:2], LARGE[1]),
        (LARGE[0].bfloat16(), LARGE[1].bfloat16()),
        (torch.randn(0, 96), LARGE[1]),
    ],
    ids=["double", "small", "half", "empty"],
)
def test_what_is_small_or_not_fp32_is_left_to_torch(a: Tensor, b: Tensor, called: list[tuple[Any, ...]]) -> None:
    assert torch.equal(product(a, b), a @ b)
    assert torch.equal(linear(a, b.T, None), a @ b)
    assert not called


def test_a_user_can_turn_onednn_off(called: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(LARGE[0]) * LARGE[1].numel() >= SMALL
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(product(*LARGE), LARGE[0] @ LARGE[1])
    assert not called


@needs_onednn
def test_linear_layers_of_a_model_go_through_onednn_and_keep_their_weights(called: list[tuple[Any, ...]]) -> None:
    model = nn.Sequential(nn.Linear(96, 144), nn.Sequential(nn.GELU(), nn.Linear(144, 32, bias=False)))
    converted, x = deepcopy(model), LARGE[0].view(4, 40, 96)
    use_onednn(converted)
    output, expected = deepcopy(converted)(x), model(x)
    assert len(called) == 1  # the second layer is small
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert output.shape == (4, 40, 32)
    assert converted.state_dict().keys() == model.state_dict().keys()


def test_a_layer_of_a_class_of_its_own_stays_as_it_is() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    layer = Doubled(4, 4)
    use_onednn(layer)
    assert type(layer) is Doubled
