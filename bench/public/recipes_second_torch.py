"""Recipes of more PyTorch scripts and a numpy loop: a second set, from other repositories."""

from __future__ import annotations

from bench.public.recipe import BESIDE, ENVIRONMENT, TICK, Edit, Recipe, Variant, after, without
from bench.public.recipes_torch import READY, REPLAY, WORKERS

NONE = "none stated"
SECOND_TORCH_COMMITS = {
    "Andras7/word2vec-pytorch": ("36b93a503e8b3b5448abbc0e18f2a6bd3e017fc9", NONE),
    "MichalDanielDobrzanski/DeepLearningPython": (
        "2da41b6dd19dafae92db1facbc4ed19738e80551",
        "MIT",
    ),
    "guoyang9/NCF": ("89ff06ffcd2bca6bb773b54925265c208a28d318", NONE),
    "milesial/Pytorch-UNet": ("21d7850f2af30a9695bbeea75f3136aa538cfc4a", "GPL-3.0"),
    "rixwew/pytorch-fm": ("f74ad19771eda104e99874d19dc892e988ec53fa", "MIT"),
    "seungeunrho/minimalRL": ("c8efed8481e3cd40e9739cfde220a55522555b57", "MIT"),
    "williamleif/graphsage-simple": ("d3105e5223e9602ba3ef2dd27e343d044fe4bb5f", NONE),
    "znxlwm/pytorch-MNIST-CelebA-GAN-DCGAN": ("c88438c7807326492757623bf9117ee2eb5de8bf", NONE),
}
MANY = {
    f"num_workers={n}": Variant(switches=(f"torch.workers={n}",), codes=("input.oversubscribed",))
    for n in (0, 1, 2)
}
HOST = Edit(r"\.cuda\(\)", "")
NETWORK = "network2.py"
AGGREGATORS = "aggregators.py"
NEIGHBOURS = "self, nodes, to_neighs, num_sample=10"

SECOND_TORCH: tuple[Recipe, ...] = (
    Recipe(
        "fm_movielens",
        "torch",
        "tabular",
        "rixwew/pytorch-fm",
        "examples/main.py",
        "--dataset_name movielens20M --dataset_path made/ratings.csv --model_name dfm "
        "--device cpu --epoch 100000 --save_dir .",
        rows=100_000,
        data=("ratings:made",),
        needs=("torchfm",),
        environment={"PYTHON_ROOT": ".."},
        edits=(
            without(r"from torchfm\.dataset\.(avazu|criteo) import"),
            Edit(r"num_trials=2", "num_trials=10**9"),
            Edit(r"np\.(int|long)\b", "np.int64", "../torchfm/dataset/movielens.py"),
            Edit(r"np\.long\b", "np.int64", "../torchfm/layer.py"),
        ),
        free=READY,
        quiet=Variant((Edit(r"auc = test\(model, valid_data_loader, device\)", "auc = 0.5"),)),
        changes={
            **MANY,
            "every=10x": Variant(
                (
                    Edit(
                        r"auc = test\(model, valid_data_loader, device\)",
                        r"auc = test(model, valid_data_loader, device) if epoch_i % 10 == 9 "
                        r"else 0.5",
                    ),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "unet_masks",
        "torch",
        "image",
        "milesial/Pytorch-UNet",
        "train.py",
        "--epochs 100000",
        rows=110,
        data=("masks:data",),
        edits=(
            without(r"import torchvision\.transforms\.functional as TF"),
            Edit(r"\b(64|128|256|512|1024)\b", r"\1 // 8", "unet/unet_model.py"),
        ),
        free=READY,
        quiet=Variant(
            (
                Edit(r"if global_step % division_step == 0", "if False"),
                Edit(r"if save_checkpoint:", "if False:"),
            )
        ),
        changes={
            **MANY,
            "every=10x": Variant(
                (
                    Edit(
                        r"if global_step % division_step == 0",
                        "if global_step % (10 * division_step) == 0",
                    ),
                    Edit(r"if save_checkpoint:", "if save_checkpoint and epoch % 10 == 9:"),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "ncf_implicit",
        "torch",
        "tabular",
        "guoyang9/NCF",
        "main.py",
        "--epochs 1000000",
        rows=8000,
        data=("implicit:made",),
        edits=(
            HOST,
            without(r"from tensorboardX import"),
            Edit(HOST.pattern, HOST.replacement, "evaluate.py"),
            Edit(r"main_path = .*", "main_path = 'made/'", "config.py"),
        ),
        free=Variant(
            (
                Edit(
                    r"train_loader\.dataset\.ng_sample\(\)",
                    "__import__('tally').once(train_loader.dataset.ng_sample)",
                ),
            ),
            READY.switches,
        ),
        quiet=Variant((Edit(r"= evaluate\.metrics\(.*\)", "= 0, 0"),)),
        changes={
            **MANY,
            "every=10x": Variant(
                (
                    Edit(
                        r"= (evaluate\.metrics\(.*\))",
                        r"= \1 if epoch % 10 == 9 else (0, 0)",
                    ),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "word2vec_skipgram",
        "torch",
        "text",
        "Andras7/word2vec-pytorch",
        "word2vec/trainer.py",
        rows=20_000,
        data=("text:input.txt",),
        environment={"PYTHON_ROOT": ".."},
        edits=(
            Edit(r"iterations=3", "iterations=10**6"),
            Edit(r"NEGATIVE_TABLE_SIZE = 1e8", "NEGATIVE_TABLE_SIZE = 1e6", "data_reader.py"),
        ),
        free=READY,
        quiet=Variant((without(r"self\.skip_gram_model\.save_embedding\("),)),
        changes={
            **WORKERS,
            "every=10x": Variant(
                (
                    Edit(
                        r"self\.skip_gram_model\.save_embedding\(",
                        "iteration % 10 == 9 and self.skip_gram_model.save_embedding(",
                    ),
                )
            ),
        },
    ),
    Recipe(
        "graphsage_cora",
        "torch",
        "graph",
        "williamleif/graphsage-simple",
        "graphsage/model.py",
        data=("cora:cora",),
        environment={"PYTHON_ROOT": ".."},
        edits=(
            Edit(r"(?m)^( +)print (.*)$", r"\1print(\2)"),
            Edit(r"loss\.data\[0\]", "loss.item()"),
            Edit(r"map\(float, info\[1:-1\]\)", "list(map(float, info[1:-1]))"),
            Edit(r"for batch in range\(100\)", "for batch in range(10**8)"),
            Edit(r"_sample\(to_neigh, ", "_sample(list(to_neigh), ", AGGREGATORS),
        ),
        free=Variant(
            (
                without(r"random\.shuffle\(train\)"),
                Edit(
                    r"def forward\(self, nodes, to_neighs, num_sample=10\):",
                    f"def sampled({NEIGHBOURS}):",
                    AGGREGATORS,
                ),
                Edit(
                    r"( +)(mask\[row_indices, column_indices\] = 1)",
                    r"\1\2\n\1return mask, unique_nodes_list\n\n"
                    rf"    def forward({NEIGHBOURS}):\n"
                    r"\1if not hasattr(self, 'ready'):\n"
                    r"\1\1self.ready = self.sampled(nodes, to_neighs, num_sample)\n"
                    r"\1mask, unique_nodes_list = self.ready",
                    AGGREGATORS,
                ),
            )
        ),
        quiet=Variant((without(r"print\(batch, loss"),)),
        changes={
            "every=10x": Variant((Edit(r"print\(batch, loss", "batch % 10 or print(batch, loss"),))
        },
        input_codes=ENVIRONMENT,
    ),
    Recipe(
        "gan_znxlwm",
        "torch",
        "gan",
        "znxlwm/pytorch-MNIST-CelebA-GAN-DCGAN",
        "pytorch_MNIST_GAN.py",
        count=after(r"G_optimizer\.step\(\)"),
        rows=1920,
        edits=(
            HOST,
            Edit(r", volatile=True", ""),
            Edit(r"\.data\[0\]", ".item()"),
            Edit(r"\(0\.5, 0\.5, 0\.5\)", "(0.5,)"),
            Edit(r"(ones|zeros)\(mini_batch\)", r"\1(mini_batch, 1)"),
            Edit(r"train_epoch = 100", "train_epoch = 100000"),
            without(r"import imageio"),
        ),
        free=READY,
        quiet=Variant((without(r"show_result\(\(epoch"),)),
        changes={
            **WORKERS,
            "every=10x": Variant(
                (Edit(r"show_result\(\(epoch", "epoch % 10 == 9 and show_result((epoch"),)
            ),
        },
    ),
    Recipe(
        "minimal_dqn",
        "torch",
        "rl",
        "seungeunrho/minimalRL",
        "dqn.py",
        edits=(
            Edit(r"import gym\b", "import gymnasium as gym"),
            Edit(r"range\(10000\)", "range(10**8)"),
        ),
        free=Variant(
            (
                *REPLAY.edits,
                Edit(
                    r"memory\.sample\(batch_size\)",
                    "__import__('tally').once(memory.sample, batch_size)",
                ),
            )
        ),
        input_codes=ENVIRONMENT,
    ),
    Recipe(
        "numpy_network2",
        "numpy",
        "image",
        "MichalDanielDobrzanski/DeepLearningPython",
        "test.py",
        count=Edit(
            r"(?m)^( +)(self\.update_mini_batch\(\n.*\n)",
            rf"\1\2\1{TICK}\n",
            NETWORK,
        ),
        rows=10_000,
        data=("pickled:mnist.pkl.gz",),
        edits=(
            Edit(r"(?s)'''\n(import mnist_loader.*?)'''", r"\1"),
            Edit(r"(?s)#import network2\n\n'''\n(.*?)'''", r"import network2\n\1"),
            Edit(r"(?s)# - network3\.py example:.*", ""),
            Edit(r"training_data, 30, 10, 0\.1, lmbda", "training_data, 10**6, 10, 0.1, lmbda"),
        ),
        free=Variant(
            (
                without(r"random\.shuffle\(training_data\)", file=NETWORK),
                Edit(
                    r"for mini_batch in mini_batches:",
                    "for mini_batch in mini_batches[:1] * len(mini_batches):",
                    NETWORK,
                ),
            )
        ),
        quiet=Variant((Edit(r"if monitor_evaluation_accuracy:", "if False:", NETWORK),)),
        changes={
            "every=10x": Variant(
                (
                    Edit(
                        r"if monitor_evaluation_accuracy:",
                        "if monitor_evaluation_accuracy and j % 10 == 9:",
                        NETWORK,
                    ),
                )
            )
        },
    ),
)
