"""Recipes of numpy loops, and of more scripts of every framework."""

from __future__ import annotations

from bench.public.recipe import ENVIRONMENT, Edit, Recipe, Variant, after

READY = Variant(switches=("torch.ready",))
WORKERS = {f"num_workers={n}": Variant(switches=(f"torch.workers={n}",)) for n in (1, 2)}
SCRATCH = "eriklindernoren/ML-From-Scratch"
FIT = "../deep_learning/neural_network.py"
NANO = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=5 "
    "--log_interval=10 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=100000000 --dropout=0.0 --eval_interval=50"
)

MORE = (
    Recipe(
        "numpy_perceptron",
        "numpy",
        "image",
        SCRATCH,
        "mlfromscratch/examples/multilayer_perceptron.py",
        needs=("mlfromscratch",),
        edits=(Edit(r"n_epochs=50", "n_epochs=10**6"),),
        environment={"PYTHON_ROOT": "../.."},
        count=after(r"loss, _ = self\.train_on_batch\(.*\)", file=FIT),
        free=Variant(
            (
                Edit(
                    r"in batch_iterator\(X, y, batch_size=batch_size\)",
                    "in [(X[:batch_size], y[:batch_size])] * -(-len(X) // batch_size)",
                    FIT,
                ),
            )
        ),
        quiet=Variant((Edit(r"if self\.val_set is not None", "if False", FIT),)),
    ),
    Recipe(
        "numpy_convolution",
        "numpy",
        "image",
        SCRATCH,
        "mlfromscratch/examples/convolutional_neural_network.py",
        needs=("mlfromscratch",),
        edits=(Edit(r"n_epochs=50", "n_epochs=10**6"),),
        environment={"PYTHON_ROOT": "../.."},
        count=after(r"loss, _ = self\.train_on_batch\(.*\)", file=FIT),
        free=Variant(
            (
                Edit(
                    r"in batch_iterator\(X, y, batch_size=batch_size\)",
                    "in [(X[:batch_size], y[:batch_size])] * -(-len(X) // batch_size)",
                    FIT,
                ),
            )
        ),
        quiet=Variant((Edit(r"if self\.val_set is not None", "if False", FIT),)),
    ),
    Recipe(
        "numpy_two_layers",
        "numpy",
        "synthetic",
        "jcjohnson/pytorch-examples",
        "tensor/two_layer_net_numpy.py",
        edits=(Edit(r"range\(500\)", "range(10**8)"), Edit(r"print\(t, loss\)", "print(t, 1)")),
        count=r"w2 -= learning_rate \* grad_w2",
    ),
    Recipe(
        "nanogpt",
        "torch",
        "text",
        "karpathy/nanoGPT",
        "train.py",
        NANO,
        data=("tokens:data/shakespeare_char",),
        free=Variant((Edit(r"    X, Y = get_batch\('train'\)", "    pass"),)),
        quiet=Variant(args=NANO.replace("eval_interval=50", "eval_interval=100000000")),
    ),
    Recipe(
        "urban_sounds",
        "torch",
        "audio",
        "musikalkemist/pytorchforaudio",
        "09 Training urban sound classifier/train.py",
        rows=256,
        data=("sounds:made",),
        free=READY,
        changes=WORKERS,
        edits=(
            Edit(r'ANNOTATIONS_FILE = ".*"', 'ANNOTATIONS_FILE = "made/UrbanSound8K.csv"'),
            Edit(r'AUDIO_DIR = ".*"', 'AUDIO_DIR = "made/audio"'),
            Edit(r"EPOCHS = 10", "EPOCHS = 10**6"),
            Edit(r"BATCH_SIZE = 128", "BATCH_SIZE = 16"),
        ),
    ),
    Recipe(
        "torch_a3c",
        "torch",
        "rl",
        "MorvanZhou/pytorch-A3C",
        "discrete_A3C.py",
        edits=(
            Edit(r"MAX_EP = 3000", "MAX_EP = 10**8"),
            Edit(r"state\['step'\] = 0", "state['step'] = torch.tensor(0.0)", "shared_adam.py"),
        ),
        free=Variant(
            (
                Edit(
                    r"self\.env\.step\(a\)",
                    "__import__('tally').replay(self.env.step, a)",
                ),
            )
        ),
        input_codes=ENVIRONMENT,
    ),
    Recipe(
        "x_transformer_copy",
        "torch",
        "text",
        "lucidrains/x-transformers",
        "train_copy.py",
        needs=("x_transformers",),
        free=Variant(
            (
                Edit(
                    r"src, tgt, src_mask = next\(cycle\(\)\)",
                    "src, tgt, src_mask = __import__('tally').once(lambda c=cycle: next(c()))",
                ),
            )
        ),
        quiet=Variant((Edit(r"if i != 0 and i % GENERATE_EVERY == 0", "if False"),)),
    ),
)
