"""The harness: its input and its measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from fastfeed import BadImage, OptionError, Worker
from fastfeed.benchmark import tree
from fastfeed.benchmark.consumers import (
    Consumer,
    consumer_from,
    images_and_labels,
    runner_for,
)
from fastfeed.benchmark.measure import measure_producer, measure_step
from fastfeed.benchmark.report import json_of, write_plots
from fastfeed.benchmark.summary import auto_sentence
from fastfeed.benchmark.sweep import SweepPlan, parse_counts, run_sweep
from fastfeed.benchmark.workloads import seconds_from, workload_from
from fastfeed.model.workload import Producers

WORKER = Worker(0, 1, 0, 0)


def quiet(text: str, share: float) -> None:
    assert 0 <= share <= 1, text


def counts_from(text: str) -> object:
    return parse_counts(text, "--threads", least=1, such_as="1,4,8")


MISTAKES = {
    consumer_from: (["", "sim", "sim:x", "gpu"], "must be|write"),
    counts_from: (["", "0", "1,x", "-1"], "--threads .* >= 1, such as 1,4,8"),
    partial(workload_from, batch_size=4): (
        ["", "sleep", "sleep:fast", "nothing:50ms", "photos:/not/here", "json:nothing", "math:pi"],
        "must be|write",
    ),
}


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [(parse, text, told) for parse, (texts, told) in MISTAKES.items() for text in texts],
)
def test_what_does_not_exist_is_refused_with_what_there_is(
    parse: Callable[[str], object], text: str, told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        parse(text)


def test_times_and_counts_are_read() -> None:
    assert (seconds_from("50ms", ""), seconds_from("0.5s", ""), seconds_from("300us", "")) == (
        0.05,
        0.5,
        3e-4,
    )
    assert parse_counts("0,4,4,8", "--processes", least=0, such_as="") == (0, 4, 8)


def test_the_grid_is_every_combination() -> None:
    plan = SweepPlan((1, 4), 4, 1.0, None, 1, processes=(0, 2))
    assert [(p.processes, p.threads) for p in plan.grid] == [(0, 1), (0, 4), (2, 1), (2, 4)]


@pytest.mark.parametrize(
    ("processes", "live"),
    [
        ((0,), [(0, 1), (0, 4)]),
        ((0, 2), [(0, 1), (0, 4), (2, 3)]),
        ((4, 1, 2), [(1, 3), (4, 3)]),
    ],
)
def test_short_runs_are_few(processes: tuple[int, ...], live: list[tuple[int, int]]) -> None:
    plan = SweepPlan((8, 3), 4, 1.0, None, 1, processes)
    assert [(p.processes, p.threads) for p in plan.live] == live


@pytest.mark.parametrize("kind", ["sleep", "python", "opencv"])
def test_the_digit_workloads_make_batches_for_the_classifier(kind: str) -> None:
    stream = workload_from(f"{kind}:1ms", batch_size=5).source(worker=WORKER)
    images, labels = images_and_labels(next(stream))
    assert images.shape == (5, 28, 28) and images.dtype == np.uint8 and labels.shape == (5,)


@pytest.mark.parametrize("kind", ["sleep", "python", "opencv", "photos"])
def test_a_workload_travels_to_another_process_which_loads_no_framework(
    kind: str, tmp_path: Path
) -> None:
    cv2 = pytest.importorskip("cv2")
    cv2.imwrite(str(tmp_path / "a.jpg"), np.full((40, 30, 3), 127, np.uint8))
    workload = workload_from(f"{kind}:{tmp_path if kind == 'photos' else '1ms'}", batch_size=5)
    code = (
        "import sys, pickle; source = pickle.load(sys.stdin.buffer); from fastfeed import Worker\n"
        "frameworks = {'tensorflow', 'keras', 'sklearn'} & {*sys.modules}\n"
        "print(len(next(source(worker=Worker(0, 1, 0, 0)))[1]), *frameworks)\n"
        "if 'cv2' in sys.modules: print(sys.modules['cv2'].getNumThreads())"
    )
    shipped = cloudpickle.dumps(workload.source)
    done = subprocess.run(
        [sys.executable, "-c", code], input=shipped, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"5"] + [b"1"] * (kind in ("opencv", "photos"))


def test_photographs_of_any_size_become_crops(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    for name, shape in {"small": (40, 30, 3), "wide": (230, 900, 3)}.items():
        cv2.imwrite(str(tmp_path / f"{name}.jpg"), np.full(shape, 127, np.uint8))
    images, labels = next(workload_from(f"photos:{tmp_path}", batch_size=8).source(worker=WORKER))
    assert images.shape == (8, 224, 224, 3) and set(labels.tolist()) <= set(range(10))
    (tmp_path / "small.jpg").write_bytes(b"no image")
    with pytest.raises(BadImage):
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

    batch, cost = measure_producer(batches, seconds=60)
    assert batch[0].shape == (2,)
    assert (
        cost.cpu_s >= 0.0019 and cost.batch_s >= cost.cpu_s * 0.9 and 0 <= cost.gil_s <= cost.cpu_s
    )
    with pytest.raises(OptionError, match="ended before its first batch"):
        measure_producer(lambda: iter(()), seconds=1)


def test_a_step_is_measured_on_the_clock_and_on_the_cores() -> None:
    def burn(_: object) -> None:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    found = measure_step(Consumer("", lambda batch: burn), None, seconds=0.05)
    assert 0.0019 <= found.cpu_s <= found.step_s * 1.1
    asleep = measure_step(consumer_from("sim:2ms"), None, seconds=0.05)
    assert asleep.cpu_s < 0.001 < asleep.step_s


def test_what_children_use_is_counted_while_they_run_and_after_they_ended() -> None:
    code = (
        "import time; ballast = b'x' * 50_000_000\n"
        "while time.process_time() < 0.3: pass\nprint(flush=True); input()"
    )
    nbytes, cpu_s = tree.own_nbytes(), tree.cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert tree.own_nbytes() - nbytes > 40_000_000
        alive_s = tree.cpu_s() - cpu_s
        child.communicate(b"\n")
    assert alive_s + 0.02 >= 0.3 and alive_s <= tree.cpu_s() - cpu_s < alive_s + 1


def test_a_runner_gets_as_many_threads_and_processes_as_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(
        "fastfeed.benchmark.consumers.FeedRunner",
        lambda source, **options: given.update(options),
    )
    runner_for(lambda: iter(()), Producers(3, processes=2), batch_size=8)
    assert (given["threads"], given["processes"], given["batch_size"]) == (3, 2, 8)


class Recording:
    """A plain consumer that notes who makes the batches, and has threads make them instead of
    processes."""

    name, burns_cpu = "recording", True

    def __init__(self) -> None:
        self._plain = consumer_from("sim:100us")
        self.cached = self._plain.cached
        self.seen: list[tuple[int, int]] = []

    def loop(
        self,
        source: object,
        *,
        producers: Producers,
        batch_size: int | None,
        options: object = None,
    ) -> object:
        self.seen.append((producers.processes, producers.threads))
        return self._plain.loop(source, producers=Producers(producers.count), batch_size=batch_size)


@pytest.mark.slow
def test_a_sweep_of_processes_takes_live_points_of_them_and_reports_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastfeed.benchmark.sweep.PROFILE_S", 0.1)
    consumer = Recording()
    plan = SweepPlan((1, 2), 4, 0.1, None, 1, processes=(0, 1, 2))
    sweep = run_sweep(workload_from("sleep:1ms", batch_size=4), consumer, plan=plan, progress=quiet)
    grid = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert consumer.seen == [(0, 1), (0, 4), (1, 1), (2, 1), *grid]
    found = json.loads(json.dumps(json_of(sweep), allow_nan=False))
    assert [(s["processes"], s["threads"]) for s in found["settings"]] == grid
    assert found["plan"]["processes"] == [0, 1, 2]
    assert [p.producers.processes for p in sweep.live] == [0, 0, 1, 2]
    assert found["settings"][0]["windows"][0]["memory_nbytes"] > 10**6
    assert {p.name for p in write_plots(sweep, tmp_path)} == {"bench.png", "bench.svg"}


@pytest.mark.slow
def test_a_sweep_measures_every_setting_and_a_finite_iterator_starts_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef batches():\n    yield from [(np.zeros((4, 2)),)] * 7\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        workload = workload_from("mine:batches", batch_size=4)
    plan = SweepPlan((1, 2), 4, 1.0, 60, 2)
    sweep = run_sweep(workload, consumer_from("sim:100us"), plan=plan, progress=quiet)
    assert [(s.producers.threads, len(s.windows)) for s in sweep.settings] == [(1, 2), (2, 2)]
    assert all(w.steps == 60 and 0 <= w.starvation <= 1 for s in sweep.settings for w in s.windows)
    found = json.loads(json.dumps(json_of(sweep), allow_nan=False))
    assert found["schema"] == 4 and found["settings"][1]["threads"] == 2
    assert {p.name for p in write_plots(sweep, tmp_path)} == {"bench.png", "bench.svg"}
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_session_is_measured() -> None:
    workload = workload_from("sleep:1ms", batch_size=4)
    plan = SweepPlan((2,), 4, 1.0, 30, 1)
    sweep = run_sweep(workload, consumer_from("mnist"), plan=plan, progress=quiet)
    assert [s.windows[0].steps for s in sweep.settings] == [30]
    assert 0 <= sweep.settings[0].windows[0].starvation <= 1
    assert len(sweep.live) == 2 and sweep.ceiling < 1e6


@pytest.mark.slow
def test_what_the_runner_chooses_is_compared_with_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfeed.benchmark.sweep.SEARCH_LIMIT_S", 0.2)
    workload = workload_from("sleep:1ms", batch_size=4)
    plan = SweepPlan((1, 2), 4, 1.0, 60, 2, auto=True)
    sweep = run_sweep(workload, consumer_from("sim:100us"), plan=plan, progress=quiet)
    assert sweep.auto is not None
    assert [w.steps for w in sweep.auto.windows] == [60, 60]
    assert 'workers="auto" chose ' in auto_sentence(sweep)
    found = json.loads(json.dumps(json_of(sweep), allow_nan=False))["auto"]
    assert found["of_best"] == sweep.auto.rate / max(s.rate for s in sweep.settings)
    assert len(found["runs"]) == 2


def test_nothing_is_chosen_unasked() -> None:
    plan = SweepPlan((1,), 4, 1.0, 5, 1)
    workload = workload_from("sleep:1ms", batch_size=4)
    sweep = run_sweep(workload, consumer_from("sim:100us"), plan=plan, progress=quiet)
    assert auto_sentence(sweep) == ""
    assert json_of(sweep)["auto"] is None
