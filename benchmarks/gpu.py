"""What a GPU does: training against sentence-transformers in bf16, the soft loss of 65,536 pairs, mining, two ranks.

Wall seconds are measured, after the GPU has ended all that it was given. `train`: two Transformer students, batches of
512 pairs; ours is a trial's own step, the peer is sentence-transformers' trainer with its weights, batches, optimizer
and bf16. It runs with torch's attention and with FlashAttention-2, each with and without processes that tokenize
beside it, and the fastest counts. The first steps do not count. `soft_loss`: value and gradient of 65,536 pairs, the
gradient of some rows compared with the formula in fp64, and the full matrices beside it as far as they have room.
`mining`: neighbours of a million vectors in a million others, some compared with fp64. `ranks`: two ranks on one GPU.

`python -m benchmarks.gpu --json docs/measured/gpu.json` writes the figures; `--only PART` measures some parts.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from datasets import disable_progress_bars
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from torch import distributed as dist
from transformers import TrainerCallback
from transformers.utils import is_flash_attn_2_available, logging

from babeltune.apps.mining.tiles import both_ways
from babeltune.models.encoder import Encoder
from babeltune.training.averages import Averages
from babeltune.training.sampler import own_rows
from benchmarks.__main__ import commit
from benchmarks.soft_loss import DIM, TEMPERATURE, Vectors, full_matrix, make_vectors, tiled
from benchmarks.train import (
    SCALE,
    batches,
    export_untrained,
    largest_difference,
    load,
    make_task,
    own_gradients,
    peer_gradients,
    train_peer,
)
from benchmarks.work import describe_lengths, start

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial

    Batches = list[tuple[list[str], list[str]]]

GOAL = 1.5
"""How many times faster than the peer a step is to be."""
STUDENTS: dict[str, dict[str, Any]] = {
    "6 layers of 384": {"layers": 6, "width": 384, "heads": 12, "feed_forward": 1536},
    "12 layers of 768": {"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072},
}
STEPS, SKIPPED, BATCH, ROUNDS = 30, 6, 512, 2
WORKERS = 4
"""Processes that tokenize for the peer."""
FP32_DIFFERENCE = 1e-3
"""Largest difference of the gradients in fp32, relative to the largest gradient."""
SOFT_PAIRS, BOTH_PAIRS, CHECKED = 65_536, 16_384, 512
SOFT_DIFFERENCE = 1e-3
MINED, FIRST_MINED, NEIGHBOURS, MOST_MINING_S = 1_000_000, 200_000, 4, 200.0
DONE = "trained"


def synchronized() -> float:
    """The time, once the GPU has ended all that it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(function: Callable[[], object], times: int = 5) -> float:
    """Median seconds of one call, after one that does not count."""
    function()
    seconds = []
    for _ in range(times):
        started = synchronized()
        function()
        seconds.append(synchronized() - started)
    return statistics.median(seconds)


def peak(function: Callable[[], object]) -> int:
    """Bytes on the GPU at the most, above those before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# --- Training -------------------------------------------------------------------------------------------------------


class Clock(TrainerCallback):  # type: ignore[misc]
    """The trainer's seconds from the end of its first steps to the end of its last."""

    seconds = 0.0

    def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
        if state.global_step == SKIPPED:
            self.started = synchronized()
        elif state.global_step == STEPS:
            self.seconds = synchronized() - self.started


def in_bf16(trial: Trial) -> Trial:
    """The same trial in bf16."""
    return replace(trial, training=replace(trial.training, precision="bf16"))


def ours(trial: Trial, prepared: Prepared) -> float:
    """Seconds of the steps that count."""
    run, meter = start(trial, prepared, "cuda"), Averages(every=len(prepared.pairs()))
    started = 0.0
    for step in range(STEPS):
        if step == SKIPPED:
            started = synchronized()
        run.one_step(step, meter, flush=False)
    return synchronized() - started


def peers(trial: Trial, exported: Path, order: Batches, scratch: Path) -> dict[str, Callable[[], float]]:
    """sentence-transformers by how it runs, each a function that returns its seconds."""

    def run(attention: str, workers: int) -> float:
        model, clock = load(exported, "cuda", attn_implementation=attention), Clock()
        train_peer(model, trial, order, scratch, clock, bf16=True, dataloader_num_workers=workers)
        return clock.seconds

    kinds = ("sdpa", "flash_attention_2") if is_flash_attn_2_available() else ("sdpa",)
    return {
        f"{kind}, {workers} processes": functools.partial(run, kind, workers)
        for kind in kinds
        for workers in (0, WORKERS)
    }


def gradients(trial: Trial, prepared: Prepared) -> dict[str, Tensor]:
    """Ours, of the first batch, which this process shares with the other ranks if there are some."""
    run = start(trial, prepared, "cuda")
    rows, (rank, world) = run.schedule.rows(0), (run.ranks.rank, run.ranks.world)
    run.train_step.backward(run.reader.batch(own_rows(rows, rank, world), len(rows), first=rank * len(rows) // world))
    return own_gradients(run)


def gradients_of_peer(exported: Path, batch: tuple[list[str], list[str]], *, bf16: bool) -> dict[str, Tensor]:
    """The peer's."""
    model = load(exported, "cuda", attn_implementation="sdpa")
    features = [
        {key: value.cuda() if isinstance(value, Tensor) else value for key, value in model.preprocess(side).items()}
        for side in batch
    ]
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        MultipleNegativesRankingLoss(model, scale=SCALE)(features, None).backward()
    return peer_gradients(model)


def train_one(student: dict[str, Any], storage: Path) -> dict[str, Any]:
    """Both trainers on one student."""
    given = {"vocabulary": 16_000, "max_tokens": 128, **student}
    trial, prepared, text = make_task(storage, STEPS, BATCH, **given)
    exported, half = storage / f"student-{student['layers']}", in_bf16(trial)
    export_untrained(trial, prepared, exported)
    order = batches(trial, prepared)
    exact, theirs = gradients(trial, prepared), gradients_of_peer(exported, order[0], bf16=False)
    difference = {
        "both in fp32": largest_difference(exact, theirs),
        "ours in bf16 and fp32": largest_difference(gradients(half, prepared), exact),
        "peer in bf16 and fp32": largest_difference(gradients_of_peer(exported, order[0], bf16=True), theirs),
    }
    racers: dict[str, Callable[[], float]] = {
        "ours": functools.partial(ours, half, prepared),
        **peers(trial, exported, order, storage / "peer"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for _ in range(ROUNDS):
        for name, racer in racers.items():
            seconds[name].append(racer())
            print(f"{name}: {seconds[name][-1]:.3g} s", flush=True)
    pairs = (STEPS - SKIPPED) * BATCH
    speeds = {name: pairs / statistics.median(found) for name, found in seconds.items()}
    fastest = max((name for name in speeds if name != "ours"), key=lambda name: speeds[name])
    ratios = [theirs / own for own, theirs in zip(seconds["ours"], seconds[fastest], strict=True)]
    run = start(half, prepared, "cuda")
    assert isinstance(run.train_step.encoder, Encoder)
    memory = {"ours": peak(lambda: run.one_step(0, Averages(every=1), flush=False))}
    found = {
        "text": f"{text}: {describe_lengths(prepared)}",
        "seconds": seconds,
        "pairs": pairs,
        "pairs_per_second": speeds,
        "fastest_peer": fastest,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "gradient_difference": difference,
        "step_memory": memory,
    }
    print(json.dumps(found, indent=1), flush=True)
    return found


def train(storage: Path) -> dict[str, Any]:
    """Pairs a second of both trainers on each student."""
    return {name: train_one(student, storage) for name, student in STUDENTS.items()}


# --- The soft loss --------------------------------------------------------------------------------------------------


def formula(given: Vectors, rows: Tensor, part: int = 4096) -> Tensor:
    """The gradient of some source vectors in fp64, from the formula's derivative, in parts of the columns.

    dL/dS_ij = (softmax_j(S)_ij + softmax_i(S)_ij - w_ij - w_ji) / N."""
    s, t = given.student.double().chunk(2)
    a, total = given.teacher.double(), len(given.teacher)
    column_sums, label_sums = (
        torch.cat([(x @ y[at : at + part].T / TEMPERATURE).logsumexp(0) for at in range(0, total, part)])
        for x, y in ((s, t), (a, a))
    )
    row_sums = (s[rows] @ t.T / TEMPERATURE).logsumexp(1)
    similarities, labels = s[rows] @ t.T / TEMPERATURE, a[rows] @ a.T / TEMPERATURE
    change = (similarities - row_sums[:, None]).exp() + (similarities - column_sums).exp()
    change -= (labels - label_sums[rows, None]).exp() + (labels - label_sums).exp()
    above = change @ t / (total * TEMPERATURE)
    return above - (above * s[rows]).sum(1, keepdim=True) * s[rows]  # the vectors have length 1


def cost(function: Callable[[], object]) -> dict[str, Any]:
    """Seconds and bytes on the GPU."""
    return {"seconds": timed(function), "bytes": peak(function)}


def soft_loss(_: Path) -> dict[str, Any]:
    """Seconds and memory of value and gradient of the soft contrastive loss."""
    found: dict[str, Any] = {}
    for pairs in (BOTH_PAIRS, SOFT_PAIRS):
        made = make_vectors(pairs, DIM)
        given = Vectors(made.student.cuda(), made.teacher.cuda())
        rows = torch.randperm(pairs, generator=torch.Generator().manual_seed(1))[:CHECKED].cuda()
        gradient = tiled(given)[1]
        exact = formula(given, rows)
        difference = float((gradient[rows] - exact).abs().max() / exact.abs().max())
        torch.cuda.empty_cache()
        own = cost(functools.partial(tiled, given))
        try:
            peer = cost(functools.partial(full_matrix, given))
        except torch.OutOfMemoryError as error:
            peer = {"out of memory": str(error).split(". ")[0]}
        torch.cuda.empty_cache()
        found[str(pairs)] = {"ours": own, "full matrices": peer, "gradient_difference": difference}
    return found


# --- Mining ---------------------------------------------------------------------------------------------------------


def mining(_: Path) -> dict[str, Any]:
    """Seconds in which the nearest of a million vectors are found in a million others, both ways and exactly."""
    found: dict[str, Any] = {}
    for count in (FIRST_MINED, MINED):
        if found and (guess := list(found.values())[-1]["seconds"] * (count / FIRST_MINED) ** 2) > MOST_MINING_S:
            found[str(count)] = {"not measured": f"it would take some {guess:.0f} s"}
            break
        torch.manual_seed(0)
        x = torch.nn.functional.normalize(torch.randn(count, DIM, device="cuda"))
        y = torch.nn.functional.normalize(x + 0.04 * torch.randn(count, DIM, device="cuda"))
        left, right = x.cpu().numpy(), y.cpu().numpy()
        started = synchronized()
        matches = both_ways(left, right, NEIGHBOURS)
        seconds = synchronized() - started
        rows = torch.randperm(count)[:CHECKED]
        cosines = torch.cat([x[rows].double() @ y[at : at + 65_536].double().T for at in range(0, count, 65_536)], 1)
        exact = cosines.topk(NEIGHBOURS, dim=1).indices.cpu()
        same = float((matches.forward.index[rows] == exact).float().mean())
        own = float((matches.forward.index[:, 0] == torch.arange(count)).float().mean())
        found[str(count)] = {
            "seconds": seconds,
            "cosines_per_second": count * count / seconds,
            "as_in_fp64": same,
            "found_its_pair": own,
        }
        del x, y, cosines
        torch.cuda.empty_cache()
    return found


# --- Two ranks ------------------------------------------------------------------------------------------------------


def one_rank(rank: int, backend: str, meeting: str, trial: Trial, prepared: Prepared, pipe: Any) -> None:
    """A rank's process: what came of it, and its gradients."""
    try:
        torch.cuda.set_device(0)
        dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=2)
        pipe.send((DONE, {name: gradient.cpu().numpy() for name, gradient in gradients(trial, prepared).items()}))
    except Exception as error:  # what a backend says is what is asked
        pipe.send((f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}", {}))


def together(backend: str, trial: Trial, prepared: Prepared, storage: Path) -> list[tuple[str, dict[str, Any]]]:
    """What two ranks on one GPU say."""
    context, meeting = multiprocessing.get_context("spawn"), storage / f"meeting-{backend}"
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(target=one_rank, args=(rank, backend, str(meeting), trial, prepared, ends[rank][1]))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    said = [end.recv() if end.poll(60) else ("no answer within 60 s", {}) for end, _ in ends]
    for process in processes:
        process.terminate()
        process.join()
    return said


def ranks(storage: Path) -> dict[str, Any]:
    """What NCCL and gloo do with two ranks on one GPU, and how far the gradients are from those of one rank."""
    trial, prepared, _ = make_task(storage, 2, 256, layers=2, width=256, heads=4, feed_forward=1024)
    alone = {name: gradient.cpu() for name, gradient in gradients(trial, prepared).items()}
    found: dict[str, dict[str, Any]] = {}
    for backend in ("nccl", "gloo"):
        said = together(backend, trial, prepared, storage)
        found[backend] = {"ranks": [words for words, _ in said]}
        if all(words == DONE for words, _ in said):
            theirs = [{name: torch.from_numpy(value) for name, value in values.items()} for _, values in said]
            found[backend]["gradient_difference"] = max(largest_difference(values, alone) for values in theirs)
    return found


# --- All ------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "ranks": ranks,
    "soft_loss": soft_loss,
    "train": train,
    "mining": mining,
}


def faults(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is not as promised."""
    for part, values in found.items():
        if "error" in values:
            yield f"{part}: {values['error']}"
    for name, row in found.get("train", {}).items():
        if name == "error":
            continue
        if row["ratio"] < GOAL:
            yield f"{name}: {row['ratio']:.3g} times the peer's speed, and the goal is {GOAL:g}"
        if row["gradient_difference"]["both in fp32"] > FP32_DIFFERENCE:
            yield f"{name}: the gradients differ in fp32"
    for name, row in found.get("soft_loss", {}).items():
        if name != "error" and row["gradient_difference"] > SOFT_DIFFERENCE:
            yield f"soft loss of {name} pairs: the gradient differs from the formula's"


def main() -> None:
    """Measures and prints all parts, and ends with 1 if something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="this part; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here; run it where there is one")
    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    found: dict[str, Any] = {}
    for name in given.only or PARTS:
        started = time.perf_counter()
        with TemporaryDirectory() as temporary:
            try:
                found[name] = PARTS[name](Path(temporary))
            except Exception as error:  # the other parts are measured all the same
                traceback.print_exc()
                found[name] = {"error": f"{type(error).__name__}: {error}"}
        broken = list(faults(found))
        if given.json:
            facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
            given.json.write_text(json.dumps({**facts, **found, "broken": broken}, indent=1) + "\n", encoding="utf-8")
        print(f"{name}, {time.perf_counter() - started:.0f} s: {json.dumps(found[name], indent=1)}", flush=True)
    for fault in faults(found):
        print(f"gpu: {fault}", file=sys.stderr)
    sys.exit(1 if any(faults(found)) else 0)


if __name__ == "__main__":
    main()
