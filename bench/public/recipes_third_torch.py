"""Recipes of more PyTorch scripts and numpy loops: a third set, from other repositories."""

from __future__ import annotations

from bench.public.recipe import BESIDE, ENVIRONMENT, Edit, Recipe, Variant, after, without
from bench.public.recipes_second_torch import HOST, MANY
from bench.public.recipes_torch import READY, REPLAY, WORKERS

NONE = "none stated"
THIRD_TORCH_COMMITS: dict[str, tuple[str, str]] = {
    "Diego999/pyGAT": ("3664f2dc90cbf971564c0bf186dc794f12446d0c", "MIT"),
    "HIPS/autograd": ("bff107b8d71a444a1160deade3e1cbd0b92f4fa6", "MIT"),
    "dragen1860/MAML-Pytorch": ("98a00d41724c133bd29619a2fb2cc46dd128a368", "MIT"),
    "floodsung/LearningToCompare_FSL": ("b74e6366c7e7208a9d0fc82f7bedb9e1000199e4", "MIT"),
    "locuslab/TCN": ("2f8c2b817050206397458dfd1f5a25ce8a32fe65", "MIT"),
    "lucidrains/performer-pytorch": ("fc8b78441b1e27eb5d9b01fc738a8772cee07127", "MIT"),
    "rushter/MLAlgorithms": ("8fb8bb4282f37ad797052930dc12d0faace7bdb6", "MIT"),
    "sfujim/TD3": ("34770ccdcb51df6f6c7d85c1ba7e40d71b940d16", "MIT"),
    "timbmg/VAE-CVAE-MNIST": ("4f1b22367a5c5cff88bf97ce78219132aa9fd977", NONE),
    "victoresque/pytorch-template": ("41dc06f6f8f3f38c6ed49f01ff7d89cd5688adc4", "MIT"),
}
ONCE = "__import__('tally').once"
CONFIG, TRAINER = "config.json", "trainer/trainer.py"
FIGURE = r"if (iteration % args\.print_every == 0 or iteration == len\(data_loader\)-1):"
LAST = r"(df = pd\.DataFrame)(?s:(.*?dpi=300\)))\n\n\nif"
GAT = "--sparse --nb_heads 2 --epochs 1000000 --patience 1000000"
TASKS = "omniglotNShot.py"
ADAM = "../autograd/misc/optimizers.py"
EPOCHS = "../mla/neuralnet/optimizers.py"
TD3 = "--env Pendulum-v1 --start_timesteps 300 --max_timesteps 100000000 --eval_freq"

THIRD_TORCH: tuple[Recipe, ...] = (
    Recipe(
        "vae_timbmg",
        "torch",
        "image",
        "timbmg/VAE-CVAE-MNIST",
        "train.py",
        "--epochs 100000",
        rows=12800,
        free=READY,
        quiet=Variant(
            (
                Edit(FIGURE, "if False:"),
                Edit(r"for i, yi in enumerate\(y\):", "for i, yi in ():"),
                Edit(LAST, "\n\nif"),
            )
        ),
        changes={
            **WORKERS,
            "every=10x": Variant(
                (
                    Edit(FIGURE, r"if epoch % 10 == 0 and (\1):"),
                    Edit(LAST, r"if epoch % 10:\n            continue\n        \1\2\n\n\nif"),
                )
            ),
        },
    ),
    Recipe(
        "template_mnist",
        "torch",
        "image",
        "victoresque/pytorch-template",
        "train.py",
        "-c config.json",
        rows=12800,
        edits=(
            Edit(r'"epochs": 100,', '"epochs": 1000000,', CONFIG),
            Edit(r'"early_stop": 10,', '"early_stop": 1000000,', CONFIG),
            Edit(
                r"self\._data\[col\]\.values\[:\] = 0",
                "self._data.loc[:, col] = 0",
                "utils/util.py",
            ),
            Edit(r"self\._data\.(\w+)\[key\]", r"self._data.loc[key, '\1']", "utils/util.py"),
        ),
        free=Variant(
            (
                Edit(  # the loader of the training is known by its data
                    r"DataLoader\(sampler=self\.valid_sampler, ",
                    "DataLoader(sampler=self.valid_sampler, dataset=__import__('copy').copy("
                    "self.init_kwargs.pop('dataset')), ",
                    "base/base_data_loader.py",
                ),
            ),
            READY.switches,
        ),
        quiet=Variant(
            (
                Edit(r'"tensorboard": true', '"tensorboard": false', CONFIG),
                Edit(r'"save_period": 1,', '"save_period": 1000000,', CONFIG),
                Edit(r"self\.do_validation = .*", "self.do_validation = False", TRAINER),
                Edit(r"if batch_idx % self\.log_step == 0:", "if False:", TRAINER),
                without(r"self\.train_metrics\.update\(", file=TRAINER),
            )
        ),
        changes={
            **MANY,
            "every=10x": Variant(
                (
                    Edit(r'"save_period": 1,', '"save_period": 10,', CONFIG),
                    Edit(r"if self\.do_validation:", "if epoch % 10 == 9:", TRAINER),
                    Edit(r"self\.log_step = ", "self.log_step = 10 * ", TRAINER),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "tcn_adding",
        "torch",
        "text",
        "locuslab/TCN",
        "TCN/adding_problem/add_test.py",
        "--cuda --epochs 100000",
        needs=("TCN",),
        edits=(
            Edit(r"data_generator\(50000, ", "data_generator(6400, "),
            Edit(r"data_generator\(1000, ", "data_generator(128, "),
        ),
        quiet=Variant((Edit(r"tloss = evaluate\(\)", "tloss = 0"),)),
        changes={
            "every=10x": Variant(
                (Edit(r"tloss = evaluate\(\)", "tloss = evaluate() if ep % 10 == 9 else 0"),)
            )
        },
    ),
    Recipe(
        "tcn_char",
        "torch",
        "text",
        "locuslab/TCN",
        "TCN/char_cnn/char_cnn_test.py",
        "--cuda --epochs 100000 --nhid 48 --emsize 32 --log-interval 10",
        rows=500_000,
        needs=("TCN",),
        quiet=Variant(
            (
                Edit(r"loss = evaluate\((val|test)_data\)", "loss = 1 / epoch"),
                Edit(r"if vloss < best_vloss:", "if False:"),
            )
        ),
        changes={
            "every=10x": Variant(
                (
                    Edit(
                        r"loss = (evaluate\((val|test)_data\))",
                        r"loss = \1 if epoch % 10 == 9 else 1 / epoch",
                    ),
                    Edit(r"if vloss < best_vloss:", "if epoch % 10 == 9:"),
                )
            )
        },
    ),
    Recipe(
        "gat_cora",
        "torch",
        "graph",
        "Diego999/pyGAT",
        "train.py",
        GAT,
        data=("cora:data/cora",),
        quiet=Variant(
            (
                without(r"torch\.save\(model\.state_dict\(\)"),
                Edit(r"(?s)print\('Epoch: .*?time\.time\(\) - t\)\)", "pass"),
            ),
            args=f"{GAT} --fastmode",
        ),
        changes={
            "every=10x": Variant(
                (
                    Edit(r"if not args\.fastmode:", "if epoch % 10 == 9:"),
                    Edit(
                        r"torch\.save\(model\.state_dict\(\)",
                        "epoch % 10 == 9 and torch.save(model.state_dict()",
                    ),
                )
            )
        },
    ),
    Recipe(
        "maml_omniglot",
        "torch",
        "image",
        "dragen1860/MAML-Pytorch",
        "omniglot_train.py",
        "--epoch 10000000 --task_num 4",
        data=("characters_array:omniglot/omniglot.npy",),
        edits=(
            Edit(r"torch\.device\('cuda'\)", "torch.device('cpu')"),
            Edit(r"np\.(int|float)\b", r"\1", TASKS),
            Edit(r"step % 500 == 0", "step % 20 == 0"),
            Edit(r"1000//args\.task_num", "40//args.task_num"),
        ),
        free=Variant((Edit(r"db_train\.next\(\)", f"{ONCE}(db_train.next)"),)),
        quiet=Variant(
            (Edit(r"step % 20 == 0", "False"), Edit(r"if step % 50 == 0", "if False")),
        ),
        changes={"every=10x": Variant((Edit(r"step % 20 == 0", "step % 200 == 0"),))},
    ),
    Recipe(
        "relation_omniglot",
        "torch",
        "image",
        "floodsung/LearningToCompare_FSL",
        "omniglot/omniglot_train_one_shot.py",
        "-t 10 -e 100000000",
        count=after(r"relation_network_optim\.step\(\)"),
        rows=1260,
        data=("characters:../datas/omniglot_resized",),
        edits=(
            Edit(r"\.cuda\(GPU\)", ""),
            Edit(r"(\w+)\.__iter__\(\)\.next\(\)", r"next(iter(\1))"),
            Edit(r"clip_grad_norm\(", "clip_grad_norm_("),
            Edit(r"loss\.data\[0\]", "loss.item()"),
            Edit(r'(torch\.load\(.*"shot\.pkl"\))\)', r'\1, map_location="cpu")'),
            Edit(r"\[(0\.\d+)(, \1){2}\]", r"[\1]", "task_generator.py"),
            Edit(r"\(episode\+1\)%5000 == 0", "(episode+1)%50 == 0"),
        ),
        free=Variant(
            (
                Edit(
                    r"tg\.OmniglotTask\(metatrain_character_folders,",
                    f"{ONCE}(tg.OmniglotTask, metatrain_character_folders,",
                ),
                Edit(
                    r"(samples,sample_labels) = (.*)\n +(batches,batch_labels) = (.*)",
                    rf"(\1), (\3) = {ONCE}(lambda: (\2, \4))",
                ),
            )
        ),
        quiet=Variant((Edit(r"if \(episode\+1\)%(50|100) == 0", "if False"),)),
        changes={
            "num_workers=1": WORKERS["num_workers=1"],
            "every=10x": Variant((Edit(r"if \(episode\+1\)%50 == 0", "if (episode+1)%500 == 0"),)),
        },
    ),
    Recipe(
        "td3_pendulum",
        "torch",
        "rl",
        "sfujim/TD3",
        "main.py",
        f"{TD3} 500",
        count=after(r"policy\.train\(replay_buffer, args\.batch_size\)"),
        edits=(Edit(r"eval_episodes=10", "eval_episodes=1"),),
        free=Variant(
            (
                *REPLAY.edits,
                Edit(
                    r"replay_buffer\.sample\(batch_size\)",
                    f"{ONCE}(replay_buffer.sample, batch_size)",
                    "TD3.py",
                ),
            )
        ),
        quiet=Variant((Edit(r"if \(t \+ 1\) % args\.eval_freq == 0:", "if False:"),)),
        changes={"every=10x": Variant(args=f"{TD3} 5000")},
        input_codes=ENVIRONMENT,
    ),
    Recipe(
        "performer_enwik8",
        "torch",
        "text",
        "lucidrains/performer-pytorch",
        "examples/enwik8_simple/train.py",
        rows=40_000,
        data=("gzipped:data/enwik8.gz",),
        needs=("performer_pytorch",),
        environment={"PYTHON_ROOT": "../.."},
        edits=(
            HOST,
            Edit(r"np\.fromstring\((.*)\)\n", r"np.frombuffer(\1).copy()\n"),
            Edit(r"int\(90e6\)", "int(9e5)"),
            Edit(r"int\(95e6\)", "int(9.5e5)"),
            Edit(r"SEQ_LEN = 4096", "SEQ_LEN = 64"),
            Edit(r"dim = 512", "dim = 64"),
            Edit(r"depth = 6", "depth = 2"),
            Edit(r"nb_features = 256", "nb_features = 32"),
            Edit(r"\(8, 8, 8, 6, 4, 2\)", "(8, 6)"),
            Edit(r"NUM_BATCHES = int\(1e5\)", "NUM_BATCHES = int(1e8)"),
            Edit(r"VALIDATE_EVERY  = 100", "VALIDATE_EVERY  = 4"),
            Edit(r"GENERATE_EVERY  = 500", "GENERATE_EVERY  = 20"),
            Edit(r"GENERATE_LENGTH = 2048", "GENERATE_LENGTH = 80"),
        ),
        free=READY,
        quiet=Variant((Edit(r"if i % (VALIDATE|GENERATE)_EVERY == 0", "if False"),)),
        changes={
            **WORKERS,
            "every=10x": Variant(
                (
                    Edit(r"VALIDATE_EVERY  = 4", "VALIDATE_EVERY  = 40"),
                    Edit(r"GENERATE_EVERY  = 20", "GENERATE_EVERY  = 200"),
                )
            ),
        },
    ),
    Recipe(
        "autograd_mlp",
        "numpy",
        "image",
        "HIPS/autograd",
        "examples/neural_net.py",
        count=after(r"x = x - step_size \* mhat.*", file=ADAM),
        rows=20_000,
        data=("idx:data",),
        needs=("autograd",),
        environment={"PYTHON_ROOT": ".."},
        edits=(Edit(r"num_epochs = 5", "num_epochs = 10**6"),),
        quiet=Variant((Edit(r"if iter % num_batches == 0:", "if False:"),)),
        changes={
            "every=10x": Variant(
                (Edit(r"if iter % num_batches == 0:", "if iter % (10 * num_batches) == 0:"),)
            )
        },
    ),
    Recipe(
        "autograd_rnn",
        "numpy",
        "text",
        "HIPS/autograd",
        "examples/rnn.py",
        count=after(r"x = x - step_size \* mhat.*", file=ADAM),
        needs=("autograd",),
        environment={"PYTHON_ROOT": ".."},
        edits=(Edit(r"num_iters=1000", "num_iters=10**8"),),
        quiet=Variant((Edit(r"if iter % 10 == 0:", "if False:"),)),
        changes={"every=10x": Variant((Edit(r"if iter % 10 == 0:", "if iter % 100 == 0:"),))},
    ),
    Recipe(
        "mla_mlp",
        "numpy",
        "tabular",
        "rushter/MLAlgorithms",
        "examples/nnet_mlp.py",
        count=after(r"self\.update\(network\)", file=EPOCHS),
        needs=("mla",),
        environment={"PYTHON_ROOT": ".."},
        edits=(Edit(r"max_epochs=25", "max_epochs=10**8"),),
        quiet=Variant((Edit(r"if network\.verbose:", "if False:", EPOCHS),)),
        changes={
            "every=10x": Variant((Edit(r"if network\.log_metric:", "if i % 10 == 9:", EPOCHS),))
        },
    ),
)
