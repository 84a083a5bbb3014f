"""The examples of data parallelism, as programs that start processes of their own."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.conftest import EXAMPLES, ROOT, Run

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
DIFFERENT_WORLDS = """
import multiprocessing
import data_parallel
from local_cluster import LocalCluster, free_addresses

if __name__ == "__main__":
    args, addresses = data_parallel.options(""), free_addresses(3)
    _, results = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with LocalCluster(limit_s=500) as cluster:
        for rank, known in enumerate((addresses[:2], addresses, addresses)):
            cluster.start(f"rank {rank}", data_parallel.rank, rank, known, args, results)
        cluster.wait()
"""
pytestmark = pytest.mark.slow


def accuracies(out: str, steps: int, ranks: str) -> list[float]:
    """Return the test accuracy of each epoch, all of which have as many steps."""
    line = rf"^epoch \d+: {steps} steps on each of 2 {ranks}, \d+ records/s, test accuracy (\d\S+)$"
    return [float(accuracy) for accuracy in re.findall(line, out, re.MULTILINE)]


class TestSynchronous:
    @pytest.mark.parametrize("optimizer", ["rmsprop-to-momentum", "lamb"])
    def test_two_ranks_learn_in_equal_steps(self, optimizer: str, run: Run) -> None:
        pytest.importorskip("tensorflow")
        options = ("--quick", "--batch-size", "32", "--optimizer", optimizer)
        out, _ = run("data_parallel.py", *options)
        assert len(found := accuracies(out, 20, "ranks")) == 2
        assert found[-1] > 0.6, "guessing gives 0.1"

    def test_all_wait_for_a_slow_rank(self, run: Run, tmp_path: Path) -> None:
        pytest.importorskip("tensorflow")
        pytest.importorskip("matplotlib")
        picture = tmp_path / "slow.png"
        out, _ = run("data_parallel.py", "--quick", "--slow", "4", "--plot", str(picture))
        assert picture.stat().st_size > 2000
        figures = json.loads(picture.with_suffix(".json").read_text())
        even, slow = figures["runs"]
        assert (even["work_ms"], slow["work_ms"]) == ([20, 20], [20, 80])
        assert {len(waits) for found in (even, slow) for waits in found["waits"]} == {19}
        first, second = map(np.median, slow["waits"])
        assert first > second == 0, "the slow rank comes last"
        assert re.search(r"^\| 1 \| 80 \| 0 \| \d+ \|$", out, re.MULTILINE)

    def test_a_minibatch_8_times_larger(self, run: Run, tmp_path: Path) -> None:
        pytest.importorskip("tensorflow")
        pytest.importorskip("matplotlib")
        picture = tmp_path / "large.png"
        out, _ = run("data_parallel.py", "--quick", "--large-batch", "8", "--plot", str(picture))
        assert picture.stat().st_size > 2000
        assert re.findall(r"^epoch 1: (\d+) steps", out, re.MULTILINE) == ["20", "2", "2", "2"]
        cases = json.loads(picture.with_suffix(".json").read_text())["accuracies"]
        assert list(cases) == [
            "minibatch 64",
            "512, the same rate",
            "512, 8 times the rate",
            "512, 8 times the rate, warm-up",
        ]
        assert all(len(history) == 2 for histories in cases.values() for history in histories)

    def test_the_linear_rule_and_the_warm_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("tensorflow")
        monkeypatch.syspath_prepend(str(EXAMPLES))
        from large_minibatch import make_optimizers

        def rates(**changed: Any) -> list[float]:
            options = {"learning_rate": 0.05, "epochs": 5, "optimizer": "momentum", **changed}
            (optimizer,) = make_optimizers(Namespace(**options), scale=8, steps=10)
            optimizer.build([])
            found = []
            for step in (0, 10):
                optimizer.iterations.assign(step)
                found.append(round(float(optimizer.learning_rate), 4))
            return found

        assert rates(warmup=1) == [0.05, 0.4]
        assert rates(warmup=0)[0] == 0.4
        assert rates(warmup=1, epochs=1)[0] == 0.05, "a training that is all warm-up"

    def test_a_killed_rank_ends_the_other_with_a_clear_error(self, run: Run) -> None:
        pytest.importorskip("tensorflow")
        _, errors = run("data_parallel.py", "--quick", "--die", "1", code=1)
        assert "rank 0: another rank died or cannot be reached (" in errors
        assert "training ended: rank 1 was killed by SIGKILL; rank 0 ended with code 1" in errors

    def test_ranks_that_never_come_are_named(self, run: Run) -> None:
        pytest.importorskip("tensorflow")
        options = ("--quick", "--workers", "3", "--start", "2", "--connect-s", "1")
        _, errors = run("data_parallel.py", *options, code=1)
        absent = (
            r"rank 0: one of 3 ranks, and no answer within 1 s from (rank 1 at \S+, )?rank 2 at"
        )
        assert re.search(absent, errors)
        assert "Start all ranks, with the same list of addresses" in errors

    def test_ranks_with_different_worlds_end_with_both_sizes(
        self, run: Run, tmp_path: Path
    ) -> None:
        pytest.importorskip("tensorflow")
        file = tmp_path / "program.py"
        file.write_text(DIFFERENT_WORLDS)
        _, errors = run(str(file), "--quick", "--connect-s", "10", code=1)
        assert re.search("group with size ?3, but that group has size 2|Unexpected task", errors)
        assert "rank 0: another rank died or cannot be reached (" in errors

    def test_fewer_records_than_ranks_are_refused(self, run: Run) -> None:
        pytest.importorskip("tensorflow")
        options = ("--quick", "--records", "1")
        _, errors = run("data_parallel.py", *options, code=1)
        assert "rank 0: shard=(0, 2): 1 records for 2 ranks are 0 for each of them" in errors

    def test_jax(self, run: Run) -> None:
        pytest.importorskip("jax")
        out, _ = run("jax_processes.py", "--quick")
        first, second = accuracies(out, 10, "processes")
        assert second > max(first, 0.5)

    def test_jax_without_one_of_its_processes(self, run: Run) -> None:
        pytest.importorskip("jax")
        _, errors = run("jax_processes.py", "--quick", "--die", "1", code=1)
        assert "training ended: process 1 was killed by SIGKILL" in errors


class TestTorch:
    def test_a_killed_training_resumes_as_if_nothing_had_happened(
        self, run: Run, tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        quick = ("torch_ddp.py", "--quick", "--save")
        out, _ = run(*quick, str(tmp_path / "whole"), by=TORCHRUN)
        whole = accuracies(out, 10, "ranks")
        assert len(whole) == 3 and whole[-1] > 0.6
        out, errors = run(*quick, str(tmp_path / "part"), "--die", "1", by=TORCHRUN, code=1)
        assert "Signal 9 (SIGKILL)" in errors
        assert accuracies(out, 10, "ranks") == whole[:1]
        out, _ = run(*quick, str(tmp_path / "part"), "--resume", by=TORCHRUN)
        assert accuracies(out, 10, "ranks") == whole[1:]
        _, errors = run(*quick, str(tmp_path / "none"), "--resume", by=TORCHRUN, code=1)
        assert "does not exist: resume with as many ranks as have saved" in errors


class TestAsynchronous:
    @pytest.mark.parametrize(
        ("framework", "options"),
        [("tensorflow", ("--slow", "4")), ("torch", ("--slow", "4")), ("jax", ())],
    )
    def test_every_record_is_applied_once_an_epoch(
        self, framework: str, options: tuple[str, ...], run: Run
    ) -> None:
        pytest.importorskip(framework)
        # a small step: at 0.1, updates that are two behind already undo each other
        quick = ("async_parallel.py", "--quick", "--framework", framework)
        out, errors = run(*quick, "--learning-rate", "0.01", *options)
        assert "training: 100%" in errors and "40/40" in errors
        assert "applied in 2 epochs: 1280 records 2 times\n" in out
        assert re.search(r"staleness \d+ \(median\), \d+ \(95 %\), \d+ \(most\)", out)
        assert float(re.search(r"test accuracy (\S+)", out)[1]) > 0.4, "guessing gives 0.1"

    @pytest.mark.parametrize("framework", ["tensorflow", "torch"])  # JAX's worker is that of torch
    def test_the_batches_of_a_dead_worker_go_to_another(self, framework: str, run: Run) -> None:
        pytest.importorskip(framework)
        options = ("--quick", "--framework", framework, "--workers", "2", "--die", "1")
        out, _ = run("async_parallel.py", *options)
        counts = re.findall(r"(\d+) records (\d) times", out)
        applied = {int(times): int(count) for count, times in counts}
        assert sum(applied.values()) == 1280
        assert min(applied) >= 2, "none is lost; the last steps of the dead worker may come again"


def test_the_tables_of_the_page_are_those_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import async_results
    import data_parallel_studies

    page = (ROOT / "docs" / "data-parallel.md").read_text()
    tables = dict.fromkeys(("large_minibatch", "slow_rank"), data_parallel_studies.table)
    for name, table in {**tables, "async_parallel": async_results.table}.items():
        figures = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
        assert table(figures) in page, name


def test_the_speed_in_the_picture_is_that_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import async_results

    def run_of(*seconds: float) -> dict[str, Any]:
        sent = [(index, s, Counter({0: 30, 1: 10})) for index, s in enumerate(seconds)]
        found = {"sent": sent, "accuracy": 0.9, "applied": Counter({2: 64}), "given_again": 0}
        return async_results.summary(found, len(seconds))

    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    sweep = [run_of(2.0), run_of(2.0, 4.0)]
    async_results.plot(sweep, str(tmp_path / "unused.png"))
    (speeds,) = (line.get_ydata() for line in drawn[0].axes[0].lines if line.get_marker() == "o")
    assert list(speeds) == [20, 20]
    assert re.findall(
        r"^\| (\d) \| (\d+) \| (\d+) % \|", async_results.table(sweep), re.MULTILINE
    ) == [
        ("1", "20", "100"),
        ("2", "20", "50"),
    ]


def test_the_perceptron_tells_where_the_time_went(run: Run) -> None:
    pytest.importorskip("tensorflow")
    out, _ = run("mnist_mlp.py", "--quick")
    assert "379,600 FLOP a sample, 1,280 samples an epoch" in out
    parts = re.findall(
        r"steps (\d+)%, waited for input (\d+)%, .* steps (\d+)%$", out, re.MULTILINE
    )
    assert len(parts) == 3
    assert all(98 <= sum(map(int, part)) <= 102 for part in parts)
    assert float(re.search(r"test accuracy (\S+)", out)[1]) > 0.6
