"""Packed and padded runs of real architectures, tiny and with random weights, give the same states and gradients."""

import copy

import pytest
import torch
from transformers import AutoModel, BertConfig, DistilBertConfig, ModernBertConfig, MPNetConfig, XLMRobertaConfig

from babeltune.method import Tokens
from babeltune.models import packing as packing_module
from babeltune.models.packing import _probe, enable_packing, pack, run_packed, run_padded
from babeltune.training.capture import HostOps

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 90}
pytestmark = pytest.mark.usefixtures("one_thread")
CONFIGS = {
    "bert": BertConfig(**SMALL, max_position_embeddings=64),
    "xlm-r": XLMRobertaConfig(**SMALL, max_position_embeddings=66, pad_token_id=1),
    "modernbert": ModernBertConfig(
        **SMALL, max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    ),
    "mpnet": MPNetConfig(**SMALL, max_position_embeddings=66, pad_token_id=1),
    "distilbert": DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=90, max_position_embeddings=64
    ),
}  # fmt: skip


def small(name):
    torch.manual_seed(0)
    return AutoModel.from_config(copy.deepcopy(CONFIGS[name])).eval()


def sentences(*lengths, start=5, vocabulary=90):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(start, vocabulary, (sum(lengths),), generator=generator)
    return Tokens(ids, torch.tensor(lengths))


MIXED = sentences(7, 3, 30, 7, 1, 12, 3, 40)


@pytest.mark.trap(27)
def test_a_packing_lays_sentences_shortest_first_and_remembers_where_they_went():
    packing = pack(Tokens(torch.tensor([10, 11, 12, 20, 30, 31, 32]), torch.tensor([3, 1, 0, 3])))
    assert packing.ids.tolist() == [20, 10, 11, 12, 30, 31, 32]
    assert packing.positions.tolist() == [0, 0, 1, 2, 0, 1, 2]
    assert packing.token_index.tolist() == [3, 0, 1, 2, 4, 5, 6]
    assert packing.groups == ((1, 0), (1, 1), (2, 3))
    assert packing.rank.tolist() == [2, 1, 0, 3]
    assert packing.lengths.tolist() == [0, 1, 3, 3]


@pytest.mark.trap(19)
@pytest.mark.parametrize("name", ["bert", "xlm-r", "modernbert", "distilbert"])
def test_packed_states_and_gradients_equal_the_padded_ones(name):
    pad = CONFIGS[name].pad_token_id
    packed, padded, packing = small(name), small(name), pack(MIXED)
    offset = enable_packing(packed, pad)
    assert offset == (2 if name == "xlm-r" else 0)
    out, expected = run_packed(packed, packing, offset, (1, -1)), run_padded(padded, packing, pad, (1, -1))
    assert (out - expected).abs().max() < 2e-6
    assert torch.equal(out[:, 32:], run_packed(packed, packing, offset)), "the last layer's states stand last"
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    compared = 0
    for (key, p), (_, q) in zip(packed.named_parameters(), padded.named_parameters(), strict=True):
        if q.grad is None:
            assert p.grad is None, key
            continue
        assert (p.grad - q.grad).abs().max() <= 1e-5 * max(1.0, q.grad.abs().max().item()), key
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("spare", [0, 1, 40, 95])
@pytest.mark.parametrize("name", ["bert", "xlm-r", "modernbert", "distilbert"])
def test_a_packing_of_fixed_shape_gives_the_states_and_gradients_of_others(name, spare):
    tokens = Tokens(MIXED.ids, torch.cat([MIXED.lengths, torch.tensor([0])]))
    fixed = Tokens(torch.cat([tokens.ids, torch.full((spare,), 7)]), tokens.lengths, 40)
    model, pad = small(name), CONFIGS[name].pad_token_id
    offset, results = enable_packing(model, pad), []
    for batch in (tokens, fixed):
        model.zero_grad()
        packing = pack(batch)
        states = torch.empty(len(batch.ids), 32).index_copy(0, packing.token_index, run_packed(model, packing, offset))
        states = states[: len(tokens.ids)]
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        results.append([states.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[1]) > 10
    largest = max(one.abs().max().item() for one in results[0])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 1e-6 * largest


def test_a_packing_of_fixed_shape_asks_nothing_of_the_program():
    model = small("modernbert")
    enable_packing(model, 0)
    shapes = []
    for lengths in ((3, 30, 2), (1, 1, 0)):
        tokens = Tokens(torch.full((64,), 5), torch.tensor(lengths), 32)
        with HostOps() as host:
            packing = pack(tokens)
            run_packed(model, packing, 0).sum().backward()
        assert host.names == []
        shapes.append({name: value.shape for name, value in vars(packing).items() if isinstance(value, torch.Tensor)})
        assert packing.lengths.sum() == 64
        assert packing.lengths.max() <= packing.longest == 32
    assert shapes[0] == shapes[1]


def test_a_model_is_tried_with_lengths_beyond_its_window_whatever_its_padding_is():
    """ModernBERT's own padding token, 50283, is beyond its positions, which do not depend on it."""
    config = ModernBertConfig(**SMALL | {"vocab_size": 50_368}, max_position_embeddings=8192, local_attention=128)
    model = AutoModel.from_config(config)
    assert _probe(model, 50_283).lengths.tolist() == _probe(model, 0).lengths.tolist() == [2, 2, 5, 9, 88]


def test_local_layers_of_modernbert_do_not_see_beyond_their_window():
    model = small("modernbert")
    assert enable_packing(model, 0) == 0
    model.layers = model.layers[1:]  # the local layer alone
    assert model.layers[0].attention_type == "sliding_attention"
    long = sentences(40)
    changed = Tokens(torch.cat([long.ids[:-1], torch.tensor([4])]), long.lengths)
    with torch.no_grad():
        difference = (run_packed(model, pack(long), 0) - run_packed(model, pack(changed), 0)).abs().amax(1)
    window = CONFIGS["modernbert"].sliding_window
    assert (difference[: -window - 1] == 0).all()
    assert (difference[-window - 1 :] > 0).all()


def test_a_model_that_ignores_the_packing_keeps_its_own_attention():
    model = small("mpnet")
    implementation = model.config._attn_implementation
    assert enable_packing(model, CONFIGS["mpnet"].pad_token_id) is None
    assert model.config._attn_implementation == implementation


def test_a_model_that_takes_no_positions_is_found_out():
    model = small("bert")
    forward = model.forward

    def without_positions(input_ids, attention_mask=None, packing=None):
        return forward(input_ids=input_ids, attention_mask=attention_mask, packing=packing)

    model.forward = without_positions
    assert enable_packing(model, 0) is None
    model.forward = lambda position_ids=None, **inputs: forward(**inputs)
    assert enable_packing(model, 0) is None


@pytest.mark.trap(19)
def test_no_sentence_sees_another_one_even_where_lengths_are_equal():
    model = small("bert")
    enable_packing(model, 0)
    one, other = sentences(6, 6), sentences(6, 6)
    other.ids[6:] = 8
    with torch.no_grad():
        a, b = run_packed(model, pack(one), 0), run_packed(model, pack(other), 0)
    assert torch.equal(a[:6], b[:6])
    assert not torch.allclose(a[6:], b[6:])


def test_under_bf16_autocast_packed_attention_stays_near_fp32():
    model = small("bert")
    enable_packing(model, 0)
    with torch.no_grad():
        exact = run_packed(model, pack(MIXED), 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = run_packed(model, pack(MIXED), 0)
    assert (half.float() - exact).abs().max() < 0.05


@pytest.mark.needs_gpu
@pytest.mark.parametrize("name", ["bert", "xlm-r", "modernbert", "distilbert"])
def test_attention_on_a_gpu_in_half_precision_is_that_of_fp32(name):
    """FlashAttention's states and gradients are as near to those in fp32 as attention by length is in bf16."""
    pad = CONFIGS[name].pad_token_id
    model, packing = small(name).cuda(), pack(Tokens(MIXED.ids.cuda(), MIXED.lengths.cuda()))
    offset = enable_packing(model, pad)

    def run(half, flash):
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cuda", torch.bfloat16, enabled=half):
            verdicts, suits = [], packing_module.flash_suits

            def noted(*arguments):
                verdicts.append(suits(*arguments))
                return flash and verdicts[-1]

            patch.setattr(packing_module, "flash_suits", noted)
            out = run_packed(model, packing, offset).float()
        (out * torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out)).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return out.detach(), gradient, verdicts

    (exact, exact_gradient, none), by_length, flash = run(False, True), run(True, False), run(True, True)
    assert not any(none), "fp32 is no half precision"
    assert any(flash[2])
    assert all(flash[2]) or name == "modernbert", "which has windows"
    for value, other, target in ((flash[0], by_length[0], exact), (flash[1], by_length[1], exact_gradient)):
        assert 0 < (value - target).norm() / target.norm() <= 1.5 * (other - target).norm() / target.norm() + 1e-3
