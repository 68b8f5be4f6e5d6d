"""The promises of every method, as checks that its tests run: of the methods here, and of those in other distributions.

Each of `CHECKS` takes a `Case` and raises `AssertionError` if the method breaks a promise. `check_ranks` starts
processes that share one batch. A test file is then a few lines:

    @pytest.mark.parametrize("check", testing.CHECKS, ids=testing.name_of)
    def test_it_keeps_the_contract(check):
        check(testing.Case("my_method", {"temperature": 0.2}))


    def test_any_number_of_ranks_gives_the_same_gradient(tmp_path):
        testing.check_ranks([testing.Case("my_method")], tmp_path)

Nothing here replaces the test that recomputes the loss from the printed equation."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method.contract import FIRST_AND_LAST, Batch, Loss, Masked, Method, Needs, Tokens, tokens_from
from babeltune.method.distributed import ProcessGroup
from babeltune.method.gradcache import CachedEncode
from babeltune.method.masked_lm import IGNORED, Masking
from babeltune.method.registry import load_method, make_config
from babeltune.training.capture import tensors_of
from babeltune.training.sampler import local_sizes, lots, own_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

DIM = 8
"""Numbers of a vector of the student and of the teacher."""
WIDTH = 8
"""Numbers of a token's state."""
VOCABULARY = 40
"""Token ids of the student."""
TEXTS = 12
"""Different sentences of an example batch."""
LANGUAGES = ("eng", "fra", "kor")
"""Languages of the sentences: text i is in language i modulo 3, so that batches mix them."""
PAIRS = 7
"""Pairs of an example batch: ranks cannot share them evenly."""
WORLDS = (4, 2)
"""Numbers of ranks that must give what one rank gives."""
RANK_PAIRS = (7, 3)
"""Pairs of the batches that ranks share. With 3 pairs, one of four ranks has none."""
RANKS_TIMEOUT_S = 600.0
"""Seconds that the ranks of `check_ranks` may take, which is far more than a busy machine needs."""


@dataclass(frozen=True)
class Case:
    """A method with one choice of its settings."""

    method: str | type[Method]
    """The name of an installed method, or the class itself."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Fields of its `Config`, as a sweep file says them."""
    detaches_teacher: bool = True
    """Whether the loss would give the teacher's vectors no gradient, even if they asked for one. They never do."""

    @property
    def method_class(self) -> type[Method]:
        return load_method(self.method) if isinstance(self.method, str) else self.method

    @property
    def name(self) -> str:
        """Names the case in the output of a test."""
        return "-".join([self.method_class.name, *map(str, self.settings.values())])

    def build(self) -> tuple[Method, Needs]:
        """The method, warmed up, and what it needs."""
        method_class = self.method_class
        config = make_config(method_class, self.settings)
        needs = method_class.needs(config)
        sizes: dict[str, object] = {"languages": LANGUAGES} if needs.per_language else {}
        sizes |= {"width": WIDTH, "vocabulary": VOCABULARY} if needs.states else {}
        torch.manual_seed(4)
        make: Callable[..., Method] = method_class
        built = make(config, student_dim=DIM, teacher_dim=DIM, **sizes)
        vectors = normalize(torch.randn(TEXTS, DIM, generator=torch.Generator().manual_seed(8)), dim=1)
        built.warm_up(vectors[: needs.warm_up], torch.arange(TEXTS)[: needs.warm_up])
        return built, needs


class Student(nn.Module):
    """A small encoder: embeddings, two layers, the mean of each sentence. It has no dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, DIM))

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        return self.words.weight

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        first: Tensor = self.layers[:2](self.words(tokens.ids))
        last: Tensor = self.layers[2](first)
        return torch.cat([{1: first, 2: last, -1: last}[layer] for layer in layers], dim=1)

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        states: Tensor = self.layers(self.words(tokens.ids))
        sums = states.new_zeros(len(tokens) + 1, DIM).index_add(0, tokens.sentence, states)  # spare tokens last
        return normalize(sums[:-1], dim=1)


class Rounded(Student):
    """A student that computes in bf16 and answers in fp32, as trials with `training.precision: bf16` do."""

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().states(tokens, layers).float()

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens).float()


def example_batch(needs: Needs, total: int = PAIRS, rank: int = 0, world: int = 1) -> Batch:
    """One rank's rows of a batch of `total` random pairs. Some sentences occur in several pairs."""
    generator = torch.Generator().manual_seed(total)
    texts = [torch.randint(VOCABULARY, (1 + i % 4,), generator=generator).tolist() for i in range(TEXTS)]
    vectors = normalize(torch.randn(TEXTS, DIM, generator=generator), dim=1)
    ids = torch.randint(TEXTS, (2 + needs.hard_negatives, total), generator=generator)
    mask = torch.rand(total, needs.hard_negatives, generator=generator) < 0.8
    rows = torch.from_numpy(own_rows(np.arange(total), rank, world))
    source, target, *rest = ids[:, rows]
    sides = [tokens_from([texts[i] for i in side]) for side in (source, target)]
    chosen = torch.stack(rest, dim=1).reshape(-1) if rest else None
    negatives = None if chosen is None else tokens_from([texts[i] for i in chosen])
    return Batch(
        source=sides[0],
        target=sides[1],
        source_ids=source,
        target_ids=target,
        total=total,
        teacher_source=vectors[source],
        teacher_target=vectors[target],
        negatives=negatives,
        negatives_mask=None if chosen is None else mask[rows],
        languages=torch.stack([source, target], dim=1) % len(LANGUAGES),
        words=torch.cat([_spans(side, rows) for side in sides], dim=1),
        masked_source=_masked(sides[0], rows, 0),
        masked_target=_masked(sides[1], rows, 1),
    )


def _spans(side: Tokens, rows: Int[Tensor, "local"]) -> Int[Tensor, "local 2"]:
    """Some tokens of each sentence, which depend on its place in the global batch alone."""
    first = rows % side.lengths
    return torch.stack([first, first + 1 + (rows // 2) % (side.lengths - first)], dim=1)


def _masked(side: Tokens, rows: Int[Tensor, "local"], use: int) -> Masked:
    """The sentences with two of five tokens masked, which depend on their places alone."""
    position = torch.cat([torch.arange(int(n)) for n in side.lengths]) if len(rows) else side.ids
    drawn = lots(5, 0, use, rows[side.sentence].numpy(), position.numpy())
    masking = Masking(0.4, VOCABULARY - 1, np.arange(VOCABULARY - 1))
    ids, labels = map(torch.from_numpy, masking(side.ids.numpy(), drawn))
    return Masked(Tokens(ids, side.lengths), labels)


# --- What is checked -----------------------------------------------------------------------------------------------


def check_gradients(case: Case) -> None:
    """The loss trains every layer of the student, and neither the teacher nor the logged terms."""
    method, needs = case.build()
    student, batch = Student(), example_batch(needs)
    teacher = [side.clone().requires_grad_() for side in _teacher_vectors(batch)]
    batch = dataclasses.replace(batch, teacher_source=teacher[0], teacher_target=teacher[1])
    loss = method.loss(student, batch, ProcessGroup())
    _require(isinstance(loss, Loss), case, f"loss() gave {type(loss).__name__}; give a babeltune.method.Loss")
    torch.autograd.backward(loss.total)
    for name, parameter in student.layers.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.any())
        _require(reached, case, f"no gradient reaches the student's layer {name}; let the loss depend on `encode`")
    if case.detaches_teacher:
        still = all(side.grad is None for side in teacher)
        _require(still, case, "the teacher's vectors get a gradient; detach them")
    for name, value in {**loss.terms, **loss.diagnostics}.items():
        _require(not value.requires_grad, case, f"the logged value {name!r} has a gradient; detach it")


def check_learns(case: Case) -> None:
    """Five steps of AdamW lower the loss of one batch."""
    method, needs = case.build()
    student, batch = Student(), example_batch(needs)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    losses, before = list[float](), copy.deepcopy(method.state_dict())
    for _ in range(5):
        method.load_state_dict(before)  # a queue that has grown is another loss
        optimizer.zero_grad()
        loss = method.loss(student, batch, ProcessGroup())
        torch.autograd.backward(loss.total)
        optimizer.step()
        losses.append(loss.total.item())
    _require(losses[-1] < losses[0], case, f"five steps took the loss from {losses[0]:g} to {losses[-1]:g}")


def check_gradient_caching(case: Case) -> None:
    """A batch that is encoded in chunks (`training.chunk`) gives the gradient of the whole batch."""
    gradients = []
    for chunk in (None, 3):
        method, needs = case.build()
        student, batch = Student(), example_batch(needs)
        cached = None if chunk is None else CachedEncode(student, chunk)
        torch.autograd.backward(method.loss(cached or student, batch, ProcessGroup()).total)
        if cached is not None:
            cached.backward()
        gradients.append([p.grad for p in student.parameters()])
    for whole, chunked in zip(*gradients, strict=True):
        _require(whole is not None, case, "a parameter of the student has no gradient")
        if whole is not None:
            torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-5 * whole.abs().max().item())


def check_spare_tokens(case: Case) -> None:
    """Tokens that are in no sentence change nothing. Batches of a fixed shape have some (`training.capture`)."""
    runs = []
    for spare in (0, 5):
        method, needs = case.build()
        student = Student()
        batch = with_spare_tokens(example_batch(needs), spare) if spare else example_batch(needs)
        loss = method.loss(student, batch, ProcessGroup())
        torch.autograd.backward(loss.total)
        trained = [*student.parameters(), *method.parameters()]
        values = [loss.total, *loss.terms.values(), *loss.diagnostics.values(), *method.buffers()]
        values += [p.grad for p in trained if p.grad is not None]
        runs.append([value.detach().double() for value in values])
    for without, with_spare in zip(*runs, strict=True):
        largest = without.abs().max().item() if without.numel() else 0.0
        torch.testing.assert_close(with_spare, without, rtol=1e-6, atol=1e-6 * max(largest, 1.0))


def with_spare_tokens(batch: Batch, count: int) -> Batch:
    """The batch with `count` random tokens behind the sentences of each side."""
    longest = int(max(side.lengths.max() for side in (batch.source, batch.target)))
    ids = torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(1))

    def spare(side: Tokens) -> Tokens:
        return Tokens(torch.cat([side.ids, ids]), side.lengths, longest)

    def masked(side: Masked | None) -> Masked | None:
        return side and Masked(spare(side.tokens), torch.cat([side.labels, torch.full_like(ids, IGNORED)]))

    return dataclasses.replace(
        batch,
        source=spare(batch.source),
        target=spare(batch.target),
        negatives=batch.negatives and spare(batch.negatives),
        masked_source=masked(batch.masked_source),
        masked_target=masked(batch.masked_target),
    )


def check_saved_continues(case: Case) -> None:
    """A method that is saved and loaded into a new one goes on bit for bit. Its state is tensors alone."""
    method, needs = case.build()
    batch = example_batch(needs)
    method.loss(Student(), batch, ProcessGroup())
    saved = save({name: tensor.contiguous() for name, tensor in method.state_dict().items()})
    again, _ = case.build()
    again.load_state_dict(load(saved))
    one, other = (m.loss(Student(), batch, ProcessGroup()).total for m in (method, again))
    _require(
        torch.equal(one, other),
        case,
        f"resumed, the next loss is {other.item()!r} instead of {one.item()!r}; register what changes as a buffer",
    )


def check_nan_shows(case: Case) -> None:
    """A NaN in the student's vectors, or in those of the teacher that the method reads, makes the loss NaN."""
    method, needs = case.build()
    student, batch = Student(), example_batch(needs)
    nn.init.constant_(student.layers[0].get_parameter("bias"), torch.nan)
    total = method.loss(student, batch, ProcessGroup()).total
    _require(bool(total.isnan()), case, f"the student's vectors are NaN and the loss is {total.item():g}")
    _teacher_vectors(batch)[0][2, 3] = torch.nan
    total = method.loss(Student(), batch, ProcessGroup()).total
    if needs.teacher:
        _require(bool(total.isnan()), case, f"a vector of the teacher is NaN and the loss is {total.item():g}")
    else:
        _require(not total.isnan(), case, "the loss reads the teacher's vectors, and `needs` does not ask for them")


def check_batch_unchanged(case: Case) -> None:
    """The loss changes no tensor of its batch. The teacher's vectors need not have length 1."""
    method, needs = case.build()
    batch = example_batch(needs)
    source, target = _teacher_vectors(batch)
    batch = dataclasses.replace(batch, teacher_source=3 * source, teacher_target=2 * target)
    before = {at: tensor.clone() for at, tensor in tensors_of(batch)}
    torch.autograd.backward(method.loss(Student(), batch, ProcessGroup()).total)
    for at, tensor in tensors_of(batch):
        _require(torch.equal(tensor, before[at]), case, f"the loss changes {at}; work on a copy")


def check_no_scalar_parameter(case: Case) -> None:
    """No temperature, scale or margin is learned: each is a setting."""
    method, _ = case.build()
    for name, parameter in method.named_parameters():
        many = parameter.ndim > 0 and parameter.numel() > 1
        _require(many, case, f"the parameter {name} is a single number; make it a field of Config")


def check_single_pair(case: Case) -> None:
    """A method that needs negatives refuses a batch without any; every other one has a finite loss for one pair."""
    method, needs = case.build()
    batch = example_batch(needs, total=1)
    if not needs.in_batch_negatives or needs.hard_negatives:
        total = method.loss(Student(), batch, ProcessGroup()).total
        _require(bool(total.isfinite()), case, f"the loss of a single pair is {total.item()}")
    if not needs.in_batch_negatives:
        return
    if batch.negatives_mask is not None:
        batch = dataclasses.replace(batch, negatives_mask=torch.zeros_like(batch.negatives_mask))
    try:
        total = method.loss(Student(), batch, ProcessGroup()).total
    except TrainingError as error:
        _require("no negatives" in str(error), case, f"a batch without negatives is refused with {str(error)!r}")
    else:
        _require(False, case, f"the loss without negatives is {total.item():g}; raise TrainingError: no negatives")


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_gradients,
    check_learns,
    check_gradient_caching,
    check_spare_tokens,
    check_saved_continues,
    check_nan_shows,
    check_batch_unchanged,
    check_no_scalar_parameter,
    check_single_pair,
)
"""Every check of one process, for `pytest.mark.parametrize`."""


def name_of(check: Callable[[Case], None]) -> str:
    """A check's name in the output of a test."""
    return getattr(check, "__name__", "check").removeprefix("check_").replace("_", " ")


def _teacher_vectors(batch: Batch) -> tuple[Tensor, Tensor]:
    source, target = batch.teacher_source, batch.teacher_target
    if source is None or target is None:
        raise ValueError("the batch has no vectors of the teacher")
    return source, target


def _require(condition: bool, case: Case, words: str) -> None:
    if not condition:
        raise AssertionError(f"{case.name}: {words}")


# --- Several ranks -------------------------------------------------------------------------------------------------


def check_ranks(cases: Sequence[Case], folder: Path, worlds: Sequence[int] = WORLDS) -> None:
    """Several ranks give the loss, the terms and the gradient of one rank, also with unequal parts of a batch.

    It starts as many processes with gloo as the largest of `worlds`. They find each case's class by its module, and
    write into `folder`."""
    request = {"settings": [dict(case.settings) for case in cases], "worlds": list(worlds)}
    (folder / "ranks.json").write_text(json.dumps(request), encoding="utf-8")
    methods = [_reference(case) for case in cases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [[sys.executable, "-P", "-m", __name__, str(rank), str(folder), *methods] for rank in range(max(worlds))]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        codes = [process.wait(RANKS_TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise AssertionError(f"the ranks ended with exit codes {codes}; their output says why")
    expected = _figures(cases, ProcessGroup())
    for world in worlds:
        for rank in range(world):
            _assert_alike(f"rank {rank} of {world}", load_file(folder / f"{world}-{rank}"), expected)


def _assert_alike(who: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if tensors.keys() != expected.keys():
        raise AssertionError(f"{who} has other values: {sorted(tensors.keys() ^ expected.keys())}")
    for key, value in expected.items():
        atol = 1e-5 * value.abs().max().item() + 1e-6
        try:
            torch.testing.assert_close(tensors[key], value, rtol=1e-5, atol=atol)
        except AssertionError as error:
            raise AssertionError(f"{who}: {key} differs from one rank's; divide by batch.total: {error}") from error


def _reference(case: Case) -> str:
    """How another process finds the case's class."""
    if isinstance(case.method, str):
        return case.method
    return f"{case.method.__module__}:{case.method.__qualname__}"


def _referenced(reference: str) -> str | type[Method]:
    module, _, name = reference.partition(":")
    if not name:
        return reference
    method: type[Method] = getattr(importlib.import_module(module), name)
    return method


def _figures(cases: Sequence[Case], ranks: ProcessGroup) -> dict[str, Tensor]:
    """Every value of every case: with its number, the size of its batch, and its own name."""
    return {
        f"{number}-{case.name}/{total}/{key}": value
        for number, case in enumerate(cases)
        for total in RANK_PAIRS
        for key, value in _figures_of(case, total, ranks).items()
    }


def _figures_of(case: Case, total: int, ranks: ProcessGroup) -> dict[str, Tensor]:
    """The loss with its terms, every gradient and every buffer. Beside the loss stands a term that is not gathered."""
    method, needs = case.build()
    student = Student()
    ranks.set_sizes(local_sizes(total, ranks.world))
    batch = example_batch(needs, total, ranks.rank, ranks.world)
    loss = method.loss(student, batch, ranks)
    local = (student(batch.target) * torch.arange(DIM)).sum() / batch.total
    torch.autograd.backward(loss.total + 0.3 * local)
    trained = nn.ModuleDict({"student": student, "method": method})
    ranks.sum_gradients(trained.parameters())
    sums = ranks.sum_scalars({"loss": loss.total, **loss.terms, **loss.diagnostics})
    gradients = {name: p.grad for name, p in trained.named_parameters() if p.grad is not None}
    buffers = {name: buffer.double() for name, buffer in method.named_buffers()}
    return {name: value.float() for name, value in sums.items()} | gradients | buffers


def _run_rank(rank: int, folder: Path, methods: Sequence[str]) -> None:
    """One of the processes of `check_ranks`: it takes part in each group that has its rank."""
    request = json.loads((folder / "ranks.json").read_text(encoding="utf-8"))
    cases = [Case(_referenced(name), settings) for name, settings in zip(methods, request["settings"], strict=True)]
    for world in request["worlds"]:
        if rank < world:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
            figures = _figures(cases, ProcessGroup())
            save_file({key: value.contiguous() for key, value in figures.items()}, folder / f"{world}-{rank}")
            dist.destroy_process_group()


if __name__ == "__main__":
    _run_rank(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
