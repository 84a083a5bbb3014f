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


class Gpus:
    """The GPUs of this machine; none without a driver, a GPU or permission. Raise MissingExtra
    without nvidia-ml-py."""

    def __init__(self, library: Any = None) -> None:
        try:
            self._library: Any = library or importlib.import_module("pynvml")
        except ImportError as error:
            raise MissingExtra("nvidia-ml-py", "gpu") from error
        self._devices: list[Any] = []
        with contextlib.suppress(Exception):  # NVML has a different error for each of these
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
            self._devices = [self._library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        names = map(self._library.nvmlDeviceGetName, self._devices)
        self.names = [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    def readings(self, pid: int = 0) -> list[GpuReading]:
        """Return the present state of every GPU, and the memory that process `pid` uses, which is
        unknown in another PID namespace."""
        return [
            self._reading(number, device, pid=pid) for number, device in enumerate(self._devices)
        ]

    def _reading(self, number: int, device: Any, *, pid: int) -> GpuReading:
        library = self._library
        memory = _value(lambda: library.nvmlDeviceGetMemoryInfo(device))
        rates = _value(lambda: library.nvmlDeviceGetUtilizationRates(device))  # none with MIG
        running = (
            _value(lambda: library.nvmlDeviceGetComputeRunningProcesses(device)) if pid else None
        )
        return GpuReading(
            number,
            self.names[number],
            None if rates is None else rates.gpu / 100,
            *((int(memory.used), int(memory.total)) if memory is not None else (0, 0)),
            sum(one.usedGpuMemory or 0 for one in running or () if one.pid == pid),
        )

    def traffic(self) -> list[tuple[float, float]]:
        """Return for every GPU the bytes/s that it receives from the host and sends to it."""
        library: Any = self._library

        def nbytes_s(device: Any, counter: str) -> float:
            which = getattr(library, f"NVML_PCIE_UTIL_{counter}_BYTES")
            found = _value(lambda: library.nvmlDeviceGetPcieThroughput(device, which))
            return float(found or 0) * KIB

        return [(nbytes_s(one, "RX"), nbytes_s(one, "TX")) for one in self._devices]

    def close(self) -> None:
        """Close the library."""
        if self._devices:
            self._devices = []
            _value(self._library.nvmlShutdown)


def _value(query: Callable[[], Any]) -> Any:
    """Return a value of NVML, or None if the device does not support it."""
    with contextlib.suppress(Exception):  # NVML has many errors for unsupported queries
        return query()
    return None


def readings(pid: int = 0) -> list[GpuReading]:
    """Return the present state of every GPU. Raise MissingExtra without nvidia-ml-py."""
    with contextlib.closing(Gpus()) as gpus:
        return gpus.readings(pid)


def gpu_names() -> tuple[list[str], str]:
    """Return the names of the GPUs, or why they cannot be known."""
    try:
        return [one.name for one in readings()], ""
    except MissingExtra as error:
        return [], str(error)


class GpuSampler:
    """Mean use of every GPU, from repeated samples; of none without a library or a device."""

    def __init__(self, library: Any = None) -> None:
        self.missing = ""
        self._gpus: Gpus | None = None
        try:
            self._gpus = Gpus(library)
        except MissingExtra:
            if os.path.exists(DRIVER):
                self.missing = (
                    "accelerators: nvidia-ml-py is not installed (pip install fastfeed[diagnose])"
                )
        self.begin()

    def begin(self) -> None:
        """Drop earlier samples."""
        self._sums: dict[tuple[int, str], tuple[float, ...]] = {}  # by number and name
        self._samples = 0

    def sample(self) -> None:
        """Sample every GPU."""
        if self._gpus is None:
            return
        self._samples += 1
        for one, traffic in zip(self._gpus.readings(), self._gpus.traffic(), strict=True):
            figures = (one.busy or 0.0, one.used_nbytes / (one.all_nbytes or 1), *traffic)
            before = self._sums.get((one.number, one.name), (0.0,) * len(figures))
            self._sums[one.number, one.name] = tuple(map(sum, zip(before, figures, strict=True)))

    def means(self) -> tuple[GpuUsage, ...]:
        """Return the means since `begin`."""
        return tuple(
            GpuUsage(name, *(figure / self._samples for figure in sums))
            for (_, name), sums in self._sums.items()
        )

    def stop(self) -> None:
        """Close the library."""
        if self._gpus is not None:
            self._gpus.close()
        self.begin()


class GpuMeter:
    """Readings of the first GPU, at most five a second. Without a GPU every figure is None."""

    def __init__(self, library: Any = None) -> None:
        self._gpus: Gpus | None = None
        with contextlib.suppress(MissingExtra):
            self._gpus = Gpus(library)
        self.name = next(iter(self._gpus.names), None) if self._gpus is not None else None
        self.nbytes: int | None = None
        self._next_s = 0.0
        self._busy: list[float] = []

    def sample(self, now_s: float) -> None:
        """Read the GPU, unless the last sample is recent."""
        if self._gpus is None or self.name is None or now_s < self._next_s:
            return
        self._next_s = now_s + METER_EVERY_S
        reading = self._gpus.readings()[0]
        self.nbytes = reading.used_nbytes
        self._busy += [] if reading.busy is None else [reading.busy]

    @property
    def utilisation(self) -> float | None:
        """The mean share (0 to 1) of time in which a kernel ran."""
        return sum(self._busy) / len(self._busy) if self._busy else None
