"""Use of GPUs, from NVIDIA's management library NVML through nvidia-ml-py."""

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
    """A GPU over some time.

    Shares (0 to 1) of busy time and of memory in use; bytes/s received from and sent to the host.
    """

    name: str
    busy: float
    memory: float
    rx_nbytes_s: float = 0.0
    tx_nbytes_s: float = 0.0


@dataclass(frozen=True)
class GpuReading:
    """A GPU at one moment.

    `busy` is the share (0 to 1) of time in which a kernel ran, or None if unknown. Memory is in
    bytes; `own_nbytes` is the memory that one process uses.
    """

    number: int
    name: str
    busy: float | None
    used_nbytes: int
    all_nbytes: int
    own_nbytes: int


def nvml() -> Any:
    """Return the bindings of NVML. Raise MissingExtra without nvidia-ml-py."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingExtra("nvidia-ml-py", "gpu") from error


def _devices(library: Any) -> list[Any]:
    """Return a handle of each GPU; none without a driver, a GPU or permission."""
    with contextlib.suppress(Exception):  # NVML has a different error for each of these
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        return [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    return []


def _name(library: Any, device: Any) -> str:
    name = library.nvmlDeviceGetName(device)
    return name.decode() if isinstance(name, bytes) else str(name)


def gpu_names() -> tuple[list[str], str]:
    """Return the names of the GPUs, and why there is none."""
    try:
        library = nvml()
    except MissingExtra as error:
        return [], str(error)
    devices = _devices(library)
    names = [_name(library, device) for device in devices]
    if devices:
        _value_or_0(library.nvmlShutdown)
    return names, ""


class GpuSampler:
    """Mean use of every GPU, from repeated samples; of none without a library or a device."""

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

    def sample(self) -> None:
        """Sample every GPU."""
        self._samples += 1
        for device, sums in zip(self._devices, self._sums, strict=True):
            for i, value in enumerate(self._values(device)):
                sums[i] += value

    def _values(self, device: Any) -> tuple[float, float, float, float]:
        """Return the figures of a GpuUsage."""
        library: Any = self._library
        received, sent = library.NVML_PCIE_UTIL_RX_BYTES, library.NVML_PCIE_UTIL_TX_BYTES
        return (
            _value_or_0(lambda: library.nvmlDeviceGetUtilizationRates(device).gpu / 100),
            _value_or_0(lambda: _memory_share(library.nvmlDeviceGetMemoryInfo(device))),
            _value_or_0(lambda: library.nvmlDeviceGetPcieThroughput(device, received) * KIB),
            _value_or_0(lambda: library.nvmlDeviceGetPcieThroughput(device, sent) * KIB),
        )

    def means(self) -> tuple[GpuUsage, ...]:
        """Return the means since `begin`."""
        samples = self._samples or 1
        return tuple(
            GpuUsage(_name(self._library, device), *(s / samples for s in sums))
            for device, sums in zip(self._devices, self._sums, strict=True)
        )

    def stop(self) -> None:
        """Close the library."""
        if self._devices:
            _value_or_0(self._library.nvmlShutdown)
            self._devices, self._sums = [], []


def _value_or_0(query: Callable[[], Any]) -> float:
    """Return a value of NVML, or 0 if the device does not support it."""
    with contextlib.suppress(Exception):  # NVML has many errors for unsupported queries
        return float(query())
    return 0.0


def _memory_share(memory: Any) -> float:
    return float(memory.used / memory.total)


class GpuMeter:
    """Samples of the first GPU, at most five a second. Without a GPU every figure is None."""

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
        """Read the GPU, unless the last sample is recent."""
        if self.name is None or now_s < self._next_s:
            return
        self._next_s = now_s + METER_EVERY_S
        self._busy.append(self._library.nvmlDeviceGetUtilizationRates(self._device).gpu / 100)
        self.nbytes = int(self._library.nvmlDeviceGetMemoryInfo(self._device).used)

    @property
    def utilisation(self) -> float | None:
        """The mean share (0 to 1) of time in which a kernel ran."""
        return sum(self._busy) / len(self._busy) if self._busy else None


def readings(pid: int) -> list[GpuReading]:
    """Return the present state of every GPU; none without a driver.

    The memory of process `pid` is unknown if it is in another PID namespace. Raise MissingExtra
    without nvidia-ml-py.
    """
    library = nvml()
    devices = _devices(library)
    try:
        return [_reading(library, n, device=device, pid=pid) for n, device in enumerate(devices)]
    except library.NVMLError:
        return []
    finally:
        if devices:
            library.nvmlShutdown()


def _reading(library: Any, n: int, *, device: Any, pid: int) -> GpuReading:
    memory = library.nvmlDeviceGetMemoryInfo(device)
    try:
        busy: float | None = library.nvmlDeviceGetUtilizationRates(device).gpu / 100
        running = library.nvmlDeviceGetComputeRunningProcesses(device)
    except library.NVMLError:  # MIG does not report utilisation
        busy, running = None, []
    own = sum(p.usedGpuMemory or 0 for p in running if p.pid == pid)
    name = _name(library, device)
    return GpuReading(n, name, busy, int(memory.used), int(memory.total), own)
