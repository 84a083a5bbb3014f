"""GPU utilisation and memory through NVML, where there is a GPU and nvidia-ml-py."""

from __future__ import annotations

from typing import Any

EVERY_S = 0.2  # NVML averages utilisation over about this time


class GpuMeter:
    """Samples of the first GPU; without one every figure is None."""

    def __init__(self) -> None:
        self._nvml, self._device = _open()
        self._next_s = 0.0
        self._samples: list[float] = []
        self.nbytes: int | None = None

    def sample(self, now_s: float) -> None:
        """Reads the GPU, at most five times a second."""
        if self._nvml is None or now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._samples.append(self._nvml.nvmlDeviceGetUtilizationRates(self._device).gpu / 100)
        self.nbytes = int(self._nvml.nvmlDeviceGetMemoryInfo(self._device).used)

    @property
    def utilisation(self) -> float | None:
        """Mean share (0 to 1) of time in which a kernel ran."""
        return sum(self._samples) / len(self._samples) if self._samples else None


def gpu_name() -> str | None:
    """The first GPU's name."""
    nvml, device = _open()
    if nvml is None:
        return None
    name = nvml.nvmlDeviceGetName(device)
    return name.decode() if isinstance(name, bytes) else str(name)


def _open() -> tuple[Any, Any]:
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return None, None
