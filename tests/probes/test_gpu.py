"""GPUs as a library that is made here reports them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fastfeed.errors import MissingExtra
from fastfeed.probes import gpu


class Library(SimpleNamespace):
    """NVML as far as it is called. The second process is another one; `busy` is read in turn."""

    NVML_PCIE_UTIL_RX_BYTES, NVML_PCIE_UTIL_TX_BYTES = 1, 0
    NVMLError = RuntimeError

    def __init__(self, *busy: int) -> None:
        self.busy = iter(busy)
        self.running = 0

    def nvmlInit(self) -> None:
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> bytes:
        return b"H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        for busy in self.busy:
            return SimpleNamespace(gpu=busy)
        raise RuntimeError("not supported with MIG")

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=3, total=4)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=pid) for pid in (7, 8)]

    def nvmlDeviceGetPcieThroughput(self, device: int, counter: int) -> int:
        if counter != self.NVML_PCIE_UTIL_RX_BYTES:
            raise RuntimeError("not supported")
        return 10


def test_means_over_some_time() -> None:
    gpus = gpu.GpuSampler(Library(40, 60))
    gpus.sample()
    gpus.sample()
    assert gpus.means() == (gpu.GpuUsage("H200", 0.5, 0.75, 10 * gpu.KIB, 0.0),)
    gpus.stop()
    assert gpus.means() == ()


def test_a_meter_reads_five_times_a_second() -> None:
    meter = gpu.GpuMeter(Library(20, 40))
    assert meter.utilisation is None and meter.nbytes is None and meter.name == "H200"
    for now in (0.0, 0.1, 0.25):
        meter.sample(now)
    assert meter.utilisation == pytest.approx(0.3) and meter.nbytes == 3


@pytest.mark.parametrize(("busy", "share", "own"), [((40,), 0.4, 7), ((), None, 7)])
def test_what_a_process_uses_now(
    busy: tuple[int, ...], share: Any, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(*busy)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert gpu.readings(7) == [gpu.GpuReading(0, "H200", share, 3, 4, own)]
    assert library.running == 0


def test_without_the_library_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = gpu.GpuMeter()
    meter.sample(0.0)
    assert meter.utilisation is None and meter.nbytes is None and meter.name is None
    assert gpu.GpuSampler().means() == ()
    with pytest.raises(MissingExtra, match="nvidia-ml-py"):
        gpu.readings(1)
