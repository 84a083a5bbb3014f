"""The harness: what it accepts, what it measures, and what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastfeed import OptionError, Worker
from fastfeed.benchmark import gpu
from fastfeed.benchmark.advice import advise
from fastfeed.benchmark.consumers import consumer_from, images_and_labels
from fastfeed.benchmark.measure import ProducerCost, StepCost, Window, measure_producer
from fastfeed.benchmark.plot import write_plots
from fastfeed.benchmark.report import json_of
from fastfeed.benchmark.sweep import Plan, Setting, Sweep, parse_threads, run_sweep
from fastfeed.benchmark.workloads import seconds_from, workload_from
from fastfeed.model import Profile, predict

WORKER = Worker(0, 1, 0, 0)


def quiet(text: str, share: float) -> None:
    assert 0 <= share <= 1, text


def sweep_of(*, rates: dict[int, float], step_s: float, producer: ProducerCost, wait: float) -> Sweep:
    """A sweep with invented figures."""
    profile = Profile(producer.batch_s, producer.cpu_s, producer.gil_s, producer.gil_wait_s, step_s, 2)
    plan = Plan(tuple(rates), 32, 1.0, None, 1, False)
    settings = []
    for n, rate in rates.items():
        window = Window(int(rate), 1.0, wait, 0.0, 0.0, 1.0, 10**8, 0.1, None, None)
        settings.append(Setting("fastfeed", n, (window,), predict(profile, n)))
    return Sweep("w", "d", "c", plan, StepCost(step_s, step_s, step_s), producer, profile, tuple(settings))


@pytest.mark.parametrize(
    "text", ["", "sleep", "sleep:fast", "nothing:50ms", "photos:/does/not/exist", "json:nothing", "math:pi"]
)
def test_a_workload_that_does_not_exist_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(OptionError, match="needed|write"):
        workload_from(text, batch_size=4)


@pytest.mark.parametrize("text", ["", "sim", "sim:x", "gpu"])
def test_a_consumer_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="needed|write"):
        consumer_from(text)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_thread_counts_are_positive_numbers(text: str) -> None:
    with pytest.raises(OptionError, match="1,4,8"):
        parse_threads(text)


def test_times_and_counts_are_read() -> None:
    assert (seconds_from("50ms", ""), seconds_from("0.5s", ""), seconds_from("300us", "")) == (0.05, 0.5, 3e-4)
    assert parse_threads("1,4,4,8") == (1, 4, 8)


@pytest.mark.parametrize("kind", ["sleep", "python", "opencv"])
def test_the_digit_workloads_make_batches_for_the_classifier(kind: str) -> None:
    stream = workload_from(f"{kind}:1ms", batch_size=5).source(worker=WORKER)
    images, labels = images_and_labels(next(stream))
    assert images.shape == (5, 28, 28) and images.dtype == np.uint8 and labels.shape == (5,)


def test_photographs_of_any_size_become_crops(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    for name, shape in {"small": (40, 30, 3), "wide": (230, 900, 3)}.items():
        cv2.imwrite(str(tmp_path / f"{name}.jpg"), np.full(shape, 127, np.uint8))
    images, labels = next(workload_from(f"photos:{tmp_path}", batch_size=8).source(worker=WORKER))
    assert images.shape == (8, 224, 224, 3) and set(labels.tolist()) <= {0, 1}
    (tmp_path / "small.jpg").write_bytes(b"no image")
    with pytest.raises(OptionError, match="no image"):
        for _ in workload_from(f"photos:{tmp_path}", batch_size=8).source(worker=WORKER):
            pass


def test_other_batches_than_images_and_labels_are_refused_by_the_classifier() -> None:
    with pytest.raises(OptionError, match="sim:20ms"):
        images_and_labels({"x": np.zeros(3)})


def test_a_producer_alone_is_measured_on_its_own_clock() -> None:
    def batches():  # type: ignore[no-untyped-def]
        for _ in range(50):
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                pass
            yield (np.zeros(2),)

    batch, cost = measure_producer(batches, seconds=60, tick=lambda: None)
    assert batch[0].shape == (2,)
    assert cost.cpu_s >= 0.0019 and cost.batch_s >= cost.cpu_s * 0.9 and 0 <= cost.gil_s <= cost.cpu_s
    with pytest.raises(OptionError, match="ended before its first batch"):
        measure_producer(lambda: iter(()), seconds=1, tick=lambda: None)


def test_a_sweep_measures_every_setting_and_a_finite_iterator_starts_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import numpy as np\ndef batches():\n    yield from [(np.zeros((4, 2)),)] * 7\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        workload = workload_from("mine:batches", batch_size=4)
    plan = Plan((1, 2), 4, 1.0, 60, 2, False)
    sweep = run_sweep(workload, consumer_from("sim:100us"), plan=plan, progress=quiet)
    assert [(s.threads, len(s.windows)) for s in sweep.settings] == [(1, 2), (2, 2)]
    assert all(w.steps == 60 and 0 <= w.starvation <= 1 for s in sweep.settings for w in s.windows)
    found = json.loads(json.dumps(json_of(sweep), allow_nan=False))
    assert found["schema"] == 1 and found["settings"][1]["threads"] == 2
    assert {p.name for p in write_plots(sweep, tmp_path)} == {"bench.png", "bench.svg"}
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_the_session_is_measured_beside_the_hand_written_idiom() -> None:
    workload = workload_from("sleep:1ms", batch_size=32)
    plan = Plan((2,), 32, 1.0, 30, 1, True)
    sweep = run_sweep(workload, consumer_from("mnist"), plan=plan, progress=quiet)
    assert [s.kind for s in sweep.settings] == ["fastfeed", "hand-written"]
    assert all(s.windows[0].steps == 30 for s in sweep.settings)
    assert len(sweep.profile.live) == 2 and sweep.ceiling < 1e6


def test_the_idiom_exists_for_sessions_only() -> None:
    workload = workload_from("sleep:1ms", batch_size=4)
    with pytest.raises(OptionError, match="--consumer mnist"):
        run_sweep(workload, consumer_from("none"), plan=Plan((1,), 4, 1.0, 5, 1, True), progress=quiet)


def test_advice_says_when_enough_is_enough() -> None:
    sweep = sweep_of(rates={1: 20.0, 8: 99.0}, step_s=0.01, producer=ProducerCost(0.05, 0.0, 0.0, 0.0), wait=0.02)
    assert advise(sweep) == "8 threads: starvation 2%; more gains nothing, the step is the limit."


def test_advice_counts_the_threads_that_are_missing() -> None:
    sweep = sweep_of(rates={1: 20.0, 2: 40.0}, step_s=0.01, producer=ProducerCost(0.05, 0.0, 0.0, 0.0), wait=0.6)
    assert "6 threads are predicted" in advise(sweep) and "limit is: the step" in advise(sweep)


def test_advice_names_the_interpreter_lock() -> None:
    sweep = sweep_of(rates={1: 60.0, 4: 50.0}, step_s=0.001, producer=ProducerCost(0.01, 0.01, 0.0097, 0.0), wait=0.5)
    assert "hold the interpreter lock for 97%" in advise(sweep) and "other processes" in advise(sweep)


def test_gpu_figures_come_from_nvml_and_are_none_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_open", lambda: (None, None))
    meter = gpu.GpuMeter()
    meter.sample(0.0)
    assert meter.utilisation is None and meter.nbytes is None and gpu.gpu_name() is None
    readings = iter([20, 40])
    nvml = SimpleNamespace(
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=next(readings)),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=5),
        nvmlDeviceGetName=lambda device: b"a GPU",
    )
    monkeypatch.setattr(gpu, "_open", lambda: (nvml, "device"))
    meter = gpu.GpuMeter()
    for now in (0.0, 0.1, 0.25):
        meter.sample(now)
    assert meter.utilisation == pytest.approx(0.3) and meter.nbytes == 5 and gpu.gpu_name() == "a GPU"
