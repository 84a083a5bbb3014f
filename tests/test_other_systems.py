"""Threads, sinks and the benchmark work on systems that have less than Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_S = 120
LOOP = """
from fastfeed import FeedRunner, Shuffle
options = dict(batch_size=10, threads=3, transform=lambda n: 2 * n, epochs=2)
for more in ({}, {"shuffle": Shuffle(50, 10)}, {"cache": "ram"}, {"cache": "FOLDER"}):
    with FeedRunner(list(range(100)), **options, **more) as runner:
        assert sum(batch.sum() for batch in runner) == 4 * 4950
        assert runner.snapshot().starvation <= 1 and runner.state()
"""
REFUSALS = """
from fastfeed import FeedRunner, OptionError
for option in ({"processes": 2}, {"metrics": "prometheus:0"}):
    try:
        FeedRunner([1], batch_size=1, **option)
    except OptionError as error:
        assert "requires Linux" in str(error), error
    else:
        raise AssertionError(option)
"""
DIAGNOSIS = """
import sys
from fastfeed.cli import main
sys.argv[0] = "fastfeed"
try:
    main(["diagnose", "--", "train.py"])
except SystemExit as end:
    assert end.code == 2, end
"""
BENCHMARK = """
from fastfeed.cli import main
main("bench --workload sleep:1ms --consumer sim:2ms --threads 2 --seconds 0.2 --repeats 1".split())
"""
SINKS = """
import numpy as np, tensorflow as tf
from fastfeed import FeedRunner
records = [np.float32(n) for n in range(40)]
with FeedRunner(records, batch_size=10, threads=2) as runner:
    assert len(list(runner.torch())) == 4
with FeedRunner(records, batch_size=10, threads=2) as runner:
    assert len(list(runner.jax())) == 4
with FeedRunner(records, batch_size=10, threads=2) as runner:
    assert len(list(runner.dataset())) == 4
with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    runner = FeedRunner(records, batch_size=10, threads=2)
    batch = runner.get_inputs()
    runner.start(sess)
    assert sess.run(batch).shape == (10,)
    runner.stop()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LOOP, id="loop"),
        pytest.param(REFUSALS, id="refusals"),
        pytest.param(DIAGNOSIS, id="diagnosis"),
        pytest.param(BENCHMARK, id="benchmark", marks=pytest.mark.slow),
        pytest.param(SINKS, id="sinks", marks=pytest.mark.slow),
    ],
)
def test_a_program_without_linux(program: str, tmp_path: Path) -> None:
    code = "import tests.helpers.other_system\n" + program.replace("FOLDER", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
