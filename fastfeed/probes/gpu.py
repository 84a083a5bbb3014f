"""Accelerators, through NVIDIA's management library, where nvidia-ml-py is installed and finds
one."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

KIB = 1024
DRIVER = "/dev/nvidiactl"


@dataclass(frozen=True)
class GpuUsage:
    """An accelerator: shares (0 to 1) of time busy and of memory, bytes/s over the bus from and to
    the host."""

    name: str
    busy: float
    memory: float
    rx_nbytes_s: float = 0.0
    tx_nbytes_s: float = 0.0


class Gpus:
    """Samples of every accelerator; of none where there is no library or no device."""

    def __init__(self, library: ModuleType | Any | None = None) -> None:
        self._library = library
        self._devices: list[Any] = []
        self._sums: list[list[float]] = []
        self._looks = 0
        self.missing = ""
        try:
            self._library = library or importlib.import_module("pynvml")
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
            self._devices = [self._library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except ImportError:
            if os.path.exists(DRIVER):
                self.missing = (
                    "accelerators: nvidia-ml-py is not installed (pip install fastfeed[diagnose])"
                )
        except Exception:  # its own class of errors: no driver, no device, no permission
            self._devices = []
        self.begin()

    def begin(self) -> None:
        """Forgets what was."""
        self._sums = [[0.0] * 4 for _ in self._devices]
        self._looks = 0

    def look(self) -> None:
        """A sample of each."""
        self._looks += 1
        for device, sums in zip(self._devices, self._sums, strict=True):
            for i, value in enumerate(self._values(device)):
                sums[i] += value

    def _values(self, device: Any) -> tuple[float, float, float, float]:
        """Shares of time busy and of memory used, bytes/s received and sent over the bus."""
        library: Any = self._library
        busy = self._ask(lambda: library.nvmlDeviceGetUtilizationRates(device).gpu / 100)
        memory = self._ask(lambda: _share(library.nvmlDeviceGetMemoryInfo(device)))
        rx, tx = (
            self._ask(
                lambda counter=counter: library.nvmlDeviceGetPcieThroughput(device, counter) * KIB
            )
            for counter in (library.NVML_PCIE_UTIL_RX_BYTES, library.NVML_PCIE_UTIL_TX_BYTES)
        )
        return busy, memory, rx, tx

    @staticmethod
    def _ask(question: Any) -> float:
        """0 where a device does not tell."""
        try:
            return float(question())
        except Exception:  # NVML has an error of its own for each thing that a device cannot do
            return 0.0

    def gpus(self) -> tuple[GpuUsage, ...]:
        """The means since the beginning."""
        looks = self._looks or 1
        names = [self._library.nvmlDeviceGetName(device) for device in self._devices]  # type: ignore[union-attr]
        texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
        return tuple(
            GpuUsage(n, *(s / looks for s in sums))
            for n, sums in zip(texts, self._sums, strict=True)
        )

    def stop(self) -> None:
        """Lets the library go."""
        if self._devices:
            self._ask(self._library.nvmlShutdown)  # type: ignore[union-attr]
            self._devices, self._sums = [], []


def _share(memory: Any) -> float:
    return float(memory.used / memory.total)
