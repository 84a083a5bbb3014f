"""GPUs as a library that is made here reports them."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fastfeed.errors import MissingExtra
from fastfeed.probes import gpu


class Library(SimpleNamespace):
    """NVML as far as it is called. The second process is another one; `busy` is read in turn."""

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

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        raise RuntimeError("not supported")

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return f"GPU-{device}f00"


def test_means_over_some_time() -> None:
    gpus = gpu.GpuSampler(Library(40, 60))
    gpus.sample({7})
    gpus.sample()
    assert gpus.means() == (gpu.GpuUsage("H200", 0.5, 0.75, own=True),)
    assert gpus.missing == ""
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


class TwoCards(Library):
    """A process of its own on each of two GPUs; `pids` by GPU, None: NVML does not list them."""

    def __init__(self, *pids: int | None, names: tuple[bytes, ...] = (b"H200", b"H200")) -> None:
        super().__init__()
        self.pids = pids
        self.names = names

    def nvmlDeviceGetCount(self) -> int:
        return len(self.pids)

    def nvmlDeviceGetName(self, device: int) -> bytes:
        return self.names[device]

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        if self.pids[device] is None:
            raise RuntimeError("not supported")
        return [SimpleNamespace(pid=self.pids[device], usedGpuMemory=1)]


@pytest.mark.parametrize(
    ("pids", "first", "environ", "own"),
    [
        ((7, 8), True, {}, [True, False]),
        ((7, 8), False, {"CUDA_VISIBLE_DEVICES": "1"}, [True, False]),
        ((8, 9), True, {"CUDA_VISIBLE_DEVICES": "1"}, [False, False]),
        ((8, 9), False, {"CUDA_VISIBLE_DEVICES": "1"}, [False, True]),
        ((8, 9), False, {"CUDA_VISIBLE_DEVICES": "GPU-0f"}, [True, False]),
        ((8, 9), False, {"CUDA_VISIBLE_DEVICES": ""}, [False, False]),
        ((8, 9), False, {"CUDA_VISIBLE_DEVICES": "MIG-77"}, [None, None]),
        ((None, None), True, {"CUDA_VISIBLE_DEVICES": "0,1"}, [True, True]),
        ((8, 9), False, {}, [None, None]),
        ((None, None), True, {}, [None, None]),
    ],
)
def test_whose_gpus_they_are(
    pids: tuple[int | None, ...],
    first: bool,
    environ: dict[str, str],
    own: list[bool | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Process 7 is of the job. `first`: the pids of NVML are those that this process sees."""
    monkeypatch.setattr(gpu, "_has_global_pids", lambda: first)
    gpus = gpu.GpuSampler(TwoCards(*pids), environ=environ)
    gpus.sample({7})
    assert [one.own for one in gpus.means()] == own
    assert (gpus.missing == gpu.UNKNOWN_OWNER) == (None in own)
    gpus.stop()


def test_numbers_of_different_gpus_are_not_those_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA puts the fastest one first, unless it is told otherwise."""
    monkeypatch.setattr(gpu, "_has_global_pids", lambda: False)
    library = TwoCards(8, 9, names=(b"T4", b"H200"))
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    gpus = gpu.GpuSampler(library, environ=environ)
    gpus.sample({7})
    assert [one.own for one in gpus.means()] == [None, None]
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert [one.own for one in gpus.means()] == [True, False]
    gpus.stop()


def test_a_use_that_is_not_known_is_not_zero() -> None:
    """NVML tells none of a GPU that is divided (MIG)."""
    gpus = gpu.GpuSampler(Library())
    gpus.sample({7})
    (found,) = gpus.means()
    assert math.isnan(found.busy) and found.memory == 0.75
    gpus.stop()
