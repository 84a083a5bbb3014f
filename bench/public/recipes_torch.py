"""Recipes of PyTorch scripts."""

from __future__ import annotations

from bench.public.recipe import BESIDE, ENVIRONMENT, Edit, Recipe, Variant, without

READY = Variant(switches=("torch.ready",))
WORKERS = {f"num_workers={n}": Variant(switches=(f"torch.workers={n}",)) for n in (1, 2)}
FEWER = {
    f"num_workers={n}": Variant(switches=(f"torch.workers={n}",), codes=("input.oversubscribed",))
    for n in (0, 1)
}
ONE_THREAD = {
    "OMP_NUM_THREADS=1": Variant(
        environment={"OMP_NUM_THREADS": "1"}, codes=("input.oversubscribed",)
    )
}
LONG = Edit(r"(?m)^(num_epochs|EPOCH) = \d+", r"\1 = 100000")
EPOCHS = "--epochs 100000"
ENDLESS = r"for epoch in range\(\d+\)"

REPLAY = Variant((Edit(r"\b(envs?)\.step\((\w+)\)", r"__import__('tally').replay(\1.step, \2)"),))
SAMPLE = Edit(
    r"rb\.sample\(args\.batch_size\)", "__import__('tally').once(rb.sample, args.batch_size)"
)
REPLAY_BATCH = Variant((*REPLAY.edits, SAMPLE))


def _examples(name: str, kind: str, path: str, args: str, **given: object) -> Recipe:
    return Recipe(name, "torch", kind, "pytorch/examples", path, args, **given)  # type: ignore


def _yunjey(name: str, kind: str, path: str, **given: object) -> Recipe:
    found = {"edits": (LONG,), "free": READY, "changes": WORKERS, **given}
    repository = "yunjey/pytorch-tutorial"
    return Recipe(name, "torch", kind, repository, f"tutorials/{path}/main.py", **found)  # type: ignore


def _gan(name: str, path: str, **given: object) -> Recipe:
    found = {
        "args": "--n_epochs 100000",
        "free": READY,
        "quiet": Variant((without(r"save_image\("),)),
        "changes": WORKERS,
        **given,
    }
    repository = "eriklindernoren/PyTorch-GAN"
    return Recipe(name, "torch", "gan", repository, f"implementations/{path}", **found)  # type: ignore


def _morvan(name: str, kind: str, path: str, **given: object) -> Recipe:
    repository = "MorvanZhou/PyTorch-Tutorial"
    return Recipe(name, "torch", kind, repository, f"tutorial-contents/{path}", **given)  # type: ignore


def _nlp(name: str, path: str, loop: str, **given: object) -> Recipe:
    edits = (Edit(loop, "for epoch in range(10**9)"),)
    return Recipe(name, "torch", "text", "graykode/nlp-tutorial", path, edits=edits, **given)  # type: ignore


TORCH = (
    _examples(
        "torch_mnist",
        "image",
        "mnist/main.py",
        EPOCHS,
        rows=6000,
        free=READY,
        quiet=Variant((without(r"test\(model, device"),)),
        changes=WORKERS,
    ),
    _examples(
        "torch_vae",
        "image",
        "vae/main.py",
        EPOCHS,
        rows=12000,
        free=READY,
        edits=(
            Edit(
                r"(?m)^def test\(epoch\):",
                "import os; os.makedirs('results', exist_ok=True)\ndef test(epoch):",
            ),
        ),
        quiet=Variant(
            (
                without(r"test\(epoch\)"),
                without(r"save_image\(sample"),
                Edit(r"(?m)^ +'results/sample_.*$", ""),
            )
        ),
        changes=WORKERS,
    ),
    _examples(
        "torch_hogwild",
        "image",
        "mnist_hogwild/main.py",
        EPOCHS,
        rows=12000,
        free=READY,
        changes=ONE_THREAD,
    ),
    _examples(
        "torch_language_model",
        "text",
        "word_language_model/main.py",
        "--epochs 10000 --emsize 64 --nhid 64 --data made",
        count=r"total_loss \+= loss\.item\(\)",
        rows=3000,
        data=("corpus:made",),
        free=Variant(
            (
                Edit(
                    r"data, targets = get_batch\(train_data, i\)",
                    "data, targets = __import__('tally').once(get_batch, train_data, i)",
                ),
            )
        ),
        quiet=Variant(
            (
                Edit(r"val_loss = evaluate\(val_data\)", "val_loss = 1 / epoch"),
                without(r"torch\.save\(model, f\)"),
            )
        ),
    ),
    _examples(
        "torch_reinforce",
        "rl",
        "reinforcement_learning/reinforce.py",
        "",
        free=REPLAY,
        input_codes=ENVIRONMENT,
    ),
    _examples(
        "torch_imagenet",
        "image",
        "imagenet/main.py",
        "--dummy -a resnet18 -b 4 -j 2",
        free=READY,
        changes=FEWER,
        input_codes=BESIDE,
    ),
    _yunjey("yunjey_cnn", "image", "02-intermediate/convolutional_neural_network"),
    _yunjey("yunjey_logistic", "image", "01-basics/logistic_regression"),
    _yunjey("yunjey_resnet", "image", "02-intermediate/deep_residual_network", rows=5000),
    _gan("gan_plain", "gan/gan.py"),
    _gan("gan_wasserstein_gp", "wgan_gp/wgan_gp.py"),
    _morvan(
        "morvan_cnn",
        "image",
        "401_CNN.py",
        edits=(LONG, Edit("HAS_SK = True", "HAS_SK = False")),
        free=READY,
        quiet=Variant((Edit(r"if step % 50 == 0", "if False"),)),
        changes=WORKERS,
    ),
    Recipe(
        "makemore",
        "torch",
        "text",
        "karpathy/makemore",
        "makemore.py",
        "-i made.txt -n 2",
        data=("names:made.txt",),
        free=READY,
        quiet=Variant((Edit(r"step % (500|200) == 0", "step < 0"),)),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "mingpt_adder",
        "torch",
        "text",
        "karpathy/minGPT",
        "projects/adder/adder.py",
        "",
        needs=("mingpt",),
        free=READY,
        quiet=Variant((Edit(r"trainer\.iter_num % (500|10) == 0", "trainer.iter_num < 0"),)),
        changes=FEWER,
        input_codes=BESIDE,
        environment={"PYTHON_ROOT": "../.."},
    ),
    Recipe(
        "pytorch_cifar",
        "torch",
        "image",
        "kuangliu/pytorch-cifar",
        "main.py",
        "",
        rows=10000,
        free=READY,
        edits=(
            Edit(r"net = SimpleDLA\(\)", "net = LeNet()"),
            Edit(r"(?m)^_, term_width = .*$", "term_width = 80", "utils.py"),
        ),
        quiet=Variant((without(r"test\(epoch\)"),)),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "pygcn",
        "torch",
        "graph",
        "tkipf/pygcn",
        "pygcn/train.py",
        "--epochs 1000000",
        data=("cora:../data/cora",),
        quiet=Variant(args="--epochs 1000000 --fastmode"),
        environment={"PYTHON_ROOT": ".."},
    ),
    Recipe(
        "char_rnn",
        "torch",
        "text",
        "spro/char-rnn.pytorch",
        "train.py",
        "made.txt --n_epochs 100000 --chunk_len 50 --batch_size 32",
        data=("text:made.txt",),
        edits=(Edit(r"loss\.data\[0\]", "loss.item()"),),
        free=Variant(
            (
                Edit(
                    r"train\(\*random_training_set\(",
                    "train(*__import__('tally').once(random_training_set, ",
                ),
            )
        ),
        quiet=Variant((Edit(r"epoch % args\.print_every == 0", "False"),)),
    ),
    Recipe(
        "deepctr_criteo",
        "torch",
        "tabular",
        "shenweichen/DeepCTR-Torch",
        "examples/run_classification_criteo.py",
        "",
        needs=("deepctr_torch",),
        edits=(Edit(r"epochs=10\b", "epochs=100000"),),
        free=READY,
        environment={"PYTHON_ROOT": ".."},
        quiet=Variant((Edit(r"validation_split=0\.2", "validation_split=0.0"),)),
        changes=WORKERS,
    ),
    _nlp("nlp_transformer", "5-1.Transformer/Transformer.py", ENDLESS),
    _nlp(
        "nlp_word2vec",
        "1-2.Word2Vec/Word2Vec-Skipgram(Softmax).py",
        ENDLESS,
        free=Variant(
            (
                Edit(
                    r"random_batch\(\)\n",
                    "__import__('tally').once(random_batch)\n",
                ),
            )
        ),
    ),
    Recipe(
        "cleanrl_dqn",
        "torch",
        "rl",
        "vwxyzjn/cleanrl",
        "cleanrl/dqn.py",
        "--learning-starts 200 --total-timesteps 5000000",
        needs=("cleanrl_utils",),
        environment={"PYTHON_ROOT": ".."},
        free=REPLAY_BATCH,
        input_codes=ENVIRONMENT,
    ),
    Recipe(
        "cleanrl_ppo",
        "torch",
        "rl",
        "vwxyzjn/cleanrl",
        "cleanrl/ppo.py",
        "--total-timesteps 50000000",
        needs=("cleanrl_utils",),
        environment={"PYTHON_ROOT": ".."},
        input_codes=ENVIRONMENT,
        free=Variant(
            (
                Edit(
                    r"envs\.step\(([^()]*\(\)[^()]*\(\))\)",
                    r"__import__('tally').replay(envs.step, \1)",
                ),
            )
        ),
    ),
)
