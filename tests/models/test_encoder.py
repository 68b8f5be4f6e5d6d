"""The student's vectors do not depend on padding, order or neighbours, and it loads from every kind of model."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DebertaV2Config,
    MPNetConfig,
    T5Config,
    T5Model,
    XLMRobertaConfig,
)

from babeltune.errors import TeacherError
from babeltune.method import Tokens, tokens_from
from babeltune.models.build import build_student
from babeltune.models.encoder import Encoder, encode_all, pool, pool_by_segment
from babeltune.models.packing import pack
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import Transformer

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
TINY = Transformer(layers=2, width=32, heads=4, feed_forward=64, max_tokens=40)


def scratch(seed=0, **changes):
    student = TINY.changed(**changes)
    return build_student(student, Vocabulary(90, 0), teacher_dim=24, seed=seed)


def random_sentences(count, seed=0, longest=39):
    draw = random.Random(seed)
    return [[draw.randrange(5, 90) for _ in range(draw.randint(1, longest))] for _ in range(count)]


@pytest.mark.trap(19)
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("projection", [None, "teacher"])
def test_a_sentence_has_the_same_vector_alone_and_in_any_order(pooling, projection):
    encoder = scratch(pooling=pooling, projection=projection).eval()
    assert encoder.packs
    sentences = random_sentences(20)
    with torch.no_grad():
        together = encoder(tokens_from(sentences))
        backwards = encoder(tokens_from(sentences[::-1])).flip(0)
        alone = torch.cat([encoder(tokens_from([s])) for s in sentences])
    assert together.shape == (20, encoder.dim) == (20, 24 if projection else 32)
    assert (together - alone).abs().max() < 1e-5
    assert (together - backwards).abs().max() < 1e-5
    assert torch.allclose(together.norm(dim=1), torch.ones(20))


@pytest.mark.trap(20)
@pytest.mark.parametrize("pooled", [pool, pool_by_segment])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_and_its_gradient_equal_those_of_plain_loops(pooled, pooling):
    packing = pack(Tokens(torch.arange(9), torch.tensor([4, 2, 0, 2, 1])))
    states = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    at, rows = 0, []
    for length in packing.lengths.tolist():
        part = states[at : at + length]
        at += length
        how = {"mean": lambda x: sum(x) / len(x), "cls": lambda x: x[0], "max": lambda x: x.amax(0)}[pooling]
        rows.append(how(part) if length else torch.zeros(3))
    actual, expected = pooled(states, packing, pooling), torch.stack(rows)
    assert torch.allclose(actual, expected)
    weights = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((vectors * weights).sum(), states)[0] for vectors in (actual, expected)]
    assert torch.allclose(*gradients)


@pytest.mark.trap(19)
@pytest.mark.parametrize("pooled", [pool, pool_by_segment])
def test_mean_pooling_sums_in_fp32_whatever_the_precision(pooled):
    states = torch.full((2001, 1), 0.1, dtype=torch.bfloat16)
    packing = pack(Tokens(torch.zeros(2001, dtype=torch.long), torch.tensor([2001])))
    assert pooled(states, packing, "mean").dtype == torch.float32
    assert pooled(states, packing, "mean").item() == pytest.approx(states[0, 0].item(), rel=1e-5)


def test_no_sentences_give_no_vectors_and_a_gradient_of_nothing():
    encoder = scratch(projection=7)
    vectors = encoder(tokens_from([]))
    assert vectors.shape == (0, 7)
    vectors.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in encoder.parameters())


@pytest.mark.trap(19)
@pytest.mark.parametrize("kind", ["packed", "padded"])
def test_a_sentence_without_tokens_gives_a_finite_vector_and_finite_gradients(kind):
    encoder = scratch() if kind == "packed" else mpnet()
    vectors = encoder(tokens_from([[5, 6], [], [7]]))
    assert torch.equal(vectors[1], torch.zeros(32))
    vectors.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)
    only = encoder(tokens_from([[], []]))
    assert torch.equal(only, torch.zeros(2, 32))


def mpnet():
    config = MPNetConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=90,
        max_position_embeddings=66, pad_token_id=1,
    )  # fmt: skip
    return Encoder(AutoModel.from_config(config, add_pooling_layer=False), pad_token_id=1)


@pytest.mark.trap(19)
def test_a_backbone_that_cannot_pack_runs_padded_with_the_same_invariance():
    encoder = mpnet().eval()
    assert not encoder.packs
    sentences = random_sentences(9)
    with torch.no_grad():
        together = encoder(tokens_from(sentences))
        alone = torch.cat([encoder(tokens_from([s])) for s in sentences])
    assert (together - alone).abs().max() < 1e-5


@pytest.mark.parametrize("layers", [(1, -1), (2, 1, -1)])
@pytest.mark.parametrize("build", [scratch, mpnet])
def test_states_are_those_of_the_asked_layers_in_the_order_of_the_tokens(build, layers):
    encoder = build().eval()
    sentences = [*random_sentences(6), [], *random_sentences(3, seed=1)]
    with torch.no_grad():
        states = encoder.states(tokens_from(sentences), layers)
        encoder.backbone.set_attn_implementation("eager")
        alone = [encoder.backbone(torch.tensor([s]), output_hidden_states=True) for s in sentences if s]
    expected = torch.cat([torch.cat([out.hidden_states[layer] for layer in layers], dim=2)[0] for out in alone])
    assert states.dtype == torch.float32
    assert states.shape == (sum(map(len, sentences)), len(layers) * encoder.width)
    assert encoder.layers == len(alone[0].hidden_states) - 1
    assert torch.equal(encoder.states(tokens_from(sentences), (1, -1)), encoder.states(tokens_from(sentences)))
    assert (states - expected).abs().max() < 1e-5
    assert encoder.word_embeddings.shape == (90, encoder.width)
    assert encoder.states(tokens_from([]), layers).shape == (0, len(layers) * encoder.width)


def test_weights_depend_on_the_seed_alone_and_the_global_random_state_is_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = scratch(seed=3, projection=8)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    again, other = scratch(seed=3, projection=8), scratch(seed=4, projection=8)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.projection.weight, other.projection.weight)
    assert first.state_dict().keys() == other.state_dict().keys()
    assert not any("pooler" in name for name in first.state_dict())


@pytest.mark.trap(23)
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_encode_all_returns_vectors_in_order_and_keeps_the_training_flag(batch_tokens):
    encoder = scratch(dropout=0.5).train()
    sentences = [*random_sentences(30), []]
    flat = np.array([t for s in sentences for t in s], dtype=np.uint16)
    starts = np.cumsum([0, *map(len, sentences)])

    def take(ids):
        return (
            np.concatenate([flat[starts[i] : starts[i + 1]] for i in ids] or [flat[:0]]),
            np.array([len(sentences[i]) for i in ids], dtype=np.int32),
        )

    ids = np.array([30, 4, 4, 29, 0, 17])
    vectors = encode_all(encoder, take, ids, batch_tokens=batch_tokens, device="cpu")
    assert encoder.training
    assert vectors.dtype == np.float32
    with torch.no_grad():
        expected = encoder.eval()(tokens_from([sentences[i] for i in ids])).numpy()
    assert np.abs(vectors - expected).max() < 1e-6
    assert encode_all(encoder, take, ids[:0], device="cpu").shape == (0, 32)


@pytest.mark.trap(12)
def test_encode_all_is_fp32_even_when_called_under_autocast():
    encoder = scratch().eval()

    def take(ids):
        return np.array([5, 6, 7, 8]), np.array([3, 1])

    exact = encode_all(encoder, take, np.array([0, 1]), device="cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(encode_all(encoder, take, np.array([0, 1]), device="cpu"), exact)


def test_under_bf16_autocast_vectors_are_fp32_and_close():
    encoder = scratch(projection=8).eval()
    tokens = tokens_from(random_sentences(6))
    exact = encoder(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = encoder(tokens)
    half.sum().backward()
    assert half.dtype == torch.float32
    assert (half - exact).abs().max() < 0.02


@pytest.fixture
def xlm_r(tmp_path):
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=90,
        max_position_embeddings=42, pad_token_id=1,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(tmp_path / "xlm-r")
    return tmp_path / "xlm-r"


def from_folder(folder, **changes):
    student = Transformer(model=str(folder), max_tokens=40).changed(**changes)
    return build_student(student, Vocabulary(90, 1), teacher_dim=None, seed=0)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_students_dropout_is_that_of_a_named_model_too(xlm_r, dropout):
    encoder = from_folder(xlm_r, dropout=dropout)
    assert {module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)} == {dropout}
    encoder.train()
    tokens = tokens_from([[5, 6, 7, 8]])
    assert torch.equal(encoder(tokens), encoder(tokens)) == (dropout == 0)


def test_a_saved_model_is_loaded_without_pooler_in_fp32_and_packed(xlm_r):
    before = torch.get_rng_state()
    encoder = from_folder(xlm_r)
    assert torch.equal(before, torch.get_rng_state())
    assert encoder.packs
    assert encoder.offset == 2
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert not any("pooler" in name for name in encoder.state_dict())
    reference = AutoModel.from_pretrained(xlm_r, add_pooling_layer=False).eval()
    with torch.no_grad():
        states = reference(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state.mean(1)
        assert torch.allclose(encoder.eval()(tokens_from([[5, 6, 7]])), nn.functional.normalize(states), atol=1e-6)


@pytest.mark.trap(20)
def test_a_dense_layer_with_tanh_beside_the_model_is_loaded_as_labse_has_it(xlm_r):
    from safetensors.torch import save_file

    (xlm_r / "1_Pooling").mkdir()
    (xlm_r / "2_Dense").mkdir()
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    modules = [{"idx": i, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (p, k) in enumerate(kinds)]
    (xlm_r / "modules.json").write_text(json.dumps(modules))
    (xlm_r / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (xlm_r / "2_Dense" / "config.json").write_text(
        json.dumps({"in_features": 32, "out_features": 6, "activation_function": "torch.nn.modules.activation.Tanh"})
    )
    weight, bias = torch.randn(6, 32), torch.randn(6)
    save_file({"linear.weight": weight, "linear.bias": bias}, xlm_r / "2_Dense" / "model.safetensors")
    encoder = from_folder(xlm_r, pooling="cls", normalize=False).eval()
    with torch.no_grad():
        first = encoder.backbone(
            input_ids=torch.tensor([[5, 6]]), position_ids=torch.tensor([[2, 3]]), packing=pack(tokens_from([[5, 6]]))
        ).last_hidden_state[:, 0]
        assert torch.allclose(encoder(tokens_from([[5, 6]])), torch.tanh(first @ weight.T + bias), atol=1e-6)
    with pytest.raises(TeacherError, match=r"set student.pooling to 'cls'"):
        from_folder(xlm_r, pooling="mean")
    with pytest.raises(TeacherError, match="projection to 6"):
        from_folder(xlm_r, pooling="cls", projection=8)


BERT = BertConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=90,
    max_position_embeddings=40, initializer_range=0.3,
)  # fmt: skip


@pytest.mark.trap(20)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_named_model_pools_by_its_own_pooler(tmp_path, normalize):
    """D20: LaBSE's and LEALLA's vector is the pooler's, not the raw state of the first token."""
    torch.manual_seed(0)
    bert = BertModel(BERT).eval()
    nn.init.normal_(bert.pooler.dense.bias)
    bert.save_pretrained(tmp_path)
    encoder = from_folder(tmp_path, pooling="pooler", normalize=normalize).eval()
    sentences = random_sentences(8)
    with torch.no_grad():
        expected = torch.cat([bert(torch.tensor([sentence])).pooler_output for sentence in sentences])
        expected = nn.functional.normalize(expected) if normalize else expected
        assert (encoder(tokens_from(sentences)) - expected).abs().max() < 1e-5
        raw = from_folder(tmp_path, pooling="cls", normalize=normalize).eval()(tokens_from(sentences))
        assert (raw - expected).abs().max() > 0.1
    assert (encoder.pooling, encoder.dim) == ("cls", 32)
    assert not any("pooler" in name for name in encoder.state_dict())


def test_a_pooler_from_scratch_learns():
    encoder = scratch(pooling="pooler", normalize=False)
    vectors = encoder(tokens_from(random_sentences(6)))
    assert vectors.shape == (6, 32)
    assert vectors.abs().max() < 1
    vectors.square().sum().backward()
    assert all(p.grad.any() for p in encoder.projection.parameters())
    assert encoder.word_embeddings.grad.any()


def test_a_model_without_a_trained_pooler_is_refused_in_words(tmp_path):
    BertForMaskedLM(BERT).save_pretrained(tmp_path / "bert")
    with pytest.raises(TeacherError, match=r"no weights of a pooler's .* set pooling to mean, cls or max"):
        from_folder(tmp_path / "bert", pooling="pooler")
    deberta = DebertaV2Config(**{name: getattr(BERT, name) for name in ("hidden_size", "num_hidden_layers",
        "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings")})  # fmt: skip
    AutoModel.from_config(deberta).save_pretrained(tmp_path / "deberta")
    with pytest.raises(TeacherError, match="is a deberta-v2 encoder, which has no pooler"):
        from_folder(tmp_path / "deberta", pooling="pooler")


def test_what_cannot_be_a_student_is_refused_in_words(tmp_path, xlm_r):
    with pytest.raises(TeacherError, match="'nobody/nothing' is neither a folder nor reachable"):
        from_folder("nobody/nothing")
    with pytest.raises(TeacherError, match=r"exceeds the 40 positions"):
        from_folder(xlm_r, max_tokens=41)
    with pytest.raises(TeacherError, match="90 token embeddings, its tokenizer 91"):
        build_student(Transformer(model=str(xlm_r), max_tokens=40), Vocabulary(91, 1), teacher_dim=None, seed=0)
    t5 = T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=90)
    T5Model(t5).save_pretrained(tmp_path / "t5")
    with pytest.raises(TeacherError, match="encoder-decoder"):
        from_folder(tmp_path / "t5")
    pickled = tmp_path / "pickled"
    BertConfig(vocab_size=90).save_pretrained(pickled)
    torch.save({}, pickled / "pytorch_model.bin")
    with pytest.raises(TeacherError, match="safetensors"):
        from_folder(pickled)
    with pytest.raises(TeacherError, match=r"does not divide by student.heads 5"):
        scratch(heads=5)
    with pytest.raises(TeacherError, match="no teacher"):
        build_student(Transformer(projection="teacher"), Vocabulary(90, 0), teacher_dim=None, seed=0)


def test_a_checkpoint_that_lacks_layers_is_refused(xlm_r):
    config = json.loads((xlm_r / "config.json").read_text())
    (xlm_r / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(TeacherError, match="lacks 16 weights"):
        from_folder(xlm_r)


def test_loading_prints_nothing(xlm_r, capfd):
    from_folder(xlm_r)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""
