"""Recipes of JAX, Flax and Haiku scripts."""

from __future__ import annotations

from bench.public.recipe import BESIDE, ENVIRONMENT, Edit, Recipe, Variant, after, without
from bench.public.recipes_torch import REPLAY_BATCH

EPOCHS = Edit(r"num_epochs = \d+", "num_epochs = 10**6")
LOCAL = Edit(r'_DATA = ".*"', '_DATA = "made/"', "datasets.py")
STREAM = Variant((Edit(r"next\(batches\)", "__import__('tally').ready(batches)"),))
ACCURACY = without(r"(train|test)_(acc|elbo).* = ")


def _jax(name: str, path: str, *edits: Edit, **given: object) -> Recipe:
    return Recipe(name, "jax", "image", "jax-ml/jax", f"examples/{path}", edits=(LOCAL, *edits),
        data=("idx:made",), environment={"PYTHON_ROOT": ".."}, **given)  # type: ignore  # fmt: skip


def _haiku(name: str, kind: str, path: str, args: str, **given: object) -> Recipe:
    found = {
        "environment": {"PYTHON_ROOT": "../.." if "/" in path else ".."},
        "needs": ("examples",),
        **given,
    }
    return Recipe(name, "jax", kind, "google-deepmind/dm-haiku", f"examples/{path}", args, **found)  # type: ignore


def _flax(name: str, kind: str, path: str, args: str, **given: object) -> Recipe:
    return Recipe(name, "jax", kind, "google/flax", f"examples/{path}", args, **given)  # type: ignore


NO_ACCURACY = Variant((Edit(r"(train|test)_acc = accuracy\(.*\)", r"\1_acc = 0"),))
JAX = (
    _jax(
        "jax_mnist",
        "mnist_classifier.py",
        EPOCHS,
        rows=12000,
        count=r"opt_state = update\(.*\)",
        free=STREAM,
        quiet=NO_ACCURACY,
    ),
    _jax(
        "jax_mnist_scratch",
        "mnist_classifier_fromscratch.py",
        EPOCHS,
        rows=12000,
        count=r"params = update\(.*\)",
        free=STREAM,
        quiet=NO_ACCURACY,
    ),
    _jax(
        "jax_vae_epochs",
        "mnist_vae.py",
        EPOCHS,
        rows=3200,
        count=r"opt_state = run_epoch\(.*\)",
        quiet=Variant(
            (
                Edit(
                    r"test_elbo, sampled_images = evaluate\(.*\)",
                    "test_elbo = 0; opt_state = jax.block_until_ready(opt_state)",
                ),
                without(r"plt\.imsave\("),
            )
        ),
    ),
    Recipe(
        "numpyro_vae_epochs",
        "jax",
        "image",
        "pyro-ppl/numpyro",
        "examples/vae.py",
        "--num-epochs 1000000",
        rows=3200,
        needs=("numpyro",),
        data=("idx:../numpyro/examples/.data",),
        environment={"PYTHON_ROOT": ".."},
        count=r"_, svi_state = epoch_train\(.*\)",
        quiet=Variant(
            (
                Edit(
                    r"test_loss = eval_test\(.*\)",
                    "test_loss = 0; __import__('jax').block_until_ready(svi_state)",
                ),
                without(r"reconstruct_img\(i"),
            )
        ),
    ),
    _flax(
        "flax_mnist",
        "image",
        "mnist/main.py",
        "--workdir made --config configs/default.py --config.num_epochs=100000",
        rows=9000,
        input_codes=BESIDE,
        count=after(r"train_step\(model, optimizer, metrics, batch, rngs\)", file="train.py"),
        free=Variant(
            (
                Edit(
                    r"in train_ds\.as_numpy_iterator\(\)",
                    "in __import__('tally').again(train_ds.as_numpy_iterator(), 70)",
                    "train.py",
                ),
            )
        ),
        quiet=Variant(
            (Edit(r"for batch in test_ds\.as_numpy_iterator\(\)", "for batch in ()", "train.py"),)
        ),
    ),
    _flax(
        "flax_vae",
        "image",
        "vae/main.py",
        "--workdir made --config configs/default.py --config.num_epochs=100000",
        rows=3000,
        input_codes=BESIDE,
        count=after(r"state = train_step\(.*\)", file="train.py"),
        free=Variant(
            (
                Edit(
                    r"batch = next\(train_ds\)",
                    "batch = __import__('tally').ready(train_ds)",
                    "train.py",
                ),
            )
        ),
        quiet=Variant(
            (
                Edit(
                    r"(?m)^    metrics, comparison, sample = eval_f",
                    "    continue\n    metrics, comparison, sample = eval_f",
                    "train.py",
                ),
            )
        ),
    ),
    _flax(
        "flax_nnx_vae",
        "image",
        "nnx_toy_examples/05_vae.py",
        "",
        rows=12000,
        edits=(
            Edit(r"from datasets import", "from made_hub import"),
            Edit(r"epochs: int = 20", "epochs: int = 10**6"),
        ),
        count=r"loss = train_step\(.*\)",
        free=Variant(
            (
                Edit(r"x_batch = X_train\[idxs\]", "x_batch = X_train[:batch_size]"),
                without(r"idxs = np\.random\.randint\(0, len\(X_train\)"),
            )
        ),
    ),
    _haiku(
        "haiku_mnist",
        "image",
        "mnist.py",
        "",
        input_codes=BESIDE,
        count=r"state = update\(.*\)",
        edits=(Edit(r"range\(3001\)", "range(10**9)"),),
        free=Variant(
            (
                Edit(
                    r"update\(state, next\(train_dataset\)\)",
                    "update(state, __import__('tally').ready(train_dataset))",
                ),
            )
        ),
        quiet=Variant((Edit(r"if step % 100 == 0", "if False"),)),
    ),
    _haiku(
        "haiku_rnn",
        "text",
        "rnn/train.py",
        "--training_steps 100000000",
        input_codes=BESIDE,
        count=r"state = update\(.*\)",
        free=Variant(
            (
                Edit(
                    r"train_batch = next\(train_data\)",
                    "train_batch = __import__('tally').ready(train_data)",
                ),
            )
        ),
        quiet=Variant(
            (Edit(r"(SAMPLING|EVALUATION)_INTERVAL\.value == 0", r"\1_INTERVAL.value < 0"),)
        ),
    ),
    _haiku(
        "haiku_transformer",
        "text",
        "transformer/train.py",
        "--dataset_path made.txt",
        data=("text:made.txt",),
        count=r"state, metrics = update\(.*\)",
        free=Variant(
            (
                Edit(
                    r"    data = next\(train_dataset\)",
                    "    data = __import__('tally').ready(train_dataset)",
                ),
            )
        ),
        quiet=Variant((Edit(r"if step % LOG_EVERY == 0", "if False"),)),
    ),
    Recipe(
        "cleanrl_dqn_jax",
        "jax",
        "rl",
        "vwxyzjn/cleanrl",
        "cleanrl/dqn_jax.py",
        "--learning-starts 200 --total-timesteps 5000000",
        needs=("cleanrl_utils",),
        environment={"PYTHON_ROOT": ".."},
        free=REPLAY_BATCH,
        input_codes=ENVIRONMENT,
        count=Edit(
            r"(?m)^( +)(# perform a gradient-descent step)", r"\1__import__('tally').tick()\n\1\2"
        ),
    ),
)
