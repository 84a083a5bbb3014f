"""Files of generated data sets: photographs with boxes and masks, clouds, sentences, features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
VOC_CLASSES = 20


def _photograph(rng: Any, width: int, height: int) -> Any:
    """Return a smooth picture with some noise, which takes about as long to decode as a photo."""
    from PIL import Image

    small = rng.integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    noise = rng.integers(-12, 12, smooth.shape, np.int16)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def _boxes(rng: Any, width: int, height: int) -> Any:
    """Return rows of x1, y1, x2, y2, class: one to six objects."""
    count = int(rng.integers(1, 7))
    left, top = rng.integers(0, width - 120, count), rng.integers(0, height - 120, count)
    right = left + rng.integers(40, 120, count)
    bottom = top + rng.integers(40, 120, count)
    return np.stack([left, top, right, bottom, rng.integers(0, VOC_CLASSES, count)], 1)


def _words(rng: Any, count: int) -> Any:
    letters = list("abcdefghijklmnopqrstuvwxyz")
    return np.array(["".join(rng.choice(letters, n)) for n in rng.integers(2, 10, count)])


def batches(path: Path, rows: int | None) -> None:
    """CIFAR-10 as its Python files with text keys: data_batch_1 and test_batch, in the folder."""
    import pickle

    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(41)
    for name in ("data_batch_1", "test_batch"):
        pixels = rng.integers(0, 255, (rows or 10_000, 3072), np.uint8)
        labels = rng.integers(0, 10, len(pixels)).tolist()
        with (path / name).open("wb") as file:
            pickle.dump({"data": pixels, "labels": labels}, file)


def clouds(path: Path, rows: int | None) -> None:
    """ModelNet40 as HDF5: two training files and a test file of clouds of 2,048 points."""
    import h5py

    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(42)
    for part, count in (("train", 2), ("test", 1)):
        names = [f"ply_data_{part}{i}.h5" for i in range(count)]
        for name in names:
            size = (rows or 2048) // (1 if part == "train" else 4)
            with h5py.File(path / name, "w") as file:
                points = rng.normal(size=(size, 2048, 3)).astype(np.float32)
                file.create_dataset("data", data=points, compression="gzip", compression_opts=1)
                file.create_dataset("label", data=rng.integers(0, 40, (size, 1), np.uint8))
        lines = [f"data/{path.name}/{name}" for name in names]
        (path / f"{part}_files.txt").write_text("\n".join(lines) + "\n")


def sentences(path: Path, rows: int | None) -> None:
    """CoNLL: a word and its tag a line, and the vocabularies, in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(43)
    words = _words(rng, 20_000)
    for name, share in (("train", 1.0), ("dev", 0.05)):
        lines: list[str] = []
        for length in rng.integers(3, 30, int((rows or 14_041) * share)):
            chosen = words[np.minimum(rng.zipf(1.2, length) - 1, len(words) - 1)]
            tags = rng.choice(TAGS, length)
            lines += [f"{word} {tag}" for word, tag in zip(chosen, tags, strict=True)] + [""]
        (path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (path / "words.txt").write_text("\n".join([*sorted(set(words)), "$UNK$", "$NUM$"]))
    (path / "tags.txt").write_text("\n".join(TAGS))
    (path / "chars.txt").write_text("\n".join("abcdefghijklmnopqrstuvwxyz"))


def translations(path: Path, rows: int | None) -> None:
    """IWSLT in pieces of words: training and evaluation in two languages, and the vocabulary."""
    pieces = path / "segmented"
    pieces.mkdir(parents=True, exist_ok=True)
    (path / "prepro").mkdir(exist_ok=True)
    rng = np.random.default_rng(44)
    words = np.array(sorted(set(_words(rng, 30_000))))
    reserved = ("<pad>", "<unk>", "<s>", "</s>")
    (pieces / "bpe.vocab").write_text("\n".join(f"{word}\t0" for word in (*reserved, *words)))
    for name, count in (("train", rows or 196_884), ("eval", 256)):
        for language in ("de", "en"):
            lines = [
                " ".join(words[np.minimum(rng.zipf(1.2, n) - 1, len(words) - 1)])
                for n in rng.integers(5, 45, count)
            ]
            (pieces / f"{name}.{language}.bpe").write_text("\n".join(lines) + "\n")
            (path / "prepro" / f"{name}.{language}").write_text("\n".join(lines) + "\n")


def segmented(path: Path, rows: int | None) -> None:
    """Pascal VOC: JPEG photographs of 500 x 375, PNG masks of their classes, and train.txt."""
    from PIL import Image

    rng = np.random.default_rng(45)
    lines = []
    for folder in ("JPEGImages", "Masks"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    for i in range(rows or 300):
        _photograph(rng, 500, 375).save(path / "JPEGImages" / f"{i:06}.jpg", quality=90)
        mask = np.zeros((375, 500), np.uint8)
        for left, top, right, bottom, label in _boxes(rng, 500, 375):
            mask[top:bottom, left:right] = label + 1
        Image.fromarray(mask).save(path / "Masks" / f"{i:06}.png")
        lines.append(f"/JPEGImages/{i:06}.jpg /Masks/{i:06}.png")
    (path / "train.txt").write_text("\n".join(lines) + "\n")


def boxed(path: Path, rows: int | None) -> None:
    """JPEG photographs of 500 x 375, and the boxes of their objects in train.txt beside them."""
    rng = np.random.default_rng(46)
    path.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(rows or 300):
        _photograph(rng, 500, 375).save(path / f"{i:06}.jpg", quality=90)
        boxes = " ".join(",".join(map(str, row)) for row in _boxes(rng, 500, 375))
        lines.append(f"{path.name}/{i:06}.jpg {boxes}")
    (path.parent / "train.txt").write_text("\n".join(lines) + "\n")


def indexed(path: Path, rows: int | None) -> None:
    """JPEG photographs of 500 x 375, and train.txt and val.txt: number, path, size and boxes."""
    rng = np.random.default_rng(47)
    path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", rows or 300), ("val", 20)):
        lines = []
        for i in range(count):
            _photograph(rng, 500, 375).save(path / f"{part}{i:06}.jpg", quality=90)
            boxes = [(row[4], *row[:4]) for row in _boxes(rng, 500, 375)]
            words = " ".join(" ".join(map(str, row)) for row in boxes)
            lines.append(f"{i} ./data/my_data/{part}{i:06}.jpg 500 375 {words}")
        (path / f"{part}.txt").write_text("\n".join(lines) + "\n")


def photos(path: Path, rows: int | None) -> None:
    """JPEG photographs of 480 x 320 in train and 8 in test."""
    rng = np.random.default_rng(48)
    for part, count in (("train", rows or 291), ("test", 8)):
        (path / part).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            _photograph(rng, 480, 320).save(path / part / f"{i:05}.jpg", quality=90)


def pets(path: Path, rows: int | None) -> None:
    """JPEG photographs of 500 x 375 whose names begin with one of 37 breeds."""
    rng = np.random.default_rng(54)
    path.mkdir(parents=True, exist_ok=True)
    for i in range(rows or 7390):
        _photograph(rng, 500, 375).save(path / f"Breed{i % 37}_{i}.jpg", quality=90)


def flowers(path: Path, rows: int | None) -> None:
    """JPEG photographs of 320 x 240 in folders of five classes, in train, valid and test."""
    rng = np.random.default_rng(49)
    for part, count in (("train", rows or 1000), ("valid", 40), ("test", 10)):
        for i in range(count):
            folder = path / part / f"class{i % 5}"
            folder.mkdir(parents=True, exist_ok=True)
            _photograph(rng, 320, 240).save(folder / f"{i:05}.jpg", quality=90)


def faces(path: Path, rows: int | None) -> None:
    """fer2013.csv: emotion, the pixels of 48 x 48 as words, and the usage."""
    rng = np.random.default_rng(50)
    lines = ["emotion,pixels,Usage"]
    for i in range(rows or 28_709):
        pixels = " ".join(map(str, rng.integers(0, 256, 48 * 48)))
        lines.append(f"{i % 7},{pixels},Training")
    path.write_text("\n".join(lines) + "\n")


def features(path: Path, rows: int | None) -> None:
    """UCF101 after Inception: 2,048 features of 40 frames a video, and data_file.csv."""
    rng = np.random.default_rng(51)
    for folder in ("sequences", "logs", "checkpoints"):
        (path / folder).mkdir(parents=True, exist_ok=True)
        (path / folder / ".keep").touch()
    lines = []
    for i in range(rows or 1000):
        part, name = "train" if i % 4 else "test", f"v_Class{i % 101:03}_g{i:05}"
        values = rng.random((40, 2048), np.float32)
        np.save(path / "sequences" / f"{name}-40-features.npy", values)
        lines.append(f"{part},Class{i % 101:03},{name},120")
    (path / "data_file.csv").write_text("\n".join(lines) + "\n")


def records(path: Path, rows: int | None) -> None:
    """train.tfrecord and val.tfrecord of photographs with boxes, in the folder."""
    import io

    import tensorflow as tf

    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(52)
    for part, count in (("train", rows or 400), ("val", 16)):
        with tf.io.TFRecordWriter(str(path / f"{part}.tfrecord")) as writer:
            for _ in range(count):
                encoded = io.BytesIO()
                _photograph(rng, 500, 375).save(encoded, "JPEG", quality=90)
                boxes = _boxes(rng, 500, 375)
                writer.write(_example(tf, encoded.getvalue(), boxes / (500, 375, 500, 375, 1)))


def _example(tf: Any, encoded: bytes, boxes: Any) -> bytes:
    corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), boxes.T, strict=False))
    labels = [b"person"] * len(boxes)
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/object/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=labels)),
    }
    for name, values in corners.items():
        floats = tf.train.FloatList(value=values)
        feature[f"image/object/bbox/{name}"] = tf.train.Feature(float_list=floats)
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return bytes(example.SerializeToString())


def ratings_in_order(path: Path, rows: int | None) -> None:
    """A text of user and film a line, in the order of time: 6,040 users of 3,416 films."""
    rng = np.random.default_rng(53)
    lines = []
    for user in range(1, (rows or 6040) + 1):
        count = int(np.clip(rng.lognormal(4.6, 0.9), 18, 2000))
        lines += [f"{user} {film}" for film in rng.integers(1, 3417, count)]
    path.write_text("\n".join(lines) + "\n")


WRITERS = {
    "batches": batches,
    "boxed": boxed,
    "clouds": clouds,
    "faces": faces,
    "features": features,
    "flowers": flowers,
    "indexed": indexed,
    "pets": pets,
    "photos": photos,
    "ratings_in_order": ratings_in_order,
    "records": records,
    "segmented": segmented,
    "sentences": sentences,
    "translations": translations,
}
