"""Examples answer arguments that cannot work in one line, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.conftest import Run

# The runs of several examples in one interpreter: most of what a run takes is an import.
IN_TURN = """
import os, runpy, shlex, sys
folder, *runs = sys.argv[1:]
for run in runs:
    words = shlex.split(run)
    if "=" in words[0]:
        os.environ.update([words.pop(0).split("=")])
    sys.argv = [os.path.join(folder, words[0]), *words[1:]]
    print("run", file=sys.stderr, flush=True)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        print("code", end.code if isinstance(end.code, int) else 1, file=sys.stderr, flush=True)
"""
CASES = {
    "": [
        ("resume.py --threads 0", 'threads must be an integer >= 1 or "auto", got 0'),
        ("resume.py --crash 70", "must be a step from 0 to 69"),
        ("resume.py --processes x", "argument --processes: invalid int value: 'x'"),
        ("remote_ray.py --producers 0", "producers of Remote must be an integer >= 1"),
        ("remote_ray.py --remote nowhere", "got 'nowhere'"),
        ("data_parallel.py --workers 0", "--workers 0: must be 1 or more"),
        ("data_parallel.py --warmup nan", "--warmup nan: must be 0 or more"),
        ("data_parallel.py --start 3", "--start 3: there are 2 ranks"),
        ("data_parallel.py --die 2", "--die 2: must be one of the 2 that start, 0 to 1"),
        ("data_parallel.py --data nowhere", "--data nowhere: does not exist"),
        ("data_parallel.py --plot a.png", "it needs --compare"),
        ("data_parallel.py --slow 0.5", "--slow 0.5: must be 1 or more"),
        ("data_parallel.py --slow 4 --workers 1", "--slow: nobody waits for one rank"),
        ("data_parallel.py --large-batch 1", "--large-batch 1: must be 2 or more"),
        ("data_parallel.py --compare --slow 2", "--slow: not allowed with argument --compare"),
        ("async_parallel.py --workers 0", "--workers 0: must be 1 or more"),
        ("async_parallel.py --sweep 1,x", "argument --sweep: invalid numbers value: '1,x'"),
        ("async_parallel.py --sweep 2,0", "argument --sweep: invalid numbers value: '2,0'"),
        ("async_parallel.py --work-ms=-1", "--work-ms -1.0: must be 0 or more"),
        ("async_parallel.py --plot nowhere/a.png", "--plot nowhere/a.png: the folder does not"),
        ("jax_processes.py --processes 0", "--processes 0: must be 1 or more"),
        ("jax_processes.py --die -1", "--die -1: must be one of the 2 that start, 0 to 1"),
        ("mnist_mlp.py --records 0", "--epochs and --records must be 1 or more"),
        ("mnist_mlp.py --data nowhere", "nowhere does not exist"),
    ],
    "torch": [
        ("torch_ddp.py --quick", "torchrun starts the ranks: torchrun --nproc_per_node 2"),
        ("torch_ddp.py --batch-size 0", "--batch-size 0: must be 1 or more"),
        ("torch_loop.py --device nothing", "torch(device='nothing') is no device"),
    ],
    "cv2": [
        ("photos_dali.py --photos nowhere", "--photos nowhere: no .jpg file is there"),
        ("photos_dali.py --steps 0", "--steps 0: must be 1 or more"),
        ("photos_dali.py --on nothing", "Augment(on='nothing')"),
    ],
    "keras": [
        ("mnist_session.py --threads 0", 'threads must be an integer >= 1 or "auto", got 0'),
        ("mnist_session.py --sleep=-1", "--sleep must be 0 or more"),
        ("mnist_keras.py --batch-size 0", "batch_size must be an integer >= 1, got 0"),
        ("mnist_keras.py --data nowhere", "nowhere does not exist"),
        ("keras_fit.py --epochs 0", "--epochs 1 or more"),
        ("keras_fit.py --processes=-1", 'processes must be an integer >= 0 or "auto", got -1'),
        ("metric_learning.py --batch-size 0", "--size, --batch-size and --pairs must be 1 or more"),
        (
            "metric_learning.py --data nowhere",
            "--data nowhere: does not exist; it must be a folder",
        ),
        (
            "metric_learning.py --held-out 9 ten",
            "--held-out ten: no such group or class; there are 0,",
        ),
        ("FASTFEED_DATA=nowhere metric_learning.py", "nowhere: there is no such folder"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("needs", CASES)
def test_one_line_says_what_is_wrong(needs: str, run: Run, tmp_path: Path) -> None:
    if needs:
        pytest.importorskip("tensorflow" if needs == "keras" else needs)
    runs, texts = zip(*CASES[needs], strict=True)
    _, errors = run("", *runs, by=("-c", IN_TURN), folder=tmp_path)
    found = errors.split("run\n")[1:]
    for run, text, said in zip(runs, texts, found, strict=True):
        *_, answer, code = said.splitlines()
        assert text in answer and code in ("code 1", "code 2"), (run, said)
        assert "Traceback" not in said, (run, said)
