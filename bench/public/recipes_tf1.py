"""Recipes of scripts with TensorFlow 1 sessions, which run with tensorflow.compat.v1."""

from __future__ import annotations

from bench.public.recipe import BESIDE, Edit, Recipe, Variant

COMPAT = Edit(
    r"(?m)^import tensorflow as tf", "import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()"
)
LONGER = Edit(
    r"(?m)^(num_steps|training_epochs|training_steps|total_epoch|training_epochs) = \d+",
    r"\1 = 10**8",
)
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
MNIST_READY = Variant(switches=("mnist.ready",))
FED = ("input.serial", "input.copy")  # through feed_dict
QUIET = Variant(switches=("session.quiet",))
NETWORKS = "tensorflow_v1/examples/3_NeuralNetworks"


def _tf1(name: str, kind: str, repository: str, path: str, *edits: Edit, **given: object) -> Recipe:
    found = {"free": MNIST_READY, "environment": LEGACY, "input_codes": FED, **given}
    return Recipe(
        name, "tf1", kind, repository, path, count="session", edits=(COMPAT, *edits), **found
    )  # type: ignore


def _damien(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    return _tf1(name, kind, "aymericdamien/TensorFlow-Examples", path, *edits, **given)


def _nlintz(name: str, kind: str, path: str, batch: str, *edits: Edit, **given: object) -> Recipe:
    edits = (Edit(r"range\(100\)", "range(10**7)"), *edits)
    free = Variant((Edit(r"X: trX\[start:end\], Y: trY\[start:end\]", batch),))
    return _tf1(
        name, kind, "nlintz/TensorFlow-Tutorials", path, *edits, free=free, quiet=QUIET, **given
    )


def _golbin(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    edits = (Edit(r"for epoch in range\((\d+|total_epoch)\)", "for epoch in range(10**7)"), *edits)
    return _tf1(name, kind, "golbin/TensorFlow-Tutorials", path, *edits, **given)


def _hunkim(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    return _tf1(name, kind, "hunkim/DeepLearningZeroToAll", path, *edits, **given)


def _morvan(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    repository = "MorvanZhou/Tensorflow-Tutorial"
    edits = (Edit(r"for step in range\(\d+\)", "for step in range(10**8)"), *edits)
    return _tf1(name, kind, repository, f"tutorial-contents/{path}", *edits, **given)


HEAD = "X: trX[:128], Y: trY[:128]"
TF1 = (
    _damien("tf1_network_raw", "image", f"{NETWORKS}/neural_network_raw.py", LONGER, quiet=QUIET),
    _damien(
        "tf1_convolution_raw",
        "image",
        f"{NETWORKS}/convolutional_network_raw.py",
        LONGER,
        quiet=QUIET,
    ),
    _damien("tf1_gan", "gan", f"{NETWORKS}/gan.py", LONGER),
    _damien("tf1_recurrent", "image", f"{NETWORKS}/recurrent_network.py", LONGER, quiet=QUIET),
    _damien(
        "tf1_dataset",
        "image",
        "tensorflow_v1/examples/5_DataManagement/tensorflow_dataset_api.py",
        LONGER,
        input_codes=BESIDE,
        quiet=QUIET,
        free=Variant(
            (
                Edit(
                    r"X, Y = iterator\.get_next\(\)",
                    "X, Y = map(tf.constant, mnist.train.next_batch(128))",
                ),
            )
        ),
    ),
    _nlintz("nlintz_net", "image", "04_modern_net.py", HEAD, rows=12000),
    _nlintz("nlintz_convolution", "image", "05_convolutional_net.py", HEAD, rows=6000),
    _golbin(
        "golbin_gan",
        "gan",
        "09 - GAN/01 - GAN.py",
        Edit(
            r"import numpy as np",
            "import numpy as np; import os; os.makedirs('samples', exist_ok=True)",
        ),
    ),
    _hunkim("hunkim_cnn", "image", "lab-11-1-mnist_cnn.py", LONGER),
    _hunkim(
        "hunkim_long_char",
        "text",
        "lab-12-4-rnn_long_char.py",
        Edit(r"range\(500\)", "range(10**8)"),
        free=Variant(),
    ),
    _morvan(
        "morvan_tf_gan",
        "gan",
        "406_GAN.py",
        quiet=Variant((Edit(r"if step % 50 == 0", "if False"),)),
        free=Variant(
            (Edit(r"= artist_works\(\)  ", "= __import__('tally').once(artist_works)  "),)
        ),
    ),
    _tf1(
        "text_cnn",
        "text",
        "dennybritz/cnn-text-classification-tf",
        "train.py",
        Edit(r"(?m)^import tensorflow as tf", COMPAT.replacement, "text_cnn.py"),
        Edit(r"data = np\.array\(data\)", "data = np.array(data, dtype=object)", "data_helpers.py"),
        data=("reviews:data/rt-polaritydata",),
        rows=2000,
        free=Variant(
            (
                Edit(
                    r"for batch in batches:",
                    "for batch in __import__('tally').again(batches, 10**8):",
                ),
            )
        ),
        quiet=Variant(
            (
                Edit(r"FLAGS\.evaluate_every == 0", "FLAGS.evaluate_every < 0"),
                Edit(r"FLAGS\.checkpoint_every == 0", "FLAGS.checkpoint_every < 0"),
            )
        ),
    ),
)
