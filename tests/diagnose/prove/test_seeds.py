"""Runs with other seeds draw other numbers, wherever a script seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEEDS = (
    "from fastfeed.diagnose.hooks.hook_log import HookLog; "
    "from fastfeed.diagnose.prove.seeds import set_seeds; "
    "from fastfeed.steps.timeline import Timeline; set_seeds(HookLog(Timeline()), shift={}); "
)
UNSEEDED = [
    ("random", "import random; print(random.random())"),
    ("random", "import random; print(random.Random().random())"),
    ("numpy", "import numpy as np; print(np.random.default_rng().random())"),
    ("numpy", "import numpy as np; print(np.random.rand())"),
    ("numpy", "import numpy as np; np.random.seed(); print(np.random.rand())"),
    ("torch", "import torch; print(torch.rand(1))"),
]


def printed(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(("needs", "code"), UNSEEDED)
def test_a_generator_without_a_seed_draws_the_same_in_each_run(needs: str, code: str) -> None:
    pytest.importorskip(needs)
    assert printed(SEEDS.format(0) + code) == printed(SEEDS.format(0) + code)
    assert printed(SEEDS.format(0) + code) != printed(SEEDS.format(5) + code)


def test_two_generators_without_a_seed_draw_other_numbers() -> None:
    code = "import numpy as np; print(*(np.random.default_rng().random() for _ in range(2)))"
    one, two = printed(SEEDS.format(0) + code).split()
    assert one != two


@pytest.mark.parametrize(
    ("needs", "code"),
    [
        ("random", "import random; random.seed(1); print(random.random())"),
        ("random", "import random; print(random.Random(1).random())"),
        ("numpy", "import numpy as np; print(np.random.default_rng(1).random())"),
        ("numpy", "import numpy as np; np.random.seed(1); print(np.random.rand())"),
        ("numpy", "import numpy as np; print(np.random.RandomState(seed=1).rand())"),
        ("torch", "import torch; torch.manual_seed(1); print(torch.rand(1))"),
        pytest.param(
            *("jax", "import jax; print(jax.random.uniform(jax.random.PRNGKey(1)))"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("tensorflow", "import tensorflow as tf; tf.random.set_seed(1); "),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_seed_gives_other_numbers(needs: str, code: str) -> None:
    pytest.importorskip(needs)
    if needs == "tensorflow":
        code += "print(tf.random.uniform(()).numpy())"
    assert printed(SEEDS.format(0) + code) == printed(code)
    one, two = printed(SEEDS.format(5) + code), printed(SEEDS.format(5) + code)
    assert one == two
    assert one != printed(code)
