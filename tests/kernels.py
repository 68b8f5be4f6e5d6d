"""Sees which of torch's kernels run, through its own hook for that: nothing of torch is replaced."""

from torch.utils._python_dispatch import TorchDispatchMode


class SeenKernels(TorchDispatchMode):
    """Within it, `calls` has the arguments of each call of a kernel of this name, backward passes included."""

    def __init__(self, name):
        super().__init__()
        self.name, self.calls = name, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().partition(".")[0] == self.name:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))
