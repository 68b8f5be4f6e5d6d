"""Sees, records and replays torch's kernels, through its own hook for that: nothing of torch is replaced."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class SeenKernels(TorchDispatchMode):
    """Within it, `calls` has the arguments of each call of a kernel of this name, backward passes included."""

    def __init__(self, name):
        super().__init__()
        self.name, self.calls = name, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().partition(".")[0] == self.name:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Within it, every kernel is kept with its tensors. `replay` runs the same kernels on the same memory, with the
    numbers that the program gave them then: a CUDA graph's way, on a CPU."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeRecorder:
    """Records steps on tapes, as `babeltune.training.capture.CudaGraphs` does on a GPU."""

    def __init__(self, short="", error=""):
        self.short, self.error, self.tapes, self.eager_steps = short, error, [], 0

    def eager(self, work):
        self.eager_steps += 1
        return work()

    def record(self, work):
        if self.error:
            raise RuntimeError(self.error)
        tape = Tape()
        with tape:
            values = work()
        self.tapes.append(tape)

        def replay():
            tape.replay()
            return values

        return replay, values

    def shortage(self):
        return self.short

    def release(self):
        self.tapes.clear()
