"""All recipes, and the commits and licences of the repositories."""

from __future__ import annotations

from bench.public.recipe import (
    DEVELOPMENT,
    FOURTH,
    FOURTH_HELD,
    SECOND,
    THIRD,
    UNMET,
    Recipe,
    halves,
)
from bench.public.recipes_fourth_tf import FOURTH_TF, FOURTH_TF_COMMITS
from bench.public.recipes_fourth_torch import FOURTH_TORCH, FOURTH_TORCH_COMMITS
from bench.public.recipes_jax import JAX
from bench.public.recipes_keras import KERAS, TF2
from bench.public.recipes_more import MORE
from bench.public.recipes_second_tf import SECOND_TF, SECOND_TF_COMMITS
from bench.public.recipes_second_torch import SECOND_TORCH, SECOND_TORCH_COMMITS
from bench.public.recipes_tf1 import TF1
from bench.public.recipes_third_tf import THIRD_TF, THIRD_TF_COMMITS
from bench.public.recipes_third_torch import THIRD_TORCH, THIRD_TORCH_COMMITS
from bench.public.recipes_torch import TORCH

FIRST: tuple[Recipe, ...] = (*TORCH, *TF1, *KERAS, *TF2, *JAX, *MORE)
LATER: dict[str, tuple[Recipe, ...]] = {
    SECOND: (*SECOND_TORCH, *SECOND_TF),
    THIRD: (*THIRD_TORCH, *THIRD_TF),
}
FOURTH_RECIPES: tuple[Recipe, ...] = (*FOURTH_TORCH, *FOURTH_TF)
RECIPES = (*FIRST, *LATER[SECOND], *LATER[THIRD], *FOURTH_RECIPES)
# Second scripts of repositories of the third set.
LEFT = (
    "tcn_char",
    "autograd_rnn",
    "wiseodd_wgan",
    "stanford_word2vec",
    "pkmital_convnet",
    "morvan_dueling_dqn",
    "tcn_mnist_pixel",
    "keras_weather",
)


def fourth_halves(recipes: tuple[Recipe, ...]) -> dict[str, str]:
    """Return the half of the fourth set by the name of a script."""
    return {
        name: FOURTH if half == DEVELOPMENT else FOURTH_HELD
        for name, half in halves(recipes).items()
    }


HALVES = {
    **halves(FIRST),
    **fourth_halves(FOURTH_RECIPES),
    **{recipe.name: half for half, recipes in LATER.items() for recipe in recipes},
    **dict.fromkeys(LEFT, UNMET),
}
NONE = "none stated"
COMMITS = {
    **FOURTH_TORCH_COMMITS,
    **FOURTH_TF_COMMITS,
    **SECOND_TORCH_COMMITS,
    **SECOND_TF_COMMITS,
    **THIRD_TORCH_COMMITS,
    **THIRD_TF_COMMITS,
    "MorvanZhou/pytorch-A3C": ("5ab27abee2c3ac3ca921ac393bfcbda4e0a91745", "MIT"),
    "MorvanZhou/PyTorch-Tutorial": ("dbe154a9e56635e51c6b0c2ccea8ae36cfb585a7", "MIT"),
    "MorvanZhou/Tensorflow-Tutorial": ("42dc32de532d146725aeef965d87871142a542d6", "MIT"),
    "aymericdamien/TensorFlow-Examples": ("6dcbe14649163814e72a22a999f20c5e247ce988", "MIT"),
    "dennybritz/cnn-text-classification-tf": (
        "18762b459e21d9c70e5c242f8d43fc4e6db37a0d",
        "Apache-2.0",
    ),
    "dragen1860/TensorFlow-2.x-Tutorials": ("9861a308283d17693d497fdfaab20b92c0b26d08", NONE),
    "eriklindernoren/ML-From-Scratch": ("a2806c6732eee8d27762edd6d864e0c179d8e9e8", "MIT"),
    "eriklindernoren/PyTorch-GAN": ("36d3c77e5ff20ebe0aeefd322326a134a279b93e", "MIT"),
    "golbin/TensorFlow-Tutorials": ("c8ac1e45ca27cccd228f316dd4f66afbc22f9016", NONE),
    "google-deepmind/dm-haiku": ("f4d858a5cbb29140855d68f81f5fd625e078a5ae", "Apache-2.0"),
    "google/flax": ("18f8f311c275d57f46d95e41b15aa97b454754c0", "Apache-2.0"),
    "graykode/nlp-tutorial": ("d05e31ec81d56d70c1db89b99ab07e948f7ebc11", "MIT"),
    "hunkim/DeepLearningZeroToAll": ("60c707e02af7bd950401faeadcc6c0e1b39b2978", NONE),
    "jax-ml/jax": ("cec06d116c05f0d52adfceee3d3b730fdbcb0ce5", "Apache-2.0"),
    "jcjohnson/pytorch-examples": ("0003fcdc606a79951e53bf8f46f8574fa4739f23", "MIT"),
    "karpathy/makemore": ("988aa59e4d8fefa526d06f3b453ad116258398d4", "MIT"),
    "karpathy/minGPT": ("37baab71b9abea1b76ab957409a1cc2fbfba8a26", "MIT"),
    "karpathy/nanoGPT": ("3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "MIT"),
    "keras-team/keras@2": ("1a3ee8441933fc007be6b2beb47af67998d50737", "Apache-2.0"),
    "keras-team/keras@3": ("2588a15440a10de8d0cc10b50c21ede333a2bd01", "Apache-2.0"),
    "kuangliu/pytorch-cifar": ("49b7aa97b0c12fe0d4054e670403a16b6b834ddd", "MIT"),
    "lucidrains/x-transformers": ("9252ed7838021ee61e6c5be0930b3a9a88efdf06", "MIT"),
    "musikalkemist/pytorchforaudio": ("38d1950d82a4a309a5e4259d2638f907ccac55af", "MIT"),
    "nlintz/TensorFlow-Tutorials": ("d6bdab7df46492446c48537fcf37e20ba44e8168", NONE),
    "pyro-ppl/numpyro": ("0b935d488056ae1775b4ab05cbe2812f51f21a4f", "Apache-2.0"),
    "pytorch/examples": ("77f55b912142e11fcfdf5b530231fb9c52f181e8", "BSD-3-Clause"),
    "shenweichen/DeepCTR-Torch": ("f6854257b1fc29caab655ce72c6b5528b7432574", "Apache-2.0"),
    "spro/char-rnn.pytorch": ("282bcb6b15ab3929d6a588b455cfc0f19f32add4", "MIT"),
    "tkipf/pygcn": ("1600b5b748b3976413d1e307540ccc62605b4d6d", "MIT"),
    "vwxyzjn/cleanrl": ("fe8d8a03c41a7ef5b523e2e354bd01c363e786bb", "MIT"),
    "yunjey/pytorch-tutorial": ("0500d3df5a2a8080ccfccbc00aca0eacc21818db", "MIT"),
}
