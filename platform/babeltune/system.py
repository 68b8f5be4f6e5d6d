"""The machine below a trial: what it was doing between two reports, and memory that is given back to it."""

from __future__ import annotations

import contextlib
import ctypes

import psutil
import torch

MEGABYTE = 1e6


def emulates_bf16() -> bool:
    """Whether bf16 is slow here: no GPU, and a processor without instructions for it (50 times slower than fp32)."""
    return not torch.cuda.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def give_back_memory() -> None:
    """Returns freed heap to the system, where the C library can.

    Every batch has tensors of new sizes, which leave holes: without this a worker grew from 0.8 to 3 GB in 160 steps.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class SystemMetrics:
    """Use of processor, memory, disk, network and GPU, under MLflow's names. Rates are means since the last reading."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.network = psutil.net_io_counters()
        self.read()

    def read(self) -> dict[str, float]:
        """Percentages, and megabytes (10^6 bytes); of a GPU, the memory that this process holds."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
        before, self.network = self.network, psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "process_cpu_utilization_percentage": self.process.cpu_percent(),
            "process_memory_usage_megabytes": self.process.memory_info().rss / MEGABYTE,
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_usage_percentage": disk.percent,
        }
        if self.network is not None and before is not None:
            values["network_receive_megabytes"] = (self.network.bytes_recv - before.bytes_recv) / MEGABYTE
            values["network_transmit_megabytes"] = (self.network.bytes_sent - before.bytes_sent) / MEGABYTE
        if torch.cuda.is_available():
            values["gpu_0_memory_usage_megabytes"] = torch.cuda.memory_allocated() / MEGABYTE
        return {f"system/{name}": float(value) for name, value in values.items()}
