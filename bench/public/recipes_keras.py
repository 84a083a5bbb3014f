"""Recipes of Keras scripts and of TensorFlow 2 loops."""

from __future__ import annotations

from bench.public.recipe import BESIDE, IN_MEMORY, SERIAL, Edit, Recipe, Variant, without

READY = Variant(switches=("keras.ready",))
QUIET = Variant(switches=("keras.quiet",))
MANY = {"steps_per_execution=8": Variant(switches=("keras.many=8",))}
LONGER = Edit(r"\b(epochs|EPOCHS|num_epochs) ?= ?\d+\b", r"\1=10**6")
OLD, NEW = "keras-team/keras@2", "keras-team/keras@3"
ENDLESS = Edit(r"for epoch in range\((\d+|num_epochs)\)", "for epoch in range(10**6)")


def _keras(
    name: str, kind: str, repository: str, path: str, *edits: Edit, **given: object
) -> Recipe:
    found = {
        "free": READY,
        "quiet": QUIET,
        "changes": MANY,
        "count": "keras",
        "input_codes": IN_MEMORY,
        **given,
    }
    return Recipe(name, "keras", kind, repository, path, edits=(LONGER, *edits), **found)  # type: ignore


def _old(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    return _keras(name, kind, OLD, f"examples/{path}", *edits, **given)


def _new(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    return _keras(name, kind, NEW, f"examples/keras_io/{path}", *edits, **given)


def _tf2(name: str, kind: str, path: str, *edits: Edit, **given: object) -> Recipe:
    repository = "dragen1860/TensorFlow-2.x-Tutorials"
    return Recipe(name, "tf2", kind, repository, path, edits=edits, **given)  # type: ignore


def _again(loop: str, times: int) -> Variant:
    return Variant(
        (Edit(rf"enumerate\({loop}\)", f"enumerate(__import__('tally').again({loop}, {times}))"),)
    )


KERAS = (
    _old("keras_mnist_mlp", "image", "mnist_mlp.py"),
    _old(
        "keras_mnist_cnn",
        "image",
        "mnist_cnn.py",
        Edit(
            r"from keras import backend as K",
            "from keras import backend as K; K.image_data_format = lambda: 'channels_last'",
        ),
        rows=6000,
    ),
    _old("keras_imdb_lstm", "text", "imdb_lstm.py", rows=3200),
    _old("keras_imdb_fasttext", "text", "imdb_fasttext.py", rows=6400),
    _old(
        "keras_acgan",
        "gan",
        "mnist_acgan.py",
        Edit(
            r"from keras\.(layers\.advanced_activations|layers\.convolutional) import",
            "from keras.layers import",
        ),
        Edit(r"from keras\.utils\.generic_utils import", "from keras.utils import"),
        Edit(r"multiply\(\[latent, cls\]\)", "multiply([latent, layers.Flatten()(cls)])"),
        input_codes=SERIAL,
        rows=6000,
        changes={},
        quiet=None,
        free=Variant(
            (
                Edit(
                    r"image_batch = x_train\[index \* batch_size:\(index \+ 1\) \* batch_size\]",
                    "image_batch = x_train[:batch_size]",
                ),
            )
        ),
    ),
    _new("keras_convnet", "image", "vision/mnist_convnet.py", rows=6000),
    _new("keras_vae", "image", "tensorflow/generative/vae.py", rows=6000, quiet=None),
    _new(
        "keras_addition",
        "text",
        "nlp/addition_rnn.py",
        Edit(r"TRAINING_SIZE = \d+", "TRAINING_SIZE = 4000"),
        quiet=Variant((Edit(r"for i in range\(10\):", "for i in range(0):"),), ("keras.quiet",)),
    ),
    _new(
        "keras_movielens",
        "tabular",
        "structured_data/collaborative_filtering_movielens.py",
        Edit(r"movielens_zipped_file = [^)]*\)", "movielens_zipped_file = 'made/x'"),
        data=("ratings:made/ml-latest-small",),
        rows=20000,
    ),
    _new(
        "keras_timeseries",
        "timeseries",
        "timeseries/timeseries_classification_from_scratch.py",
        Edit(r'root_url = ".*"', 'root_url = "made/"'),
        without(r"keras\.utils\.plot_model"),
        data=("series:made",),
        rows=1200,
    ),
    _new(
        "keras_cats_dogs",
        "image",
        "vision/image_classification_from_scratch.py",
        without(r"keras\.utils\.plot_model"),
        data=("cats:PetImages",),
        input_codes=BESIDE,
        rows=640,
    ),
    _new(
        "keras_text_scratch",
        "text",
        "tensorflow/nlp/text_classification_from_scratch.py",
        Edit(r"dirpath = Path\(fpath\)\.parent\.absolute\(\)", "dirpath = '.'"),
        Edit(r"fpath = keras\.utils\.get_file\([^)]*\)", "fpath = 'made.tar'"),
        Edit(r"(?m)^os\.system\(.*$", ""),
        data=("folders:aclImdb",),
        input_codes=BESIDE,
        rows=3200,
    ),
)

TF2 = (
    _tf2(
        "tf2_gradient",
        "image",
        "05-FashionMNIST/mnist_Seqential_gradient.py",
        ENDLESS,
        count=r"loss, accuracy = train_one_step\(model, optimizer, x, y\)",
        input_codes=BESIDE,  # TensorFlow adds a prefetch at the end of a pipeline
        free=_again("train_ds", 200),
    ),
    _tf2(
        "tf2_fit",
        "image",
        "05-FashionMNIST/mnist_fit.py",
        LONGER,
        input_codes=BESIDE,
        count="keras",
        free=READY,
        quiet=QUIET,
        changes=MANY,
    ),
    _tf2(
        "tf2_vae",
        "image",
        "12-VAE/main.py",
        ENDLESS,
        Edit(r"import  os", "import os; os.makedirs('images', exist_ok=True)"),
        count=r"optimizer\.apply_gradients\(.*\)",
        rows=10000,
        free=_again("dataset", 100),
        quiet=Variant((Edit(r"    # Generative model", "    continue"),)),
    ),
    _tf2(
        "tf2_resnet",
        "image",
        "08-ResNet/main.py",
        LONGER,
        rows=2400,
        input_codes=IN_MEMORY,
        count="keras",
        free=READY,
        quiet=QUIET,
    ),
)
