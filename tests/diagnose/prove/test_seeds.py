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
GRAPH = "import tensorflow as tf; v1 = tf.compat.v1; v1.disable_eager_execution(); "
FLIPS = "import keras; import numpy as np; x = np.arange(96.0).reshape(32, 1, 3, 1); "
UNSEEDED = [
    ("random", "import random; print(random.random())"),
    ("random", "import random; print(random.Random().random())"),
    ("numpy", "import numpy as np; print(np.random.default_rng().random())"),
    ("numpy", "import numpy as np; print(np.random.rand())"),
    ("numpy", "import numpy as np; np.random.seed(); print(np.random.rand())"),
    ("numpy", "import numpy as np; print(np.random.Generator(np.random.PCG64()).random())"),
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
    ("needs", "draws"),
    [
        (
            "numpy",
            (
                "random.Random('one').random()",
                "random.Random(1.5).random()",
                "r.default_rng(np.int64(3)).random()",
                "r.default_rng([42, 7]).random()",
                "r.default_rng(np.array([42, 7])).random()",
                "r.default_rng(r.SeedSequence(42).spawn(2)[1]).random()",
                "r.Generator(r.PCG64(0)).random()",
                "r.Generator(r.Philox(seed=(1, 2))).random()",
                "r.Generator(r.MT19937(r.SeedSequence(1))).random()",
            ),
        ),
        (
            "torch",
            (
                "torch.rand(1, generator=torch.Generator().manual_seed(3))",
                "torch.randperm(9, generator=torch.Generator())",
            ),
        ),
    ],
)
def test_a_seed_of_any_form_gives_other_numbers(needs: str, draws: tuple[str, ...]) -> None:
    pytest.importorskip(needs)
    names = "import torch" if needs == "torch" else "import random, numpy as np; r = np.random"
    code = f"{names}; print({', '.join(draws)}, sep='\\n')"
    plain, same, other = map(printed, (code, SEEDS.format(0) + code, SEEDS.format(5) + code))
    assert plain == same
    pairs = zip(plain.splitlines(), other.splitlines(), strict=True)
    assert [a != b for a, b in pairs] == [True] * len(draws)


SLOW_SEEDS = [
    ("tensorflow", "import tensorflow as tf; g = tf.random.Generator.from_seed(1); "),
    ("tensorflow", f"{GRAPH}v1.set_random_seed(1); "),
    ("keras", f"{FLIPS}layer = keras.layers.RandomFlip(seed=1); print(layer(x).numpy())"),
    ("keras", f"{FLIPS}print(keras.random.uniform((2,), seed=1).numpy())"),
    ("jax", "import jax; print(jax.random.uniform(jax.random.PRNGKey(1)))"),
    ("tensorflow", "import tensorflow as tf; tf.random.set_seed(1); "),
]


@pytest.mark.parametrize(
    ("needs", "code"),
    [
        ("random", "import random; random.seed(1); print(random.random())"),
        ("random", "import random; print(random.Random(1).random())"),
        ("numpy", "import numpy as np; print(np.random.default_rng(1).random())"),
        ("numpy", "import numpy as np; np.random.seed(1); print(np.random.rand())"),
        ("numpy", "import numpy as np; print(np.random.RandomState(seed=1).rand())"),
        ("torch", "import torch; torch.manual_seed(1); print(torch.rand(1))"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW_SEEDS),
    ],
)
def test_a_seed_gives_other_numbers(needs: str, code: str) -> None:
    pytest.importorskip(needs)
    if needs == "tensorflow":
        drawn = f"{'g' if ' g =' in code else 'tf.random'}.uniform(())"
        code += f"print(v1.Session().run({drawn}))" if GRAPH in code else f"print({drawn}.numpy())"
    assert printed(SEEDS.format(0) + code) == printed(code)
    one, two = printed(SEEDS.format(5) + code), printed(SEEDS.format(5) + code)
    assert one == two
    assert one != printed(code)


@pytest.mark.parametrize(
    ("needs", "code"),
    [
        ("numpy", "r = np.random; o = r.PCG64(1); assert isinstance(o, r.PCG64)"),
        ("numpy", "r = np.random; o = r.RandomState(1); assert isinstance(o, r.RandomState)"),
        ("numpy", "r = np.random; assert isinstance(r.mtrand._rand, r.RandomState); o = 1"),
        (
            "numpy",
            "o = type('Mine', (np.random.RandomState,), {'x': 3})(1); assert o.x == 3; o = 1",
        ),
        (
            "torch",
            "import torch; assert isinstance(torch.default_generator, torch.Generator); o = 1",
        ),
        ("torch", "import torch; o = torch.Generator().get_state()"),
    ],
)
def test_generators_keep_their_kind(needs: str, code: str) -> None:
    pytest.importorskip(needs)
    more = "; assert type(pickle.loads(pickle.dumps(o))) is type(o); print('done')"
    assert printed(f"{SEEDS.format(5)} import pickle; import numpy as np; {code}{more}") == "done\n"


def test_the_order_of_a_runner_is_no_draw() -> None:
    code = (
        "from fastfeed.core import order, worker; "
        "draw = 'np.random.default_rng((1, 2)).random()'; "
        "print(eval(draw, vars(order)), eval(draw, vars(worker)))"
    )
    one, two = (printed(SEEDS.format(shift) + code).split() for shift in (0, 5))
    assert one[0] == two[0] and one[1] != two[1]
