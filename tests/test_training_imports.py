"""Training runs where there is torch and transformers and nothing else of ours; what does not train loads neither."""

import subprocess
import sys

import pytest

from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PLATFORM = (
    *("errors", "method", "method.distributed", "method.gradcache", "method.masked_lm", "method.matryoshka"),
    *("method.negative_queue", "method.tiled_contrastive", "method.views", "schema.records", "testing"),
    *("data.prepared", "data.store", "data.stored_arrays", "data.tokens", "models.encoder", "models.packing"),
    *("evaluation.bitext", "evaluation.clustering", "evaluation.evaluate", "evaluation.knn", "evaluation.mining_f1"),
    *("evaluation.probing", "training.checkpoint", "training.sampler", "training.trainer", "sweep.workers.run_trial"),
)
METHODS = (
    *("soft_contrastive", "mse_distillation", "translation_ranking", "laser3_co", "lealla", "combined"),
    *("dimension_reduction", "bilingual_aligner", "ml_ctl"),
)
MODULES = [*(f"babeltune.{name}" for name in PLATFORM), *(f"babeltune_methods.{name}" for name in METHODS)]
BLOCKED = """
import importlib, importlib.machinery, importlib.metadata as metadata, re, sys

def closure(names):
    found, waiting = set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0] for need in needed if "extra ==" not in need]
    return found

allowed = closure(["torch", "transformers"]) - {"typer", "pydantic", "pydantic-core"} | {"babeltune"}
packages = metadata.packages_distributions()

class Gate(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        owners = {re.sub(r"[-_.]+", "-", owner).lower() for owner in packages.get(name.partition(".")[0], ())}
        if owners and not owners & allowed:
            return None  # as if it were not installed
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Gate
"""


def run(program):
    return subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("peer", ["pydantic", "ray", "optuna", "mlflow", "pandas", "sentence_transformers"])
def test_the_gate_is_closed_to(peer):
    result = run(f"import {peer}")
    assert result.returncode != 0
    assert "ModuleNotFoundError" in result.stderr


def test_training_imports_only_torch_transformers_and_what_they_bring():
    result = run(f"for name in {MODULES!r}: importlib.import_module(name)")
    assert result.returncode == 0, result.stderr


ACTORS = (
    "babeltune.sweep.workers.ray_train",
    "babeltune.sweep.workers.dispatcher",
    "babeltune.sweep.state.lease_actor",
)


def test_a_sweeps_actors_that_do_not_train_start_without_torch():
    """The first worker group waits for them, and torch is half of what a process imports."""
    program = f"""
import importlib, sys
for name in {ACTORS!r}: importlib.import_module(name)
sys.exit(bool({{"torch", "transformers"}} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stderr
