"""A third set of recipes: TensorFlow 1 and 2, Keras, JAX."""

from __future__ import annotations

from bench.public.recipe import (
    BESIDE,
    ENVIRONMENT,
    IN_MEMORY,
    Edit,
    Recipe,
    Variant,
    without,
)
from bench.public.recipes_keras import LONGER, MANY, NEW, QUIET, READY
from bench.public.recipes_tf1 import COMPAT, FED, LEGACY, MNIST_READY
from bench.public.recipes_tf1 import QUIET as QUIET_SESSION

THIRD_TF_COMMITS = {
    "MorvanZhou/Reinforcement-learning-with-tensorflow": (
        "93e333484be0e262d28b65507b6a1d002424a056",
        "MIT",
    ),
    "chiphuyen/stanford-tensorflow-tutorials": ("51e53daaa2a32cfe7a1966f060b28dbbd081791c", "MIT"),
    "google-deepmind/distrax": ("f51bffcf9094d269a0be8678762dd2849833c8b7", "Apache-2.0"),
    "google/jaxopt": ("2de13bf01fd29e22862236a0d869f2b14e1629d4", "Apache-2.0"),
    "marload/DeepRL-TensorFlow2": ("876266d9a5fcf7d8a7c7e3afd8b110085b32b615", "Apache-2.0"),
    "philipperemy/keras-tcn": ("7576256b8b2a138b88ae2483b8616681686e424f", "MIT"),
    "pkmital/tensorflow_tutorials": ("c3eefe59979cdde7b8cb59d2c52da8ebebe43254", "Apache-2.0"),
    "wiseodd/generative-models": ("b930d5fa9e2f69adfd4ea8ec759f38f6ce6da4c2", "Unlicense"),
}

TALLY = "__import__('tally')"


def _compat(*files: str) -> tuple[Edit, ...]:
    return tuple(Edit(COMPAT.pattern, COMPAT.replacement, file) for file in ("", *files))


def _tf1(
    name: str, kind: str, repository: str, path: str, edits: tuple[Edit, ...], **given: object
) -> Recipe:
    found = {"count": "session", "environment": LEGACY, "input_codes": FED, **given}
    return Recipe(name, "tf1", kind, repository, path, edits=edits, **found)  # type: ignore


def _pkmital(name: str, path: str, *edits: Edit, **given: object) -> Recipe:
    edits = (*edits, Edit(r"n_epochs = \d+", "n_epochs = 10**8"))
    return _tf1(
        name, "image", "pkmital/tensorflow_tutorials", f"python/{path}", edits,
        quiet=QUIET_SESSION, **given,
    )  # fmt: skip


def _tcn(name: str, kind: str, path: str, root: str, *edits: Edit, **given: object) -> Recipe:
    return Recipe(
        name, "keras", kind, "philipperemy/keras-tcn", f"tasks/{path}", edits=edits, count="keras",
        needs=("tcn",), environment={"PYTHON_ROOT": root}, free=READY, quiet=QUIET, changes=MANY,
        input_codes=IN_MEMORY, **given,
    )  # type: ignore  # fmt: skip


GENERATIVE = "wiseodd/generative-models"
CVAE = _tf1(
    "wiseodd_cvae",
    "image",
    GENERATIVE,
    "VAE/conditional_vae/cvae_tensorflow.py",
    (*_compat(), Edit(r"range\(1000000\)", "range(10**9)")),
    free=MNIST_READY,
    quiet=Variant((Edit(r"if it % 1000 == 0", "if False"),)),
    changes={"every=10x": Variant((Edit(r"if it % 1000 == 0", "if it % 10000 == 0"),))},
)
WGAN = _tf1(
    "wiseodd_wgan",
    "gan",
    GENERATIVE,
    "GAN/wasserstein_gan/wgan_tensorflow.py",
    (*_compat(), Edit(r"range\(1000000\)", "range(10**9)")),
    free=Variant(
        (
            Edit(
                r"z: sample_z\(mb_size, z_dim\)",
                f"z: {TALLY}.once(sample_z, mb_size, z_dim)",
            ),
        ),
        MNIST_READY.switches,
    ),
    quiet=Variant((Edit(r"if it % 100 == 0", "if False"),)),
    changes={
        "every=10x": Variant((Edit(r"if it % (1000?) == 0", r"if it % (10 * \1) == 0"),)),
    },
)
STANFORD = "chiphuyen/stanford-tensorflow-tutorials"
READY_IMAGES = (
    r"\1tf.data.Dataset.from_tensor_slices(tuple(part[:batch_size] for part in train))"
    r".batch(batch_size).cache().repeat(len(train[0]) // batch_size)"
)
CONVNET = _tf1(
    "stanford_convnet",
    "image",
    STANFORD,
    "examples/07_convnet_mnist.py",
    (
        *_compat("utils.py"),
        Edit(r"n_epochs=30", "n_epochs=10**8"),
        Edit(r"num_train=55000", "num_train=2750", "utils.py"),
    ),
    count=r"_, l, .* = sess\.run\(.*\)",
    data=("digits:data/mnist",),
    rows=3000,
    input_codes=BESIDE,
    free=Variant(
        (
            without(r"train_data = train_data\.", file="utils.py"),
            Edit(
                r"(train_data = )tf\.data\.Dataset\.from_tensor_slices\(train\)",
                READY_IMAGES,
                "utils.py",
            ),
        )
    ),
    quiet=Variant(
        (
            Edit(r"self\.loss, self\.summary_op\]\)", "self.loss, self.loss])"),
            without(r"writer\.add_summary\("),
            Edit(r"if \(step \+ 1\) % self\.skip_step == 0", "if False"),
            without(r"saver\.save\("),
            without(r"self\.eval_once\(sess"),
        )
    ),
    changes={
        "every=10x": Variant(
            (
                Edit(
                    r"self\.loss, self\.summary_op\]\)",
                    "self.loss, self.loss if step % 10 else self.summary_op])",
                ),
                Edit(r"( +)writer\.add_summary\(", r"\1if step % 10 == 0: writer.add_summary("),
                Edit(r"self\.skip_step = 20", "self.skip_step = 200"),
                Edit(r"( +)saver\.save\(", r"\1if epoch % 10 == 0: saver.save("),
                Edit(r"( +)self\.eval_once\(sess", r"\1if epoch % 10 == 0: self.eval_once(sess"),
            )
        )
    },
)
WORD2VEC = _tf1(
    "stanford_word2vec",
    "text",
    STANFORD,
    "examples/04_word2vec.py",
    (
        *_compat("utils.py", "word2vec_utils.py"),
        without(r"from tensorflow\.contrib\.tensorboard"),
        Edit(r"NUM_TRAIN_STEPS = 100000", "NUM_TRAIN_STEPS = 10**9"),
    ),
    data=("text8:data/text8.zip",),
    input_codes=BESIDE,
    free=Variant(
        (
            Edit(
                r"center_words, target_words = iterator\.get_next\(\)",
                "center_words, target_words = map(tf.constant, next(gen()))",
            ),
        )
    ),
)
AUTOENCODER = _pkmital(
    "pkmital_autoencoder",
    "09_convolutional_autoencoder.py",
    Edit(r"    import tensorflow as tf\n", ""),
    *_compat("libs/activations.py", "libs/utils.py"),
    rows=6000,
    free=Variant(
        (
            Edit(
                r"train = (np\.array\(\[img - mean_img for img in batch_xs\]\))",
                rf"train = {TALLY}.once(lambda: \1)",
            ),
        ),
        MNIST_READY.switches,
    ),
)
BASIC = _pkmital(
    "pkmital_convnet",
    "05_basic_convnet.py",
    *_compat("libs/utils.py"),
    rows=6000,
    free=MNIST_READY,
)
MORVAN = "MorvanZhou/Reinforcement-learning-with-tensorflow"
ACTOR_CRITIC = _tf1(
    "morvan_actor_critic",
    "rl",
    MORVAN,
    "contents/8_Actor_Critic_Advantage/AC_CartPole.py",
    (*_compat(), Edit(r"MAX_EPISODE = 3000", "MAX_EPISODE = 10**9")),
    input_codes=ENVIRONMENT,
    free=Variant((Edit(r"env\.step\(a\)", f"{TALLY}.replay(env.step, a)"),)),
    quiet=Variant((without(r"print\(\"episode:\""),)),
)
DUELING = _tf1(
    "morvan_dueling_dqn",
    "rl",
    MORVAN,
    "contents/5.3_Dueling_DQN/run_Pendulum.py",
    (*_compat("RL_brain.py"), Edit(r"MEMORY_SIZE > 15000", "MEMORY_SIZE > 10**9")),
    input_codes=ENVIRONMENT,
    free=Variant(
        (
            Edit(r"env\.step\((np.*)\)", rf"{TALLY}.replay(env.step, \1)"),
            Edit(
                r"batch_memory = self\.memory\[sample_index, :\]",
                f"batch_memory = {TALLY}.once(self.memory[: self.batch_size].copy)",
                "RL_brain.py",
            ),
            without(r"sample_index = np\.random", file="RL_brain.py"),
        )
    ),
)
PPO = Recipe(
    "tf2_ppo",
    "tf2",
    "rl",
    "marload/DeepRL-TensorFlow2",
    "PPO/PPO_Discrete.py",
    edits=(
        Edit(r"max_episodes=1000", "max_episodes=10**9"),
        Edit(r"self\.env\.action_space\.n", "int(self.env.action_space.n)"),
    ),
    count=r"critic_loss = self\.critic\.train\(.*\)",
    input_codes=ENVIRONMENT,
    free=Variant((Edit(r"self\.env\.step\(action\)", f"{TALLY}.replay(self.env.step, action)"),)),
    quiet=Variant(
        (
            Edit(r"\.predict\((states|next_state)\)", r".predict(\1, verbose=0)"),
            Edit(r"\[1, self\.state_dim\]\)\)", "[1, self.state_dim]), verbose=0)"),
            without(r"print\('EP"),
            without(r"wandb\.log\("),
        )
    ),
)
IMDB = _tcn(
    "tcn_imdb",
    "text",
    "imdb_tcn.py",
    "..",
    Edit(r"    batch_size=batch_size,", "    batch_size=batch_size, epochs=10**6,"),
    rows=800,
)
PIXELS = _tcn(
    "tcn_mnist_pixel",
    "image",
    "mnist_pixel/main.py",
    "../..",
    LONGER,
    Edit(r"K\.equal\(y_true, ", "K.equal(K.cast(y_true, K.floatx()), ", "../../tcn/tcn.py"),
    rows=640,
)
SIAMESE = Recipe(
    "keras_siamese",
    "keras",
    "image",
    NEW,
    "examples/keras_io/vision/siamese_contrastive.py",
    edits=(LONGER, Edit(r"\b30000\b", "3000")),
    rows=6000,
    count="keras",
    input_codes=IN_MEMORY,
    free=READY,
    quiet=QUIET,
    changes=MANY,
)
WEATHER = Recipe(
    "keras_weather",
    "keras",
    "timeseries",
    NEW,
    "examples/keras_io/timeseries/timeseries_weather_forecasting.py",
    edits=(
        LONGER,
        Edit(r"zip_path = [^)]*\)", "zip_path = 'jena_climate_2009_2016.csv.zip'"),
        Edit(r"patience=5", "patience=10**6"),
    ),
    data=("weather:jena_climate_2009_2016.csv.zip",),
    rows=12000,
    count="keras",
    input_codes=BESIDE,
    free=READY,
    quiet=QUIET,
    changes=MANY,
)
DISTRAX = Recipe(
    "distrax_vae",
    "jax",
    "image",
    "google-deepmind/distrax",
    "examples/vae.py",
    "--training_steps 1000000000",
    needs=("distrax",),
    environment={"PYTHON_ROOT": ".."},
    edits=(Edit(r"jax_core\.get_aval", "jax.typeof", "../distrax/_src/utils/math.py"),),
    count=r"params, opt_state = update\(.*\)",
    input_codes=BESIDE,
    free=Variant((Edit(r"opt_state, next\(train_ds", f"opt_state, {TALLY}.ready(train_ds"),)),
    quiet=Variant((Edit(r"if step % FLAGS\.eval_frequency == 0", "if False"),)),
    changes={"every=10x": Variant(args="--training_steps 1000000000 --eval_frequency 1000")},
)
JAXOPT = Recipe(
    "jaxopt_sgd",
    "jax",
    "image",
    "google/jaxopt",
    "examples/deep_learning/plot_sgd_solvers.py",
    "--maxiter 1000000000",
    needs=("jaxopt",),
    environment={"PYTHON_ROOT": "../.."},
    count=r"params, state = opt\.update\(.*\)",
    input_codes=BESIDE,
    free=Variant((Edit(r"iter\(train_ds\)", f"{TALLY}.again(train_ds, 10**9)"),)),
    quiet=Variant(
        (
            Edit(r"loss, _ = value_and_grad_loss\(params, data=batch\)", "loss = 0"),
            Edit(r"if iter_num % 20 == 0", "if False"),
        )
    ),
    changes={
        "every=10x": Variant(
            (
                Edit(r"( +)loss, _ = value_and", r"\1if iter_num % 10 == 0: loss, _ = value_and"),
                Edit(r"if iter_num % 20 == 0", "if iter_num % 200 == 0"),
            )
        )
    },
)
THIRD_TF: tuple[Recipe, ...] = (
    CVAE,
    WGAN,
    CONVNET,
    WORD2VEC,
    AUTOENCODER,
    BASIC,
    ACTOR_CRITIC,
    DUELING,
    PPO,
    IMDB,
    PIXELS,
    SIAMESE,
    WEATHER,
    DISTRAX,
    JAXOPT,
)
