"""The GPUs of this machine as NVML sees them."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.errors import MissingExtra

try:
    import pynvml
except ImportError as error:
    raise MissingExtra("nvidia-ml-py", "gpu") from error


@dataclass(frozen=True)
class GpuReading:
    """One GPU: the share (0 to 1) of time in which a kernel ran, None where it does not say, and
    its memory in bytes; `own_nbytes` is what the process takes that was asked about, 0 for one that
    does not use it."""

    number: int
    name: str
    busy: float | None
    used_nbytes: int
    all_nbytes: int
    own_nbytes: int


def gpus(pid: int) -> list[GpuReading]:
    """Every GPU; none where there is no driver. A process in another PID namespace is not
    recognised as its own."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(n, pid) for n in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpu(n: int, pid: int) -> GpuReading:
    device = pynvml.nvmlDeviceGetHandleByIndex(n)
    memory, name = pynvml.nvmlDeviceGetMemoryInfo(device), pynvml.nvmlDeviceGetName(device)
    try:
        busy: float | None = pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    except pynvml.NVMLError:  # with MIG there is no utilisation
        busy, running = None, []
    own = sum(p.usedGpuMemory or 0 for p in running if p.pid == pid)
    text = name.decode() if isinstance(name, bytes) else str(name)
    return GpuReading(n, text, busy, int(memory.used), int(memory.total), own)
