"""How far `workers="auto"` is from the best number of producers: `python -m bench.tune`.

    python -m bench.tune --output FOLDER [CASE ...]
    python -m bench.tune --output FOLDER --report
    python -m bench.tune --output FOLDER --again bench/results/tuning.json
    python -m bench.tune --search bench/results/auto.json    # of docs/auto.png

A case is work of a batch and a step. Every fixed number of threads and processes is measured, then
`threads="auto"` and `workers="auto"` after 20 s of search, and what other libraries choose. Each
has a process of its own, in `--rounds` turns. Figures are kept in tune.json. With `--again`, the
two are measured beside one thread and the best of the fixed numbers that are known, again.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.workloads import burn, rounds_for

THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
PROCESSES = (1, 2, 3, 4, 6, 8, 12)
AUTO = ('threads="auto"', 'workers="auto"')
SEARCH_S, WARM_S = 20.0, 2.0
ROUNDS = "FASTFEED_TUNE_ROUNDS"  # of Python code that take 10 ms
CASES = {
    f"{work} into {step}": (work, step)
    for work, step in (
        ("sleep", "5ms"),
        ("sleep", "20ms"),
        ("sleep", "80ms"),
        ("tail", "5ms"),
        ("tail", "20ms"),
        ("python", "5ms"),
        ("python", "20ms"),
        ("opencv", "5ms"),
        ("opencv", "20ms"),
        ("mixed", "5ms"),
        ("mixed", "80ms"),
        ("disk", "5ms"),
        ("large", "5ms"),
        ("tokens", "20ms"),
        ("mixed", "matmul"),
        ("sleep", "torch"),
    )
}
TEXT = "a training that waits for its input is slow, and nobody can say why. " * 40


class Load:
    """Work of one batch, by name: of about 20 to 50 ms."""

    def __init__(self, name: str) -> None:
        self.name = name
        # counted once for all processes, whose clocks differ
        self.rounds = int(os.environ.get(ROUNDS) or rounds_for(0.01))
        self.file = ""
        if name == "disk":
            path = Path(os.environ.get("TMPDIR", "/var/tmp")) / "fastfeed-tune.bin"
            if not path.exists():
                path.write_bytes(os.urandom(1 << 20) * 256)
            self.file = str(path)

    def __call__(self, number: int) -> Any:
        found: Any = getattr(self, f"_{self.name}")(number)
        return found

    def _sleep(self, number: int) -> Any:
        time.sleep(0.05)
        return np.full(1000, number, np.float32)

    def _tail(self, number: int) -> Any:
        rng = np.random.default_rng(number)
        time.sleep(float(rng.lognormal(np.log(0.02), 0.5)) * (10 if number % 100 == 99 else 1))
        return np.full(1000, number, np.float32)

    def _python(self, number: int) -> Any:
        return np.full(1000, number + 0 * burn(self.rounds), np.float32)

    def _opencv(self, number: int) -> Any:
        import cv2

        cv2.setNumThreads(1)
        image = np.full((900, 900), number % 250, np.float32)
        return cv2.GaussianBlur(image, (31, 31), 5)[::30, ::30].copy()

    def _mixed(self, number: int) -> Any:
        time.sleep(0.02)
        burn(self.rounds // 2)
        return self._opencv(number)

    def _disk(self, number: int) -> Any:
        at = number * 7919 % 255 << 20
        with open(self.file, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), at, 1 << 20, os.POSIX_FADV_DONTNEED)
            file.seek(at)
            return np.frombuffer(file.read(1 << 20), np.uint8)[::64].copy()

    def _large(self, number: int) -> Any:
        return np.full((64, 224, 224, 3), number % 250, np.uint8)

    def _tokens(self, number: int) -> Any:
        words = re.findall(r"\w+", TEXT * 6)
        return np.array([hash(word) & 0xFFFF for word in words][:1000], np.int64)


def step_of(name: str) -> Callable[[Any], None]:
    """Return a step: a simulated accelerator, or one on the CPU."""
    if name == "matmul":
        left = np.random.default_rng(0).random((600, 600), np.float32)
        return lambda batch: np.matmul(left, left, out=None) is None
    if name == "torch":
        import torch

        torch.set_num_threads(1)
        net = torch.nn.Sequential(
            torch.nn.Linear(1000, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 10)
        )
        optimizer = torch.optim.SGD(net.parameters(), 0.01)

        def train(batch: Any) -> None:
            optimizer.zero_grad()
            net(torch.from_numpy(np.asarray(batch)).reshape(-1, 1000)).square().mean().backward()
            optimizer.step()

        return train
    seconds = float(name.removesuffix("ms")) / 1e3
    return lambda batch: time.sleep(seconds)


def fastfeed(load: Load, **numbers: Any) -> Iterator[Any]:
    from fastfeed import FeedRunner

    with FeedRunner(range(10**7), batch_size=1, transform=load, **numbers) as runner:
        yield from runner
        print(runner, file=sys.stderr)


def tf_data(load: Load) -> Iterator[Any]:
    """`map(numpy_function, AUTOTUNE)` and `prefetch(AUTOTUNE)`."""
    import tensorflow as tf

    kind = tf.as_dtype(load(0).dtype)
    data = tf.data.Dataset.range(10**7)
    data = data.map(
        lambda i: tf.numpy_function(lambda n: load(int(n)), [i], kind), tf.data.AUTOTUNE
    )
    yield from data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


class Numbers:
    """The batches as a data set of torch."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> Any:
        return self.load(number)


def torch_loader(load: Load, *, workers: int) -> Iterator[Any]:
    """`DataLoader(batch_size=None, num_workers=...)`."""
    from torch.utils.data import DataLoader

    yield from DataLoader(Numbers(load), batch_size=None, num_workers=workers)  # type: ignore[arg-type]


def grain_loader(load: Load) -> Iterator[Any]:
    """`mp_prefetch` with what `pick_performance_config` chooses."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # of a program that does not begin by absl.app.run
    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = grain.MapDataset.range(10**7).map(load).to_iter_dataset(read)
    chosen = grain.experimental.pick_performance_config(
        data, ram_budget_mb=4096, max_workers=os.cpu_count(), max_buffer_size=16
    )
    yield from data.mp_prefetch(chosen.multiprocessing_options)


def ways() -> dict[str, tuple[str, dict[str, Any], float]]:
    """Return by name what opens the batches, its options, and the seconds of warm-up."""
    cores = os.cpu_count() or 1
    found: dict[str, tuple[str, dict[str, Any], float]] = {}
    for n in THREADS:
        found[f"threads={n}"] = ("fastfeed", {"threads": n}, WARM_S)
    for n in PROCESSES:
        found[f"processes={n}"] = ("fastfeed", {"processes": n}, WARM_S)
    for way in AUTO:
        found[way] = ("fastfeed", {way.split("=")[0]: "auto"}, SEARCH_S)
    found["tf.data AUTOTUNE"] = ("tf_data", {}, SEARCH_S)
    found["Grain's pick_performance_config"] = ("grain_loader", {}, WARM_S)
    for name, n in (("cores / 2", max(1, cores // 2)), ("os.cpu_count()", cores), ("2", 2)):
        found[f"DataLoader {name}"] = ("torch_loader", {"workers": n}, WARM_S)
    return found


def one(case: str, way: str, *, seconds: float) -> float:
    """Return the steps/s of a way in a case, in this process."""
    work, step_name = CASES[case]
    opener, options, warm_s = ways()[way]
    step, batches = step_of(step_name), globals()[opener](Load(work), **options)
    steps, begin_s = 0, time.perf_counter()
    measured_s = 0.0
    for batch in batches:
        step(batch)
        now_s = time.perf_counter()
        if not measured_s:
            if now_s - begin_s >= warm_s:
                measured_s = now_s
        else:
            steps += 1
            if now_s - measured_s >= seconds:
                break
    rate = steps / (time.perf_counter() - measured_s)
    batches.close()
    return rate


def measure(case: str, way: str, *, seconds: float) -> float:
    """Return the steps/s of a way in a case, in a process of its own; nan if it fails."""
    command = [sys.executable, "-m", "bench.tune", "--one", way, "--seconds", str(seconds), case]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "FASTFEED_BLACKBOX": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True, env=environment
        )
    except subprocess.SubprocessError as error:
        print(case, way, error, getattr(error, "stderr", ""), file=sys.stderr)
        return float("nan")
    return float(done.stdout.split()[-1])


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return the figures of all cases as Markdown: the best fixed number, and the others as parts
    of it."""
    others = [way for way in ways() if not re.match(r"(threads|processes)=\d", way)]
    lines = [
        "| case | best fixed | steps/s | threads=1 | " + " | ".join(others) + " |",
        "|---|---|--:|" + "--:|" * (len(others) + 1),
    ]
    for case, rates in found.items():
        middle = {way: statistics.median(values) for way, values in rates.items()}
        best = best_fixed(rates)
        parts = [
            f"{middle.get(way, float('nan')) / middle[best]:.2f}" for way in ("threads=1", *others)
        ]
        lines.append(f"| {case} | {best} | {middle[best]:.1f} | " + " | ".join(parts) + " |")
    return "\n".join(lines)


def measured(
    given: argparse.Namespace,
    name: str,
    *,
    cases: Iterable[str],
    show: Callable[[dict[str, Any]], str],
) -> Iterator[tuple[str, dict[str, Any], Callable[[], None]]]:
    """Yield each case that is to be measured, its figures so far, and what keeps them in the file
    `name`. Print those of each case, and of all at the end; none is measured for a report."""
    path = given.output / name
    found = json.loads(path.read_text()) if path.exists() else {}
    if not given.report:
        given.output.mkdir(parents=True, exist_ok=True)
        os.environ[ROUNDS] = str(rounds_for(0.01))
        for case in given.cases or cases:
            rates = found.setdefault(case, {})
            yield case, rates, lambda: _write(path, found)
            print(show({case: rates}).split("\n")[-1], flush=True)
    print(show(found))


def measure_again(given: argparse.Namespace) -> None:
    """Measure what is chosen, one thread, and the best fixed number of each case, in turn."""
    known = json.loads(given.again.read_text())["numbers"]
    path = given.output / "again.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    os.environ[ROUNDS] = str(rounds_for(0.01))
    for _ in range(0 if given.report else given.rounds):
        for case in given.cases or CASES:
            rates = found.setdefault(case, {})
            for way in dict.fromkeys(("threads=1", *AUTO, best_fixed(known[case]))):
                rates.setdefault(way, []).append(measure(case, way, seconds=given.seconds))
                _write(path, found)
            print(again_table({case: rates}).split("\n")[-1], flush=True)
    print(again_table(found))


def again_table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return rates in turn as Markdown: of the best fixed number in steps/s, of others as parts of
    it; medians, with the lowest and the highest."""
    columns = ("threads=1", *AUTO)
    lines = ["| case | best fixed | steps/s | " + " | ".join(columns) + " |"]
    lines.append("|---|---|--:|" + "--:|" * len(columns))
    for case, rates in found.items():
        best = next((way for way in rates if way not in columns), columns[0])
        middle = statistics.median(rates[best])
        cells = [_spread(rates[way], 1 / middle, 2) for way in columns]
        lines.append(f"| {case} | {best} | {_spread(rates[best], 1.0, 1)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], scale: float, digits: int) -> str:
    found = [scale * one for one in (statistics.median(values), min(values), max(values))]
    middle, low, high = (f"{one:.{digits}f}" for one in found)
    return f"{middle} ({low} to {high})"


def best_fixed(rates: dict[str, list[float]]) -> str:
    """Return the fixed number of producers with the highest rate."""
    fixed = [way for way in rates if re.match(r"(threads|processes)=\d", way)]
    return max(fixed, key=lambda way: statistics.median(rates[way]))


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")


def search() -> dict[str, list[float]]:
    """Return seconds, steps and threads of a minute in which batches become slower."""
    from fastfeed import FeedRunner

    seconds = [0.05]

    def load(number: int) -> Any:
        time.sleep(seconds[0])
        return np.full(1000, number, np.float32)

    seen: list[tuple[float, int, int]] = []
    with FeedRunner(range(10**7), batch_size=1, transform=load, threads="auto") as runner:
        begin_s = time.perf_counter()
        for steps, _ in enumerate(runner):
            time.sleep(0.005)
            now_s = time.perf_counter() - begin_s
            seconds[0] = 0.05 if now_s < 30 else 0.1
            if not seen or now_s >= seen[-1][0] + 0.5:
                seen.append((now_s, steps, int(runner.options.threads)))
            if now_s > 60:
                break
    names = ("seconds", "steps", "threads")
    return dict(zip(names, map(list, zip(*seen, strict=True)), strict=True))


def steady(case: str, minutes: float) -> dict[str, float]:
    """Return how often `workers="auto"` changes the number of a training, after a first minute, and
    its steps/s."""
    from fastfeed import FeedRunner

    work, step_name = CASES[case]
    step, steps, first_s = step_of(step_name), 0, 60.0
    with FeedRunner(range(10**7), batch_size=1, transform=Load(work), workers="auto") as runner:
        begin_s = time.perf_counter()
        for batch in runner:
            step(batch)
            since_s = time.perf_counter() - begin_s - first_s
            steps += since_s >= 0
            if since_s >= 60 * minutes:
                break
        decisions = runner.tuning()
    tried = [one for one in decisions if one.seconds >= first_s and not one.proposed]
    # a number that is not kept is a change there and one back
    changes = sum(1 if one.kept else 2 for one in tried)
    return {"minutes": minutes, "changes": changes, "steps/s": steps / (60 * minutes)}


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Draw the number of threads and the steps/s of a search."""
    from matplotlib.figure import Figure

    times = found["seconds"]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    rates, threads = figure.subplots(2, 1, sharex=True)
    rates.plot(times[1:], np.diff(found["steps"]) / np.diff(times), color="#1b6ca8")
    rates.set_ylabel("steps/s")
    rates.set_title('threads="auto": a batch takes 50 ms, after 30 s it takes 100 ms; a step 5 ms')
    threads.step(times, found["threads"], where="post", color="#2a8c4a")
    threads.set_ylabel("threads")
    threads.set_xlabel("seconds")
    for axes in (rates, threads):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tune")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; all, if none is named")
    parser.add_argument("--output", type=Path, default=Path("build/tune"))
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="print what was measured")
    parser.add_argument("--one", metavar="WAY", help="measure one way in this process")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="beside the best of these figures"
    )
    parser.add_argument("--steady", type=float, metavar="MINUTES", help="count changes of one case")
    parser.add_argument("--search", type=Path, help="write the search of a training to this file")
    given = parser.parse_args()
    if given.search:
        given.search.write_text(json.dumps(search()) + "\n")
        return
    if given.steady:
        print(json.dumps(steady(given.cases[0], given.steady)))
        return
    if given.one:
        print(one(given.cases[0], given.one, seconds=given.seconds))
        return
    given.output.mkdir(parents=True, exist_ok=True)
    if given.again:
        return measure_again(given)
    for case, rates, keep in measured(given, "tune.json", cases=CASES, show=table):
        for _ in range(given.rounds):
            for way in ways():
                rates.setdefault(way, []).append(measure(case, way, seconds=given.seconds))
                keep()


if __name__ == "__main__":
    main()
