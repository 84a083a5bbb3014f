"""A fourth set of recipes, of input pipelines: TensorFlow 1 and 2, Keras, JAX.

Where `accelerator_tf` or `accelerator` takes the place of a network, its step is simulated: a fixed
time that takes no processor. The script's own code for its data stays.
"""

from __future__ import annotations

from bench.public.recipe import BESIDE, Edit, Recipe, Variant, without
from bench.public.recipes_keras import QUIET, READY
from bench.public.recipes_tf1 import COMPAT, FED, LEGACY

FOURTH_TF_COMMITS = {
    "DrSleep/tensorflow-deeplab-resnet": ("066023c033624e6c8154340e06e8fbad4f702bdf", "MIT"),
    "Kyubyong/transformer": ("fb023bb097e08d53baf25b46a9da490beba51a21", "Apache-2.0"),
    "calmisential/TensorFlow2.0_ResNet": ("6136d57c7580d24c9ee3e55ca0b820822565ce17", "MIT"),
    "charlesq34/pointnet": ("2618f72bc1a0fd21b074096e748016960d44ef55", "MIT"),
    "guillaumegenthial/sequence_tagging": (
        "5cb9890e7c52e35a1239378da43a8de7be508003",
        "Apache-2.0",
    ),
    "harvitronix/five-video-classification-methods": (
        "6c610cd179c6f44ddbd53fb5ac16f6fd71c58ab0",
        "MIT",
    ),
    "huggingface/accelerate": ("16cb6eb80dd9aa8b4df1a63ef57863e455d53b83", "Apache-2.0"),
    "kang205/SASRec": ("e3738967fddab206d6eeb4fda433e7a7034dd8b1", "Apache-2.0"),
    "lucidrains/mlp-gpt-jax": ("571ccf0bcc724f9b893db256be62e70c9f0b6bda", "MIT"),
    "oarriaga/face_classification": ("b861d21b0e76ca5514cdeb5b56a689b7318584f4", "MIT"),
    "qqwweee/keras-yolo3": ("e6598d13c703029b2686bc2eb8d5c09badf42992", "MIT"),
    "wenxinxu/resnet-in-tensorflow": ("8ba8d8905e099cd7e1b1cf1f84b89f603f7613a0", "MIT"),
    "wizyoung/YOLOv3_TensorFlow": ("8776cf7b2531cae83f5fc730f3c70ae97919bfd6", "MIT"),
    "yu4u/noise2noise": ("c25d5a81cd2c7077e801b42e1dd05442fd19d8c2", "MIT"),
    "zhixuhao/unet": ("b45af4d458437d8281cc218a07fd4380818ece4a", "MIT"),
    "zzh8829/yolov3-tf2": ("2784050f2fc1ff060f4c8b3ac2db231370569aa8", "MIT"),
}

TALLY = "__import__('tally')"
STEP = "__import__('accelerator_tf')"
LAYERS = r"from keras\.layers\.\w+ import"
PLAIN_FLOAT = r"np\.float\b"
FIT = Edit(r"\.fit_generator\(\s*(?:generator=)?", ".fit(")


def _compat(*files: str) -> tuple[Edit, ...]:
    return tuple(Edit(COMPAT.pattern, COMPAT.replacement, file) for file in files)


def _printed(*files: str) -> tuple[Edit, ...]:
    """Return the substitutions that make functions of the print statements of Python 2."""
    pattern = r"(?m)^([ \t]*)print ((?:[^\n]*(?:% \(|examples_per_sec,)\n)?[^\n]*)$"
    return tuple(Edit(pattern, r"\1print(\2)", file) for file in files)


def _tf1(
    name: str, kind: str, repository: str, path: str, edits: tuple[Edit, ...], **given: object
) -> Recipe:
    found = {"count": "session", "environment": LEGACY, "input_codes": FED, **given}
    return Recipe(name, "tf1", kind, repository, path, edits=edits, **found)  # type: ignore


def _keras(
    name: str, kind: str, repository: str, path: str, edits: tuple[Edit, ...], **given: object
) -> Recipe:
    """Return the recipe of a `fit` over a generator or a sequence, which a thread drives."""
    found = {"count": "keras", "free": READY, "input_codes": BESIDE, **given}
    return Recipe(name, "keras", kind, repository, path, edits=edits, **found)  # type: ignore


CIFAR = _tf1(
    "wenxinxu_resnet",
    "image",
    "wenxinxu/resnet-in-tensorflow",
    "cifar10_train.py",
    (
        *_compat("hyper_parameters.py"),
        *_printed("", "cifar10_input.py"),
        Edit(r"\bxrange\b", "range"),
        Edit(r"import cPickle", "import pickle as cPickle", "cifar10_input.py"),
        Edit(r"NUM_TRAIN_BATCH = 5", "NUM_TRAIN_BATCH = 1", "cifar10_input.py"),
        without(r"maybe_download_and_extract\(\)"),
        Edit(r"'train_steps', 80000", "'train_steps', 10**9", "hyper_parameters.py"),
    ),
    args="--num_residual_blocks=1 --train_batch_size=32",
    data=("batches:cifar10_data/cifar-10-batches-py",),
    free=Variant(
        (
            Edit(
                r"= self\.generate_augment_train_batch\(",
                f"= {TALLY}.once(self.generate_augment_train_batch, ",
            ),
            Edit(r"= self\.generate_vali_batch\(", f"= {TALLY}.once(self.generate_vali_batch, "),
        )
    ),
)
SASREC = _tf1(
    "sasrec_warp",
    "recommender",
    "kang205/SASRec",
    "main.py",
    (
        *_compat("", "modules.py"),
        *_printed("", "util.py"),
        Edit(r"\bxrange\b", "range", "util.py"),
        Edit(r"len\(user_train\) / args", "len(user_train) // args"),
        Edit(r"put\(zip\(\*one_batch\)\)", "put(list(zip(*one_batch)))", "sampler.py"),
        Edit(r"randint\(2e9\)", "randint(int(2e9))", "sampler.py"),
        Edit(r"range\(1, args\.num_epochs \+ 1\)", "range(1, 10**9)"),
    ),
    args="--dataset=ml-1m --train_dir=default",
    data=("ratings_in_order:data/ml-1m.txt",),
    input_codes=BESIDE,
    free=Variant((Edit(r"sampler\.next_batch\(\)", f"{TALLY}.once(sampler.next_batch)"),)),
)
POINTNET = _tf1(
    "pointnet_tf1",
    "points",
    "charlesq34/pointnet",
    "train.py",
    (
        *_compat("", "utils/tf_util.py", "models/pointnet_cls.py", "models/transform_nets.py"),
        Edit(PLAIN_FLOAT, "float"),
        Edit(r"pred, end_points = MODEL\.get_model\(.*\)", "pred = tf.zeros([BATCH_SIZE, 40])"),
        Edit(
            r"loss = MODEL\.get_loss\(.*\)", f"loss = {STEP}.loss(0.02, pointclouds_pl, labels_pl)"
        ),
        Edit(r"train_op = optimizer\.minimize\(.*\)", "train_op = loss.op"),
        Edit(r"range\(MAX_EPOCH\)", "range(10**9)"),
    ),
    data=("clouds:data/modelnet40_ply_hdf5_2048",),
    rows=1024,
    free=Variant(
        (
            Edit(
                r"provider\.(loadDataFile|shuffle_data|rotate_point_cloud|jitter_point_cloud)\(",
                rf"{TALLY}.once(provider.\1, ",
            ),
        )
    ),
    quiet=Variant(
        (
            without(r"eval_one_epoch\(sess, ops, test_writer\)"),
            Edit(r"if epoch % 10 == 0", "if False"),
            without(r"train_writer\.add_summary\("),
        )
    ),
)
TAGGING = _tf1(
    "sequence_tagging",
    "text",
    "guillaumegenthial/sequence_tagging",
    "train.py",
    (
        *_compat("model/ner_model.py", "model/base_model.py"),
        Edit(
            r"filename_dev = filename_test = .*",
            'filename_dev, filename_train = "data/dev.txt", "data/train.txt"',
            "model/config.py",
        ),
        Edit(r"use_pretrained = True", "use_pretrained = False", "model/config.py"),
        Edit(r"use_crf = True", "use_crf = False", "model/config.py"),
        Edit(r"hidden_size_char = 100", "hidden_size_char = 25", "model/config.py"),
        Edit(r"hidden_size_lstm = 300", "hidden_size_lstm = 100", "model/config.py"),
        Edit(r"nepochs          = 15", "nepochs = 10**9", "model/config.py"),
        Edit(r"nepoch_no_imprv  = 3", "nepoch_no_imprv = 10**9", "model/config.py"),
        Edit(
            r"self\.word_embeddings =  tf\.nn\.dropout\(word_embeddings, self\.dropout\)",
            "self.word_embeddings = tf.nn.dropout(word_embeddings, self.dropout)",
            "model/ner_model.py",
        ),
    ),
    data=("sentences:data",),
    rows=1000,
    free=Variant(
        (
            Edit(
                r"enumerate\(minibatches\(train, batch_size\)\)",
                f"enumerate({TALLY}.again(minibatches(train, batch_size), nbatches))",
                "model/ner_model.py",
            ),
            Edit(
                r"fd, _ = self\.get_feed_dict\(",
                f"fd, _ = {TALLY}.once(self.get_feed_dict, ",
                "model/ner_model.py",
            ),
        )
    ),
    quiet=Variant(
        (
            Edit(
                r"metrics = self\.run_evaluate\(dev\)", 'metrics = {"f1": 0}', "model/ner_model.py"
            ),
            without(r"self\.save_session\(\)", file="model/base_model.py"),
            without(r"self\.file_writer\.add_summary\(", file="model/ner_model.py"),
        )
    ),
)
TRANSLATION = _tf1(
    "kyubyong_transformer",
    "text",
    "Kyubyong/transformer",
    "train.py",
    (
        *_compat("", "data_load.py", "model.py", "modules.py", "utils.py"),
        Edit(r"(?m)^from model import Transformer", "from data_load import load_vocab"),
        Edit(r"m = Transformer\(hp\)", "idx2token = load_vocab(hp.vocab)[1]"),
        Edit(r"m\.idx2token", "idx2token"),
        Edit(
            r"loss, train_op, global_step, train_summaries = m\.train\(xs, ys\)",
            f"loss = {STEP}.loss(0.02, *xs, *ys)\n"
            "train_op, train_summaries = loss.op, tf.summary.scalar('loss', loss)\n"
            "global_step = tf.assign_add(tf.Variable(-1), 1)",
        ),
        Edit(
            r"y_hat, eval_summaries = m\.eval\(xs, ys\)",
            "y_hat, eval_summaries = tf.zeros_like(ys[1]), train_summaries",
        ),
        Edit(r"total_steps = .*", "total_steps = 10**9"),
        Edit(r"_loss = sess\.run\(loss\).*", "_loss = 0.0"),
    ),
    args="--num_epochs 10 --batch_size 32",
    data=("translations:iwslt2016",),
    rows=20_000,
    input_codes=BESIDE,
    free=Variant(
        (
            Edit(
                r"xs, ys = iter\.get_next\(\)",
                "tf.constant(0)\n"
                "with tf.Session() as first:\n"
                "    first.run(iter.make_initializer(train_batches))\n"
                "    made = first.run(iter.get_next())\n"
                "xs, ys = ([tf.constant(one) for one in part] for part in made)",
            ),
        )
    ),
)
DEEPLAB = _tf1(
    "deeplab_queue",
    "segmentation",
    "DrSleep/tensorflow-deeplab-resnet",
    "train.py",
    (
        *_compat("", "deeplab_resnet/image_reader.py", "deeplab_resnet/utils.py"),
        Edit(r"(?s).*", "from .image_reader import ImageReader\n", "deeplab_resnet/__init__.py"),
        Edit(r"from deeplab_resnet import .*", "from deeplab_resnet import ImageReader"),
        Edit(
            r"(?s)    net = DeepLabResNetModel.*?    train_op = tf\.group\([^)]*\)",
            f"    reduced_loss = {STEP}.loss(0.04, image_batch, label_batch)\n"
            "    train_op, pred = reduced_loss.op, label_batch\n"
            "    restore_var = [tf.Variable(0)]\n"
            "    step_ph = tf.placeholder(tf.float32, ())\n"
            "    total_summary = tf.summary.scalar('loss', reduced_loss)\n"
            "    summary_writer = tf.summary.FileWriter(args.snapshot_dir)",
        ),
        without(r"load\(loader, sess"),
    ),
    args="--data-dir VOC --data-list VOC/train.txt --random-scale --random-mirror"
    " --num-steps 1000000000",
    data=("segmented:VOC",),
    input_codes=BESIDE,
    free=Variant(
        (
            Edit(
                r"image_batch, label_batch = reader\.dequeue\(args\.batch_size\)",
                "image_batch = tf.zeros([args.batch_size, h, w, 3])\n"
                "        label_batch = tf.zeros([args.batch_size, h, w, 1], tf.uint8)",
            ),
        )
    ),
)
PY_FUNC = _tf1(
    "yolo3_py_func",
    "detection",
    "wizyoung/YOLOv3_TensorFlow",
    "train.py",
    (
        *_compat("", "utils/misc_utils.py", "utils/nms_utils.py"),
        without(r"from model import yolov3"),
        Edit(
            r"(?s)yolo_model = yolov3\(.*?    train_op = optimizer\.apply_gradients\([^)]*\)",
            f"total = {STEP}.loss(0.03, image, *y_true)\n"
            "train_op, loss, l2_loss = total.op, [total] * 5, total\n"
            "y_pred = [tf.zeros([args.batch_size, 1, 4])] * 3\n"
            "variable = tf.Variable(0.0)\n"
            "global_step, learning_rate = tf.assign_add(variable, 1.0), tf.constant(0.1)\n"
            "tf.summary.scalar('train_batch_statistics/total_loss', loss[0])",
        ),
        without(r"saver_to_restore\.restore\("),
        Edit(r"np\.Inf", "np.inf"),
        Edit(r"range\(args\.total_epoches\)", "range(10**9)"),
        Edit(r"train_evaluation_step = 100 ", "train_evaluation_step = 10**9 ", "args.py"),
        Edit(r"val_evaluation_epoch = 2 ", "val_evaluation_epoch = 10**9 ", "args.py"),
        Edit(r"save_epoch = 10 ", "save_epoch = 10**9 ", "args.py"),
    ),
    data=("indexed:data/my_data",),
    input_codes=BESIDE,
    free=Variant(
        (
            Edit(
                r"image_ids, image, y_true_13, y_true_26, y_true_52 = iterator\.get_next\(\)",
                "with tf.Session() as first:\n"
                "    first.run(train_init_op)\n"
                "    made = first.run(iterator.get_next())\n"
                "image_ids, image, y_true_13, y_true_26, y_true_52 = map(tf.constant, made)",
            ),
        )
    ),
)
UNET = _keras(
    "unet_membrane",
    "segmentation",
    "zhixuhao/unet",
    "main.py",
    (
        FIT,
        Edit(
            r"from keras\.preprocessing\.image import",
            "from tensorflow.keras.preprocessing.image import",
            "data.py",
        ),
        without(r"import skimage", file="data.py"),
        without(r"import skimage", file="model.py"),
        Edit(r"from keras import backend as keras", "", "model.py"),
        Edit(r"Model\(input = inputs, output = conv10\)", "Model(inputs, conv10)", "model.py"),
        Edit(r"Adam\(lr = ", "Adam(learning_rate = ", "model.py"),
        Edit(r"model = unet\(\)", f"model = {STEP}.simulate(unet(), 0.03)"),
        Edit(r"unet_membrane\.hdf5", "unet_membrane.keras"),
        Edit(r"epochs=1,", "epochs=10**6,"),
    ),
)
YOLO3 = _keras(
    "keras_yolo3",
    "detection",
    "qqwweee/keras-yolo3",
    "train.py",
    (
        FIT,
        Edit(LAYERS, "from keras.layers import", "yolo3/model.py"),
        Edit(r"model = create_model\([^)]*\)", f"model = {STEP}.network(0.04)"),
        Edit(r"Adam\(lr=", "Adam(learning_rate="),
        Edit(r"yield \[image_data, \*y_true\]", "yield (image_data, *y_true)"),
        Edit(r"batch_size = 32", "batch_size = 4"),
        Edit(r"(?m)^    checkpoint = ModelCheckpoint\([^)]*\n.*$", ""),
        Edit(r"callbacks=\[logging, checkpoint\]", "callbacks=[logging]"),
        Edit(r"epochs=50", "epochs=10**6"),
    ),
    data=("boxed:VOC",),
    rows=1500,
    quiet=QUIET,
)
NOISE = _keras(
    "noise2noise",
    "restoration",
    "yu4u/noise2noise",
    "train.py",
    (
        FIT,
        Edit(LAYERS, "from keras.layers import", "model.py"),
        Edit(PLAIN_FLOAT, "float", "noise_model.py"),
        Edit(r"model = get_model\(args\.model\)", f"model = {STEP}.network(0.025, 'PSNR')"),
        Edit(r"Adam\(lr=", "Adam(learning_rate="),
        Edit(r"\.append\(\[(np.*)\]\)", r".append((\1))", "generator.py"),
        Edit(r"\.hdf5", ".keras"),
        Edit(r"epochs=nb_epochs", "epochs=10**6"),
    ),
    args="--image_dir BSD/train --test_dir BSD/test --steps 100",
    data=("photos:BSD",),
    quiet=QUIET,
)
FACES = _keras(
    "face_emotions",
    "image",
    "oarriaga/face_classification",
    "src/train_emotion_classifier.py",
    (
        FIT,
        Edit(r"batch_size = 32", "batch_size = 8"),
        Edit(r"metrics=\['accuracy'\]", "metrics=['accuracy'], jit_compile=False"),
        Edit(
            r"from keras\.preprocessing\.image import",
            "from tensorflow.keras.preprocessing.image import",
        ),
        without(r"from scipy\.misc import", file="utils/preprocessor.py"),
        Edit(
            r"(SeparableConv2D\(\d+, \(3, 3\), padding='same',)\s*kernel_regularizer=\w+,",
            r"\1",
            "models/cnn.py",
        ),
        Edit(r"\.as_matrix\(\)", ".to_numpy(float)", "utils/datasets.py"),
        Edit(r"len\(train_faces\) / batch_size", "len(train_faces) // batch_size"),
        Edit(r"\{val_acc:\.2f\}\.hdf5", "{val_accuracy:.2f}.keras"),
        Edit(r"num_epochs = 10000", "num_epochs = 10**6"),
        Edit(r"patience = 50", "patience = 10**6"),
    ),
    needs=("trained_models",),
    data=("faces:../datasets/fer2013/fer2013.csv",),
    rows=800,
    quiet=QUIET,
)
VIDEO = _keras(
    "video_features",
    "video",
    "harvitronix/five-video-classification-methods",
    "train.py",
    (
        FIT,
        Edit(LAYERS, "from keras.layers import", "models.py"),
        Edit(r"Adam\(lr=1e-5, decay=1e-6\)", "Adam(1e-5)", "models.py"),
        Edit(r"(rm = ResearchModels\(.*\))", rf"\1; {STEP}.simulate(rm.model, 0.02)"),
        Edit(r"validation_steps=40,\s*workers=4", "validation_steps=4"),
        Edit(r"\(len\(data\.data\) \* 0\.7\) //", "int(len(data.data) * 0.7) //"),
        Edit(r"\.hdf5", ".keras"),
        Edit(r"nb_epoch = 1000", "nb_epoch = 10**6"),
        Edit(r"patience=5", "patience=10**6"),
        Edit(r"@threadsafe_generator", "", "data.py"),
        Edit(r"data_type is \"images\"", 'data_type == "images"', "data.py"),
    ),
    data=("features:data",),
    quiet=QUIET,
)
RECORDS = _keras(
    "yolo3_tfrecord",
    "detection",
    "zzh8829/yolov3-tf2",
    "train.py",
    (
        Edit(
            r"YoloV3\(FLAGS\.size, training=True, classes=FLAGS\.num_classes\)",
            f"{STEP}.network(0.04)",
        ),
        Edit(r"Adam\(lr=", "Adam(learning_rate="),
        Edit(r"yolov3_train_\{epoch\}\.tf", "yolov3_train.weights.h5"),
        Edit(r"patience=3", "patience=10**6"),
    ),
    args="--dataset records/train.tfrecord --val_dataset records/val.tfrecord --num_classes 20"
    " --classes data/voc2012.names --epochs 1000000",
    data=("records:records",),
    quiet=QUIET,
)
FLOWERS = Recipe(
    "flowers_tf_data",
    "tf2",
    "image",
    "calmisential/TensorFlow2.0_ResNet",
    "train.py",
    edits=(
        Edit(r"(?s)with tf\.GradientTape.*?train_accuracy\(labels, predictions\)",
             f"train_loss({STEP}.loss(0.02, images, labels))"),
        Edit(r"(?s)predictions = model\(images, training=False\).*?"
             r"valid_accuracy\(labels, predictions\)",
             f"valid_loss({STEP}.loss(0.007, images, labels))"),
        Edit(r"model = get_model\(\)", "model = None"),
        Edit(r"reset_states", "reset_state"),
        Edit(r"EPOCHS = 50", "EPOCHS = 10**9", "config.py"),
    ),
    data=("flowers:dataset",),
    rows=600,
    count=r"train_step\(images, labels\)",
    free=Variant(
        (Edit(r"in train_dataset:", f"in {TALLY}.again(train_dataset, 75):"),)
    ),
    quiet=Variant((without(r"valid_step\(valid_images, valid_labels\)"),)),
)  # fmt: skip
MLP_GPT = Recipe(
    "mlp_gpt_jax",
    "jax",
    "text",
    "lucidrains/mlp-gpt-jax",
    "train.py",
    edits=(
        Edit(r"np\.fromstring\(", "np.frombuffer("),
        Edit(r"int\(95e6\)", "int(1.2e6)"),
        Edit(r"int\(90e6\)", "int(1.1e6)"),
        Edit(r"SEQ_LEN = 768", "SEQ_LEN = 128"),
        Edit(r"dim = 512", "dim = 64"),
        Edit(r"depth = 8", "depth = 2"),
        Edit(r"NUM_BATCHES = int\(1e5\)", "NUM_BATCHES = 10**9"),
    ),
    data=("gzipped:data/enwik8.gz",),
    count=r"params = apply_updates\(params, updates\)",
    free=Variant((Edit(r"data = next\(train_loader\)", f"data = {TALLY}.ready(train_loader)"),)),
    quiet=Variant((Edit(r"if i % SAMPLE_EVERY == 0", "if False"),)),
)
PETS = Recipe(
    "accelerate_pets",
    "torch",
    "image",
    "huggingface/accelerate",
    "examples/cv_example.py",
    "--data_dir pets --cpu",
    edits=(
        without(r"from timm import"),
        Edit(r"model = create_model\(.*\)", "model = torch.nn.Linear(1, len(label_to_id))"),
        Edit(r"model\.get_classifier\(\)", "model"),
        Edit(r'model\.default_cfg\["mean"\]', "(0.485, 0.456, 0.406)"),
        Edit(r'model\.default_cfg\["std"\]', "(0.229, 0.224, 0.225)"),
        Edit(
            r"outputs = model\(inputs\)",
            "outputs = __import__('accelerator').output(0.03, len(inputs), 37)",
        ),
        Edit(r'"num_epochs": 3', '"num_epochs": 10**6'),
        Edit(r'"batch_size": 64', '"batch_size": 16'),
    ),
    data=("pets:pets",),
    rows=1600,
    input_codes=BESIDE,
    free=Variant(switches=("torch.ready",)),
    quiet=Variant(
        (
            Edit(r"in enumerate\(eval_dataloader\)", "in enumerate([])"),
            Edit(r"accurate\.item\(\) / num_elems", "0.0"),
        )
    ),
)
FOURTH_TF: tuple[Recipe, ...] = (
    CIFAR,
    SASREC,
    POINTNET,
    TAGGING,
    TRANSLATION,
    DEEPLAB,
    PY_FUNC,
    UNET,
    YOLO3,
    NOISE,
    FACES,
    VIDEO,
    RECORDS,
    FLOWERS,
    MLP_GPT,
    PETS,
)
