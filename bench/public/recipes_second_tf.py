"""A second set of recipes: TensorFlow 1 and 2, Keras, JAX."""

from __future__ import annotations

from bench.public.recipe import (
    BESIDE,
    ENVIRONMENT,
    IN_MEMORY,
    SERIAL,
    Edit,
    Recipe,
    Variant,
    after,
    without,
)
from bench.public.recipes_keras import LONGER, MANY, NEW, READY
from bench.public.recipes_tf1 import COMPAT, FED, LEGACY

SECOND_TF_COMMITS = {
    "YunYang1994/TensorFlow2.0-Examples": ("299fd6689f242d0f647a96b8844e86325e9fcb46", "MIT"),
    "google-deepmind/jraph": ("51f5990104f7374492f8f3ea1cbc47feb411c69c", "Apache-2.0"),
    "hwalsuklee/tensorflow-mnist-VAE": ("e7903ac398aa5fc3eec8470177abf6ef78d9cac1", "none stated"),
    "sherjilozair/char-rnn-tensorflow": ("4bff62d34ba6d536f052145cd3f8f79b6fa11365", "MIT"),
    "snowkylin/tensorflow-handbook": ("ee9fbe02ceee4e2f4fe23960219dd23ad5904c55", "none stated"),
    "tkipf/gcn": ("39a4089fe72ad9f055ed6fdb9746abdcfebc4d81", "MIT"),
}

TALLY = "__import__('tally')"
# What was `tensorflow.contrib.legacy_seq2seq` and is private today.
SEQUENCES = r"""
class legacy_seq2seq:
    @staticmethod
    def rnn_decoder(inputs, state, cell, loop_function=None, scope=None):
        with tf.variable_scope(scope):
            return tf.nn.static_rnn(cell, inputs, state)

    @staticmethod
    def sequence_loss_by_example(logits, targets, weights):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits[0], labels=targets[0])
"""
IMAGES = r"""from PIL import Image


def imsave(path, pixels):
    Image.fromarray(np.uint8(pixels)).save(path)


def imresize(pixels, size, interp):
    image = Image.fromarray(np.uint8(255 * pixels))
    return np.asarray(image.resize(size, getattr(Image, interp.upper())))"""
SUMMED = r"sess\.run\(\[summaries, model\.cost, model\.final_state"
CHAR_RNN = Recipe(
    "tf1_char_rnn",
    "tf1",
    "text",
    "sherjilozair/char-rnn-tensorflow",
    "train.py",
    "--num_epochs 1000000",
    count="session",
    environment=LEGACY,
    input_codes=FED,
    edits=(
        Edit(r"(?m)^import tensorflow as tf", COMPAT.replacement),
        Edit(r"(?m)^import tensorflow as tf", COMPAT.replacement, "model.py"),
        Edit(r"from tensorflow\.contrib import legacy_seq2seq", SEQUENCES, "model.py"),
    ),
    free=Variant((Edit(r"data_loader\.next_batch\(\)", f"{TALLY}.once(data_loader.next_batch)"),)),
    quiet=Variant(
        (
            Edit(SUMMED, "sess.run([model.cost, model.cost, model.final_state"),
            without(r"writer\.add_summary\("),
            Edit(r"print\(\"\{\}/\{\}", 'str("{}/{}'),
            Edit(r"if \(e \* data_loader\.num_batches \+ b\) %", "if False and (0) %"),
            Edit(r"or \(e == args\.num_epochs-1 and", "or (False and"),
        )
    ),
    changes={
        "every=10x": Variant(
            (
                Edit(
                    SUMMED,
                    "sess.run([model.cost if b % 10 else summaries, model.cost, model.final_state",
                ),
                Edit(r"( +)writer\.add_summary\(", r"\1if b % 10 == 0: writer.add_summary("),
                Edit(r"( +)print\(\"\{\}/\{\}", r'\1if b % 10 == 0: print("{}/{}'),
            )
        )
    },
)
VAE = Recipe(
    "tf1_mnist_vae",
    "tf1",
    "image",
    "hwalsuklee/tensorflow-mnist-VAE",
    "run_main.py",
    "--num_epochs 1000000 --dim_z 20",
    count="session",
    environment=LEGACY,
    input_codes=FED,
    data=("idx:data",),
    rows=12000,
    edits=(
        COMPAT,
        Edit(COMPAT.pattern, COMPAT.replacement, "mnist_data.py"),
        Edit(COMPAT.pattern, COMPAT.replacement, "vae.py"),
        Edit(
            r"tf\.contrib\.layers\.variance_scaling_initializer\(\)",
            "tf.variance_scaling_initializer(2.0)",
            "vae.py",
        ),
        Edit(r"\b60000\b", "12000", "mnist_data.py"),
        Edit(r"\b10000\b", "2000", "mnist_data.py"),
        Edit(r"VALIDATION_SIZE = 5000", "VALIDATION_SIZE = 1000", "mnist_data.py"),
        Edit(
            r"from scipy\.misc import imsave\nfrom scipy\.misc import imresize",
            IMAGES,
            "plot_utils.py",
        ),
    ),
    free=Variant(
        (
            without(r"np\.random\.shuffle\(train_total_data\)"),
            Edit(r"train_data_\[offset:\(offset \+ batch_size\), :\]", "train_data_[:batch_size]"),
        )
    ),
    quiet=Variant((Edit(r"if min_tot_loss > tot_loss or .*:", "if False:"),)),
    changes={
        "every=10x": Variant(
            (
                Edit(
                    r"if min_tot_loss > tot_loss or .*:",
                    "if epoch % 10 == 0 and min_tot_loss > tot_loss:",
                ),
            )
        )
    },
)
GCN = Recipe(
    "tf1_gcn",
    "tf1",
    "graph",
    "tkipf/gcn",
    "gcn/train.py",
    "--epochs 100000000 --early_stopping 100000000",
    count="session",
    environment={**LEGACY, "PYTHON_ROOT": ".."},
    input_codes=FED,
    edits=(
        COMPAT,
        *(
            Edit(COMPAT.pattern, COMPAT.replacement, file)
            for file in ("layers.py", "inits.py", "metrics.py")
        ),
        Edit(r"scipy\.sparse\.linalg\.eigen\.arpack", "scipy.sparse.linalg", "utils.py"),
        Edit(r"dtype=np\.bool\b", "dtype=bool", "utils.py"),
        Edit(
            r"    objects = \[\]",
            "    __import__('made_graph').complete()\n    objects = []",
            "utils.py",
        ),
    ),
    quiet=Variant(
        (Edit(r"( +)print\(\"Epoch:\"", r'\1str if True else print("Epoch:"'),),
        ("session.quiet",),
    ),
    changes={
        "every=10x": Variant(
            (
                Edit(r"    cost, acc, dur", "    if epoch % 10 == 0: cost, acc, dur"),
                Edit(r"    print\(\"Epoch:\"", '    if epoch % 10 == 0: print("Epoch:"'),
            )
        )
    },
)
SECOND_TF: tuple[Recipe, ...] = (
    CHAR_RNN,
    VAE,
    GCN,
    Recipe(
        "keras_metric_learning",
        "keras",
        "image",
        NEW,
        "examples/keras_io/tensorflow/vision/metric_learning.py",
        count="keras",
        edits=(
            LONGER,
            Edit(r"self\.num_batches", "self.count_of_batches"),
        ),
        input_codes=IN_MEMORY,
        free=READY,
        changes=MANY,
    ),
    Recipe(
        "tf2_mnist_cnn",
        "tf2",
        "image",
        "YunYang1994/TensorFlow2.0-Examples",
        "2-Basical_Models/CNN.py",
        rows=3200,
        edits=(LONGER, Edit(r"\.reset_states\(\)", ".reset_state()")),
        count=r"train_step\(images, labels\)",
        input_codes=BESIDE,
        free=Variant((Edit(r"in train_ds:", f"in {TALLY}.again(train_ds, 100):"),)),
        quiet=Variant((Edit(r"in test_ds:", "in ():"),)),
        changes={
            "every=10x": Variant((Edit(r"in test_ds:", "in () if epoch % 10 else test_ds:"),))
        },
    ),
    Recipe(
        "tf2_qlearning",
        "tf2",
        "rl",
        "snowkylin/tensorflow-handbook",
        "source/_static/code/zh/model/rl/qlearning.py",
        environment=LEGACY,
        edits=(Edit(r"num_episodes = 500", "num_episodes = 10**7"),),
        count=after(r"optimizer\.apply_gradients\(.*\) *#.*"),
        input_codes=ENVIRONMENT,
        free=Variant(
            (
                Edit(r"env\.step\(action\)", f"{TALLY}.replay(env.step, action)"),
                Edit(
                    r"map\(np\.array, zip\(\*random\.sample\(replay_buffer, batch_size\)\)\)",
                    f"{TALLY}.once(lambda: list(map(np.array, "
                    "zip(*random.sample(replay_buffer, batch_size)))))",
                ),
            )
        ),
    ),
    Recipe(
        "haiku_vae",
        "jax",
        "image",
        "google-deepmind/dm-haiku",
        "examples/vae.py",
        edits=(Edit(r"training_steps: int = 5000", "training_steps: int = 10**9"),),
        count=r"state = update\(.*\)",
        input_codes=BESIDE,
        free=Variant(
            (Edit(r"update\(state, next\(train_d", f"update(state, {TALLY}.ready(train_d"),)
        ),
        quiet=Variant((Edit(r"if step % config\.eval_every == 0", "if False"),)),
        changes={"every=10x": Variant((Edit(r"eval_every: int = 100", "eval_every: int = 1000"),))},
    ),
    Recipe(
        "jraph_sat",
        "jax",
        "graph",
        "google-deepmind/jraph",
        "jraph/examples/sat.py",
        needs=("jraph",),
        environment={"PYTHON_ROOT": "../.."},
        edits=(Edit(r"num_steps=10000", "num_steps=10**9"),),
        count=r"params, opt_state = update\(.*\)",
        input_codes=SERIAL,
        free=Variant(
            (
                Edit(
                    r"    problem = get_2sat_problem\(\*train_dataset\)",
                    f"    problem = {TALLY}.once(get_2sat_problem, *train_dataset)",
                ),
            )
        ),
        quiet=Variant((Edit(r"if step % 1000 == 0", "if False"),)),
        changes={"every=10x": Variant((Edit(r"if step % 1000 == 0", "if step % 10000 == 0"),))},
    ),
)
