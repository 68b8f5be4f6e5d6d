"""The load of a trial's machine between two of its reports, under MLflow's own names of system metrics."""

import psutil
import torch

MEGABYTE = 1e6


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
