"""Recipes of PyTorch scripts that read files: sounds, images, volumes, clips, points, series.

In the second half of them the forward pass is a wait of `standins/accelerator.py`: their own data
code runs beside a step that takes no processor, as on a machine with an accelerator.
"""

from __future__ import annotations

from bench.public.recipe import BESIDE, IN_MEMORY, Edit, Recipe, Variant, after, without
from bench.public.recipes_second_torch import HOST, MANY
from bench.public.recipes_torch import READY

NONE = "none stated"
FOURTH_TORCH_COMMITS: dict[str, tuple[str, str]] = {
    "4uiiurz1/pytorch-nested-unet": ("557ea02f0b5d45ec171aae2282d2cd21562a633e", "MIT"),
    "Beckschen/TransUNet": ("02ef0010b36eb8328b5e689eadaf613602edf9b8", "Apache-2.0"),
    "Tencent/MedicalNet": ("20f76aaab5cac8056eaf50b79ed97c09dbfbd3bd", "MIT"),
    "amdegroot/ssd.pytorch": ("5b0b77faa955c1917b0c710d770739ba8fbff9b7", "MIT"),
    "codertimo/BERT-pytorch": ("d10dc4f9d5a6f2ca74380f62039526eb7277c671", "Apache-2.0"),
    "cure-lab/LTSF-Linear": ("0c113668a3b88c4c4ee586b8c5ec3e539c4de5a6", "Apache-2.0"),
    "gusye1234/LightGCN-PyTorch": ("947ca2b3b1d2d3545b114145710cb06c4e57b3d2", NONE),
    "jfzhang95/pytorch-video-recognition": ("ca37de9f69a961f22a821c157e9ccf47a601904d", "MIT"),
    "karpathy/llama2.c": ("350e04fe35433e6d2941dce5a1f53308f87058eb", "MIT"),
    "leftthomas/SRGAN": ("7ddfdf27273c42d858ec52cab5ca1cbfca81d0be", "MIT"),
    "mravanelli/SincNet": ("d74164861d8bd8ab9cb02f102d677f5605edfbf4", "MIT"),
    "nnzhan/Graph-WaveNet": ("6b162e80c59a1d494809252eca055cff93dc66b1", "MIT"),
    "pmixer/SASRec.pytorch": ("fde8a9c08febc2c898dc269b1d98ab762c50d2be", "Apache-2.0"),
    "tugstugi/pytorch-speech-commands": ("36f3cd9e0d2b2d50cf4b023c9af1544fdfeeb886", NONE),
    "xuebinqin/U-2-Net": ("ac7e1c817ecab7c7dff5ce6b1abba61cd213ff29", "Apache-2.0"),
    "yanx27/Pointnet_Pointnet2_pytorch": ("eb64fe0b4c24055559cea26299cb485cdb43d8dd", "MIT"),
}
ONCE = "__import__('tally').once"
FEWER = {"num_workers=2": MANY["num_workers=2"]}  # the scripts ask for 4 to 10
WAIT = "__import__('accelerator')"
MOVED = Edit(r"\b(input|target|image_batch|label_batch)\.cuda\(\)", r"\1.clone()")
SPEAKERS, DEFAULTS = "cfg/SincNet_TIMIT.cfg", "--cfg cfg/SincNet_TIMIT.cfg"
EXPERIMENT = "exp/exp_main.py"
SERIES = (
    "--is_training 1 --root_path ./made/ --data_path ETTh1.csv --model_id ETTh1_336_96 "
    "--model DLinear --data ETTh1 --features M --seq_len 336 --pred_len 96 --enc_in 7 --des Exp "
    "--itr 1 --batch_size 32 --learning_rate 0.005 --train_epochs 1000000 --patience 1000000"
)
STORIES = (
    "--device=cpu --compile=False --dtype=float32 --batch_size=8 --max_seq_len=64 --dim=32 "
    "--n_layers=2 --n_heads=2 --n_kv_heads=2 --vocab_source=custom --vocab_size=512 "
    "--eval_iters=10 --max_iters=100000000 --gradient_accumulation_steps=1 --eval_interval="
)
WAVENET = "--device cpu --data made --adjdata made/adj_mx.pkl --save metr --gcn_bool --addaptadj"
BERT_TRAINER = "trainer/pretrain.py"
RANDOM_MODE = r"mode = random\.choice\(self\.sample_options\)"
TRAINED_G = r"(?s)( +)fake_img = netG\(z\)\n +fake_out = .*?g_loss\.backward\(\)"
TRAINED_D = r"(?s)( +)real_out = netD\(real_img\).*?d_loss\.backward\(\)\s+fake_img.*?\.mean\(\)"

FOURTH_TORCH: tuple[Recipe, ...] = (
    Recipe(
        "sincnet_timit",
        "torch",
        "audio",
        "mravanelli/SincNet",
        "speaker_id.py",
        DEFAULTS,
        count=after(r"optimizer_DNN2\.step\(\)"),
        rows=600,
        data=("speakers:data_lists",),
        edits=(
            HOST,
            Edit(r"np\.load\(class_dict_file\)", "np.load(class_dict_file, allow_pickle=True)"),
            Edit(r"data_folder=.*", "data_folder=data_lists", SPEAKERS),
            Edit(r"output_folder=.*", "output_folder=output", SPEAKERS),
            Edit(r"cnn_N_filt=80,60,60", "cnn_N_filt=16,12,12", SPEAKERS),
            Edit(r"fc_lay=2048,2048,2048", "fc_lay=128,128,128", SPEAKERS),
            Edit(r"batch_size=128", "batch_size=16", SPEAKERS),
            Edit(r"N_epochs=1500", "N_epochs=1500000", SPEAKERS),
            Edit(r"N_batches=800", "N_batches=40", SPEAKERS),
            Edit(r"N_eval_epoch=8", "N_eval_epoch=1", SPEAKERS),
        ),
        free=Variant((Edit(r"=create_batches_rnd\(", f"={ONCE}(create_batches_rnd, "),)),
        quiet=Variant((Edit(r"if epoch%N_eval_epoch==0:", "if False:"),)),
        changes={"every=10x": Variant((Edit(r"N_eval_epoch=1", "N_eval_epoch=10", SPEAKERS),))},
    ),
    Recipe(
        "pointnet_modelnet",
        "torch",
        "points",
        "yanx27/Pointnet_Pointnet2_pytorch",
        "train_classification.py",
        "--use_cpu --num_category 10 --num_point 256 --batch_size 8 --epoch 1000000",
        rows=160,
        data=("shapes:data/modelnet40_normal_resampled",),
        free=READY,
        quiet=Variant(
            (
                Edit(r"instance_acc, class_acc = test\(.*\)", "instance_acc = class_acc = 0.5"),
                Edit(r"if \(instance_acc >= best_instance_acc\):", "if False:"),
            )
        ),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "sasrec_movielens",
        "torch",
        "recommender",
        "pmixer/SASRec.pytorch",
        "python/main.py",
        "--dataset ml-1m --train_dir default --maxlen 50 --batch_size 32 --device cpu "
        "--num_epochs 1000000",
        rows=21_000,
        data=("histories:data/ml-1m.txt",),
        free=Variant(
            (Edit(r"sampler\.next_batch\(\)", f"{ONCE}(lambda: tuple(sampler.next_batch()))"),)
        ),
        quiet=Variant((Edit(r"if epoch % 20 == 0:", "if False:"),)),
        changes={
            "n_workers=1": Variant(
                (Edit(r"n_workers=3", "n_workers=1"),), codes=("input.oversubscribed",)
            ),
            "every=10x": Variant((Edit(r"if epoch % 20 == 0:", "if epoch % 200 == 0:"),)),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "lightgcn_lastfm",
        "torch",
        "recommender",
        "gusye1234/LightGCN-PyTorch",
        "code/main.py",
        "--dataset lastfm --recdim 16 --bpr_batch 1024 --epochs 1000000",
        data=("listeners:../data/lastfm",),
        free=Variant(
            (
                Edit(
                    r"utils\.UniformSample_original\(dataset\)",
                    f"{ONCE}(utils.UniformSample_original, dataset)",
                    "Procedure.py",
                ),
            )
        ),
        quiet=Variant(
            (Edit(r"if epoch %10 == 0:", "if False:"), without(r"torch\.save\(Recmodel"))
        ),
        changes={
            "every=10x": Variant(
                (
                    Edit(r"if epoch %10 == 0:", "if epoch % 100 == 0:"),
                    Edit(r"torch\.save\(Recmodel", "epoch % 10 or torch.save(Recmodel"),
                )
            )
        },
        input_codes=("input.serial", "pause.periodic"),
    ),
    Recipe(
        "bert_dialogues",
        "torch",
        "text",
        "codertimo/BERT-pytorch",
        "bert_pytorch/__main__.py",
        "-c made/corpus.txt -t made/test.txt -v none -o bert.model -hs 64 -l 2 -a 2 -b 32 "
        "-e 1000000",
        rows=4800,
        data=("dialogues:made",),
        environment={"PYTHON_ROOT": ".."},
        edits=(
            Edit(r"from \.(model|trainer|dataset) ", r"from bert_pytorch.\1 "),
            Edit(
                r"WordVocab\.load_vocab\(args\.vocab_path\)", "WordVocab(open(args.test_dataset))"
            ),
            Edit(r"\Z", "\n\ntrain()\n"),
        ),
        free=READY,
        quiet=Variant(
            (
                without(r"trainer\.save\("),
                Edit(r"        if test_data_loader is not None:", "        if False:"),
                Edit(r"if i % self\.log_freq == 0:", "if False:", BERT_TRAINER),
            )
        ),
        changes={
            **FEWER,
            "every=10x": Variant(
                (
                    Edit(r"trainer\.save\(", "epoch % 10 or trainer.save("),
                    Edit(
                        r"        if test_data_loader is not None:",
                        "        if epoch % 10 == 9:",
                    ),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "dlinear_ett",
        "torch",
        "series",
        "cure-lab/LTSF-Linear",
        "run_longExp.py",
        SERIES,
        data=("transformers:made/ETTh1.csv",),
        edits=(Edit(r"np\.Inf", "np.inf", "utils/tools.py"),),
        free=READY,
        quiet=Variant(
            (
                Edit(r"self\.vali\(\w+, \w+, criterion\)", "0.0", EXPERIMENT),
                without(r"early_stopping\(", file=EXPERIMENT),
            )
        ),
        changes={
            **FEWER,
            "every=10x": Variant(
                (
                    Edit(
                        r"(self\.vali\(\w+, \w+, criterion\))",
                        r"\1 if epoch % 10 == 9 else 1.0 / (1 + epoch)",
                        EXPERIMENT,
                    ),
                )
            ),
        },
        input_codes=BESIDE,
    ),
    Recipe(
        "wavenet_traffic",
        "torch",
        "series",
        "nnzhan/Graph-WaveNet",
        "train.py",
        f"{WAVENET} --nhid 4 --batch_size 4 --epochs 1000000",
        rows=160,
        data=("traffic:made",),
        edits=(Edit(r"nn\.Conv1d", "nn.Conv2d", "model.py"),),
        free=Variant(
            (
                Edit(
                    r"dataloader\['train_loader'\]\.get_iterator\(\)",
                    "__import__('tally').again(dataloader['train_loader'].get_iterator(), "
                    "dataloader['train_loader'].num_batch)",
                ),
                without(r"dataloader\['train_loader'\]\.shuffle\(\)"),
            )
        ),
        quiet=Variant(
            (
                Edit(r"dataloader\['val_loader'\]\.get_iterator\(\)", "()"),
                Edit(r"(?m)^        torch\.save\(.*", "        pass"),
            )
        ),
        input_codes=IN_MEMORY,
    ),
    Recipe(
        "llama_stories",
        "torch",
        "text",
        "karpathy/llama2.c",
        "train.py",
        f"{STORIES}200",
        data=("stories:data/tok512",),
        edits=(
            without(r"import sentencepiece", file="tinystories.py"),
            without(r"from sentencepiece", file="tokenizer.py"),
        ),
        free=READY,
        quiet=Variant((Edit(r"if iter_num % eval_interval == 0 and", "if False and"),)),
        changes={"every=10x": Variant(args=f"{STORIES}2000")},
    ),
    Recipe(
        "speech_commands",
        "torch",
        "audio, accelerator",
        "tugstugi/pytorch-speech-commands",
        "train_speech_commands.py",
        "--batch-size 32 --max-epochs 1000000",
        rows=640,
        data=("commands:datasets/speech_commands",),
        edits=(
            Edit(r"async=True", "non_blocking=True"),
            Edit(r", volatile = True", ""),
            Edit(r"loss\.data\[0\]", "loss.item()"),
            Edit(r"'checkpoints/", "'"),
            Edit(r"outputs = model\(inputs\)", f"outputs = {WAIT}.output(0.03, len(inputs), 12)"),
            Edit(r"self\.sample_rate\)", "sr=self.sample_rate)", "transforms/transforms_wav.py"),
            Edit(
                r"spectrogram\(samples,", "spectrogram(y=samples,", "transforms/transforms_wav.py"
            ),
            Edit(
                r"filters\.mel\(sample_rate, n_fft, self\.n_mels\)",
                "filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=self.n_mels)",
                "transforms/transforms_stft.py",
            ),
            Edit(
                r"phase_vocoder\(stft, 1\+scale,",
                "phase_vocoder(stft, rate=1+scale,",
                "transforms/transforms_stft.py",
            ),
            Edit(
                r"load\(path, sample_rate\)",
                "load(path, sr=sample_rate)",
                "datasets/speech_commands_dataset.py",
            ),
        ),
        free=READY,
        quiet=Variant(
            (Edit(r"epoch_loss = valid\(epoch\)", "epoch_loss = 1.0"), without(r"writer\.add_"))
        ),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "nested_unet",
        "torch",
        "segmentation, accelerator",
        "4uiiurz1/pytorch-nested-unet",
        "train.py",
        "--epochs 1000000",
        rows=670,
        data=("nuclei:inputs/dsb2018_96",),
        environment={"NO_ALBUMENTATIONS_UPDATE": "1"},
        edits=(
            MOVED,
            HOST,
            Edit(r"from albumentations\.augmentations import", "import albumentations as"),
            Edit(r"transforms\.Flip\(\)", "transforms.D4()"),
            Edit(
                r"transforms\.Random(Brightness|Contrast)\(\)",
                "transforms.RandomBrightnessContrast()",
            ),
            Edit(r"\boutput = model\(input\)", f"output = {WAIT}.output(0.02, *target.shape)"),
        ),
        free=READY,
        quiet=Variant(
            (
                Edit(r"val_log = validate\(.*\)", "val_log = {'loss': 1.0, 'iou': 0.0}"),
                Edit(r"pd\.DataFrame\(log\)\.to_csv\(", "''.format("),
            )
        ),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "u2net_salient",
        "torch",
        "segmentation, accelerator",
        "xuebinqin/U-2-Net",
        "u2net_train.py",
        rows=240,
        data=("salient:train_data/DUTS/DUTS-TR/DUTS-TR",),
        edits=(
            Edit(r"d0, d1, d2, d3, d4, d5, d6 = net\(inputs_v\)", f"{WAIT}.step(0.035)"),
            Edit(r"loss2, loss = muti_bce.*", f"loss2 = loss = {WAIT}.output(0.005)"),
            Edit(r"del d0, d1, d2, d3, d4, d5, d6, ", "del "),
        ),
        free=READY,
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "ssd_voc",
        "torch",
        "detection, accelerator",
        "amdegroot/ssd.pytorch",
        "train.py",
        "--dataset_root made/ --cuda False --batch_size 8",
        data=("objects:made",),
        edits=(
            Edit(
                r"target_transform=COCOAnnotationTransform\(\)",
                "target_transform=None",
                "data/coco.py",
            ),
            Edit(r"vgg_weights = .*", "pass"),
            without(r"ssd_net\.vgg\.load_state_dict"),
            Edit(r", volatile=True", ""),
            Edit(r"\.data\[0\]", ".item()"),
            Edit(r"out = net\(images\)", f"{WAIT}.step(0.03)"),
            Edit(r"loss_l, loss_c = .*", f"loss_l = loss_c = {WAIT}.output(0.01)"),
            Edit(
                RANDOM_MODE,
                "mode = self.sample_options[random.randint(len(self.sample_options))]",
                "utils/augmentations.py",
            ),
        ),
        free=READY,
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "medicalnet_brains",
        "torch",
        "volume, accelerator",
        "Tencent/MedicalNet",
        "train.py",
        "--data_root made --img_list made/train.txt --no_cuda --model_depth 10 "
        "--resnet_shortcut A --input_D 28 --input_H 224 --input_W 224 --n_epochs 1000000",
        data=("brains:made", "package:datasets/__init__.py"),
        edits=(
            Edit(r"ndimage\.interpolation\.zoom", "ndimage.zoom"),
            Edit(r"ndimage\.interpolation\.zoom", "ndimage.zoom", "datasets/brains18.py"),
            Edit(r"\.get_data\(\)", ".get_fdata()", "datasets/brains18.py"),
            Edit(r"opt\.pretrain_path:", "not opt.no_cuda:", "model.py"),
            Edit(r"if sets\.ci_test:\n        params", "if sets.no_cuda:\n        params"),
            Edit(r"model\(volumes\)", f"{WAIT}.output(0.04, len(volumes), 2, 4, 28, 28)"),
        ),
        free=READY,
        quiet=Variant((Edit(r"if not sets\.ci_test:", "if False:"),)),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "transunet_synapse",
        "torch",
        "volume, accelerator",
        "Beckschen/TransUNet",
        "train.py",
        "--batch_size 8 --max_epochs 1000000",
        data=("slices:../made", "package:datasets/__init__.py"),
        edits=(
            HOST,
            without(r"net\.load_from\("),
            Edit(r"'\.\./data/Synapse", "'../made/data/Synapse"),
            Edit(r"'\./lists/lists_Synapse'", "'../made/lists'"),
            without(r"from medpy import metric", file="utils.py"),
            Edit(r"scipy\.ndimage\.interpolation", "scipy.ndimage", "datasets/dataset_synapse.py"),
            Edit(MOVED.pattern, MOVED.replacement, "trainer.py"),
            Edit(
                r"outputs = model\(image_batch\)",
                "outputs = torch.zeros(len(image_batch), 9, 1, 1)",
                "trainer.py",
            ),
            Edit(r"loss_ce = .*", f"loss_ce = {WAIT}.output(0.03)", "trainer.py"),
            Edit(r"loss_dice = .*", "loss_dice = 0.0", "trainer.py"),
        ),
        free=READY,
        quiet=Variant((without(r"writer\.add_", file="trainer.py"),)),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "c3d_clips",
        "torch",
        "video, accelerator",
        "jfzhang95/pytorch-video-recognition",
        "train.py",
        rows=320,
        data=("frames:made",),
        edits=(
            Edit(r"batch_size=20", "batch_size=10"),
            Edit(r"nEpochs = 100", "nEpochs = 1000000"),
            Edit(r"pretrained=True", "pretrained=False"),
            Edit(r"'/[Pp]ath/to/(VAR/ucf101|UCF-101)'", "'made'", "mypath.py"),
            Edit(
                r"outputs = model\(inputs\)",
                f"outputs = {WAIT}.output(0.025, len(inputs), num_classes)",
            ),
        ),
        free=READY,
        quiet=Variant(
            (
                Edit(r"for phase in \['train', 'val'\]:", "for phase in ['train']:"),
                Edit(r"if useTest and", "if False and"),
            )
        ),
        changes=FEWER,
        input_codes=BESIDE,
    ),
    Recipe(
        "srgan_pictures",
        "torch",
        "super-resolution, accelerator",
        "leftthomas/SRGAN",
        "train.py",
        "--num_epochs 1000000",
        count=after(r"optimizerD\.step\(\)"),
        rows=160,
        data=("pictures:data",),
        edits=(
            without(r"from loss import GeneratorLoss"),
            Edit(r"GeneratorLoss\(\)", "torch.nn.Identity()"),
            Edit(r"batch_size=64", "batch_size=4"),
            Edit(TRAINED_G, rf"\1g_loss = {WAIT}.output(0.015)\n\1g_loss.backward()"),
            Edit(
                TRAINED_D,
                rf"\1d_loss = real_out = fake_out = {WAIT}.output(0.015)\n\1d_loss.backward()",
            ),
            Edit(r"sr = netG\(lr\)", f"sr = hr + {WAIT}.output(0.01)"),
            Edit(r"pytorch_ssim\.ssim\(sr, hr\)\.item\(\)", "0.9"),
            Edit(r"'epochs/", "'"),
            Edit(r"'statistics/", "'./"),
        ),
        free=READY,
        quiet=Variant(
            (
                Edit(r"in val_bar:", "in ():"),
                Edit(r"val_images = torch\.stack\(val_images\)", "continue"),
            )
        ),
        changes=FEWER,
        input_codes=BESIDE,
    ),
)
