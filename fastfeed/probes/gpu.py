"""GPUs through NVIDIA's management library, NVML: where nvidia-ml-py is installed and finds one."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastfeed.errors import MissingExtra

KIB = 1024
DRIVER = "/dev/nvidiactl"
METER_EVERY_S = 0.2  # NVML averages utilisation over about this time


@dataclass(frozen=True)
class GpuUsage:
    """A GPU over some time: shares (0 to 1) of time busy and of memory, bytes/s over the bus from
    and to the host."""

    name: str
    busy: float
    memory: float
    rx_nbytes_s: float = 0.0
    tx_nbytes_s: float = 0.0


@dataclass(frozen=True)
class GpuReading:
    """A GPU now: the share (0 to 1) of time in which a kernel ran, None where it is not known, and
    its memory in bytes; `own_nbytes` is what one process uses of it."""

    number: int
    name: str
    busy: float | None
    used_nbytes: int
    all_nbytes: int
    own_nbytes: int


def nvml() -> Any:
    """Return the bindings of NVML; raise MissingExtra without nvidia-ml-py."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingExtra("nvidia-ml-py", "gpu") from error


def _devices(library: Any) -> list[Any]:
    """Return a handle of each GPU; none where there is no driver, no GPU or no permission."""
    with contextlib.suppress(Exception):  # NVML has an error of its own for each of these
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        return [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    return []


def _name(library: Any, device: Any) -> str:
    name = library.nvmlDeviceGetName(device)
    return name.decode() if isinstance(name, bytes) else str(name)


class Gpus:
    """Samples of every GPU; of none where there is no library or no device."""

    def __init__(self, library: Any = None) -> None:
        self._devices: list[Any] = []
        self.missing = ""
        try:
            self._library = library or nvml()
            self._devices = _devices(self._library)
        except MissingExtra:
            if os.path.exists(DRIVER):
                self.missing = (
                    "accelerators: nvidia-ml-py is not installed (pip install fastfeed[diagnose])"
                )
        self.begin()

    def begin(self) -> None:
        """Drop earlier samples."""
        self._sums = [[0.0] * 4 for _ in self._devices]
        self._samples = 0

    def look(self) -> None:
        """Take a sample of each."""
        self._samples += 1
        for device, sums in zip(self._devices, self._sums, strict=True):
            for i, value in enumerate(self._values(device)):
                sums[i] += value

    def _values(self, device: Any) -> tuple[float, float, float, float]:
        """Return shares of time busy and of memory used, bytes/s received and sent over the bus."""
        library: Any = self._library
        received, sent = library.NVML_PCIE_UTIL_RX_BYTES, library.NVML_PCIE_UTIL_TX_BYTES
        busy = _known(lambda: library.nvmlDeviceGetUtilizationRates(device).gpu / 100)
        memory = _known(lambda: _share(library.nvmlDeviceGetMemoryInfo(device)))
        rx = _known(lambda: library.nvmlDeviceGetPcieThroughput(device, received) * KIB)
        tx = _known(lambda: library.nvmlDeviceGetPcieThroughput(device, sent) * KIB)
        return busy, memory, rx, tx

    def gpus(self) -> tuple[GpuUsage, ...]:
        """Return the means since the beginning."""
        samples = self._samples or 1
        return tuple(
            GpuUsage(_name(self._library, device), *(s / samples for s in sums))
            for device, sums in zip(self._devices, self._sums, strict=True)
        )

    def stop(self) -> None:
        """Close the library."""
        if self._devices:
            _known(self._library.nvmlShutdown)
            self._devices, self._sums = [], []


def _known(question: Callable[[], Any]) -> float:
    """Return an answer of NVML; 0 where the device has none."""
    try:
        return float(question())
    except Exception:  # NVML has an error of its own for each thing that a device cannot do
        return 0.0


def _share(memory: Any) -> float:
    return float(memory.used / memory.total)


class GpuMeter:
    """Samples of the first GPU, at most five a second; without one every figure is None."""

    def __init__(self, library: Any = None) -> None:
        self.name: str | None = None
        self.nbytes: int | None = None
        self._device: Any = None
        self._next_s = 0.0
        self._busy: list[float] = []
        with contextlib.suppress(MissingExtra):
            self._library = library or nvml()
            for device in _devices(self._library)[:1]:
                self._device, self.name = device, _name(self._library, device)

    def sample(self, now_s: float) -> None:
        """Read the GPU, unless it was read just now."""
        if self.name is None or now_s < self._next_s:
            return
        self._next_s = now_s + METER_EVERY_S
        self._busy.append(self._library.nvmlDeviceGetUtilizationRates(self._device).gpu / 100)
        self.nbytes = int(self._library.nvmlDeviceGetMemoryInfo(self._device).used)

    @property
    def utilisation(self) -> float | None:
        """Mean share (0 to 1) of time in which a kernel ran."""
        return sum(self._busy) / len(self._busy) if self._busy else None


def readings(pid: int) -> list[GpuReading]:
    """Return every GPU now; none where there is no driver. Raise MissingExtra without nvidia-ml-py.

    A process in another PID namespace is not recognised as its own.
    """
    library = nvml()
    found = _devices(library)
    try:
        return [_reading(library, n, device=device, pid=pid) for n, device in enumerate(found)]
    except library.NVMLError:
        return []
    finally:
        if found:
            library.nvmlShutdown()


def _reading(library: Any, n: int, *, device: Any, pid: int) -> GpuReading:
    memory = library.nvmlDeviceGetMemoryInfo(device)
    try:
        busy: float | None = library.nvmlDeviceGetUtilizationRates(device).gpu / 100
        running = library.nvmlDeviceGetComputeRunningProcesses(device)
    except library.NVMLError:  # with MIG there is no utilisation
        busy, running = None, []
    own = sum(p.usedGpuMemory or 0 for p in running if p.pid == pid)
    name = _name(library, device)
    return GpuReading(n, name, busy, int(memory.used), int(memory.total), own)
