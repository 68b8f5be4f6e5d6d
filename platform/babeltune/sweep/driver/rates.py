"""The two rates by which a sweep's `training.compute` counts, measured once and kept in its folder."""

from collections.abc import Callable

import ray

from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import RATES, SweepFolder
from babeltune.sweep.workers.pool_settings import worker_threads
from babeltune.sweep.workers.tasks import fetched


def measure_rates(sweep: Sweep, folder: SweepFolder, cluster: Cluster, poll: Callable[[], None]) -> None:
    """Leaves them in `rates.json` if the sweep needs them and its file does not say. A worker measures them while no
    trial trains."""
    if sweep.budget.unit == "pairs" or sweep.training.rates is not None or folder.read(RATES) is not None:
        return
    task = ray.remote(num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus)(worker_rates)
    threads = worker_threads(cluster.cpus_per_worker)
    rates = fetched(task.remote(threads), poll, seconds=cluster.progress_timeout)
    folder.write(RATES, {"rates": rates})
    folder.note(
        f"measured: a worker does {rates[0]:.1f} thousand million operations, or moves {rates[1]:.1f} thousand million "
        "bytes, in a second"
    )


def worker_rates(threads: int) -> tuple[float, float]:
    """`measured_rates` of this process' device, with this number of threads."""
    import torch  # here, since the driver does without

    from babeltune.training.compute import measured_rates

    torch.set_num_threads(threads)
    return measured_rates(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
