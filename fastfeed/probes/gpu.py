"""Use of GPUs, from NVIDIA's management library NVML through nvidia-ml-py."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fastfeed.errors import MissingExtra

DRIVER = "/dev/nvidiactl"
METER_EVERY_S = 0.2  # NVML averages utilisation over about this time
FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux: its pids are those of NVML
UNKNOWN_OWNER = (
    "which GPUs this job uses: NVML lists no process of it, as in a container, and "
    "CUDA_VISIBLE_DEVICES does not tell (set it); the load of no GPU counts"
)


@dataclass(frozen=True)
class GpuUsage:
    """A GPU over some time.

    Shares (0 to 1) of busy time, nan if unknown, and of memory in use. `own`: it is a GPU of the
    observed job; None if unknown.
    """

    name: str
    busy: float
    memory: float
    own: bool | None = None


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
        running = self._running(device, "Compute") if pid else ()
        return GpuReading(
            number,
            self.names[number],
            None if rates is None else rates.gpu / 100,
            *((int(memory.used), int(memory.total)) if memory is not None else (0, 0)),
            sum(one.usedGpuMemory or 0 for one in running or () if one.pid == pid),
        )

    def _running(self, device: Any, kind: str) -> Any:
        query = f"nvmlDeviceGet{kind}RunningProcesses"
        return _value(lambda: getattr(self._library, query)(device))

    def processes(self) -> list[set[int] | None]:
        """Return for every GPU the pids of the processes that use it, None if unknown.

        They are pids of the machine, which differ from those of a container.
        """
        found = []
        for device in self._devices:
            listed = [self._running(device, kind) for kind in ("Compute", "Graphics")]
            known = [running for running in listed if running is not None]
            found.append({one.pid for running in known for one in running} if known else None)
        return found

    def visible(self, environ: Mapping[str, str]) -> list[bool] | None:
        """Return for every GPU whether CUDA_VISIBLE_DEVICES names it; None if that cannot be told.

        CUDA numbers the GPUs as NVML does if they are alike, or if CUDA_DEVICE_ORDER says so.
        """
        text = environ.get("CUDA_VISIBLE_DEVICES")
        words = [word.strip() for word in (text or "").split(",")]
        alike = len(set(self.names)) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        divided = "MIG-" in (text or "")
        if text is None or divided or (not alike and any(word.isdigit() for word in words)):
            return None
        return [
            any(
                word == str(number) or (word.startswith("GPU-") and uuid.startswith(word))
                for word in words
            )
            for number, uuid in enumerate(map(self._uuid, self._devices))
        ]

    def _uuid(self, device: Any) -> str:
        found = _value(lambda: self._library.nvmlDeviceGetUUID(device))
        return found.decode() if isinstance(found, bytes) else str(found)

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
    """Mean use of every GPU, from repeated samples; of none without a library or a device.

    `environ`: that of the observed job.
    """

    def __init__(self, library: Any = None, *, environ: Mapping[str, str] = os.environ) -> None:
        self._absent = ""
        self._environ = environ
        self._gpus: Gpus | None = None
        try:
            self._gpus = Gpus(library)
        except MissingExtra:
            if os.path.exists(DRIVER):
                self._absent = (
                    "accelerators: nvidia-ml-py is not installed (pip install fastfeed[diagnose])"
                )
        self.begin()

    def begin(self) -> None:
        """Drop earlier samples."""
        self._samples: list[list[tuple[float, ...]]] = []  # by GPU
        # by GPU: whether a process of the job was seen on it, None if NVML does not list them
        self._seen: list[bool | None] = [None] * len(self._gpus.names if self._gpus else ())

    def sample(self, pids: Collection[int] = ()) -> None:
        """Sample every GPU. `pids`: the processes of the job."""
        if self._gpus is None:
            return
        self._samples.append(
            [
                (
                    math.nan if one.busy is None else one.busy,
                    one.used_nbytes / (one.all_nbytes or 1),
                )
                for one in self._gpus.readings()
            ]
        )
        for number, running in enumerate(self._gpus.processes()):
            if running is not None:
                self._seen[number] = bool(self._seen[number]) or not running.isdisjoint(pids)

    def means(self) -> tuple[GpuUsage, ...]:
        """Return the means since `begin`."""
        if self._gpus is None or not self._samples:
            return ()
        found = []
        for name, samples, own in zip(
            self._gpus.names, zip(*self._samples, strict=True), self._own(), strict=True
        ):
            busy, memory = map(_mean, zip(*samples, strict=True))
            found.append(GpuUsage(name, busy, memory, own))
        return tuple(found)

    def _own(self) -> list[bool | None]:
        """Return for every GPU whether it is one of the job; None if unknown."""
        if any(self._seen) or (None not in self._seen and _has_global_pids()):
            return self._seen
        visible = self._gpus.visible(self._environ) if self._gpus is not None else None
        return [None] * len(self._seen) if visible is None else list(visible)

    @property
    def missing(self) -> str:
        """What cannot be known, and why; "" if nothing is missing."""
        unknown = bool(self._samples) and None in self._own()
        return self._absent or (UNKNOWN_OWNER if unknown else "")

    def stop(self) -> None:
        """Close the library."""
        if self._gpus is not None:
            self._gpus.close()
        self.begin()


def _mean(figures: Collection[float]) -> float:
    """Return the mean of the known figures, else nan."""
    known = [figure for figure in figures if math.isfinite(figure)]
    return sum(known) / len(known) if known else math.nan


def _has_global_pids() -> bool:
    """Return True if pids in this process are those of the machine, which NVML reports."""
    try:
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    except OSError:
        return False


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
