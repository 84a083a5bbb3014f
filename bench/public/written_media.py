"""Files of generated sounds, photographs, volumes, point clouds and series."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "bird")


def _sound(path: Path, rng: Any, seconds: float, rate: int = 16000) -> None:
    import wave

    path.parent.mkdir(parents=True, exist_ok=True)
    t = np.arange(int(seconds * rate)) / rate
    wave_form = 6000 * np.sin(2 * np.pi * rng.uniform(80, 400) * t) + rng.normal(0, 900, len(t))
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(wave_form.astype(np.int16).tobytes())


def _photograph(rng: Any, width: int, height: int) -> Any:
    """Return a PIL image of soft patches and grain, which compresses about as photographs do."""
    from PIL import Image

    small = rng.integers(0, 255, (height // 12, width // 12, 3), np.uint8)
    soft = np.asarray(Image.fromarray(small).resize((width, height)), np.int16)
    grain = rng.normal(0, 6, (height, width, 1)).astype(np.int16)
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


def _mask(rng: Any, width: int, height: int) -> Any:
    from PIL import Image

    pixels = (rng.random((height // 24, width // 24)) < 0.3).astype(np.uint8) * 255
    return Image.fromarray(pixels).resize((width, height), 0)


def _commands(path: Path, rows: int | None) -> None:
    """Speech commands: WAV files of 1 s at 16 kHz, a folder a word; noise of a minute."""
    rng = np.random.default_rng(51)
    for part, count in (("train", rows or 640), ("valid", (rows or 640) // 8)):
        for i in range(count):
            _sound(path / part / WORDS[i % len(WORDS)] / f"{i:05}.wav", rng, 1.0)
    for i in range(3):
        _sound(path / "train" / "_background_noise_" / f"{i}.wav", rng, 60.0)


def _speakers(path: Path, rows: int | None) -> None:
    """TIMIT: sentences of 3 s at 16 kHz; lists of files, and labels of 462 speakers."""
    rng = np.random.default_rng(52)
    names = [f"wav/s{i:05}.wav" for i in range(rows or 600)]
    for name in names:
        _sound(path / name, rng, float(rng.uniform(2, 4)))
    (path / "TIMIT_train.scp").write_text("\n".join(names) + "\n")
    (path / "TIMIT_test.scp").write_text("\n".join(names[::400]) + "\n")
    labels: Any = {name: i % 462 for i, name in enumerate(names)}
    np.save(path / "TIMIT_labels.npy", labels)


def _nuclei(path: Path, rows: int | None) -> None:
    """Nuclei of 2018: PNG files of 96 x 96 in images, and their masks in masks/0."""
    rng = np.random.default_rng(53)
    for part in ("images", "masks/0"):
        (path / part).mkdir(parents=True, exist_ok=True)
    for i in range(rows or 670):
        _photograph(rng, 96, 96).save(path / "images" / f"{i:05}.png")
        _mask(rng, 96, 96).save(path / "masks" / "0" / f"{i:05}.png")


def _salient(path: Path, rows: int | None) -> None:
    """DUTS: JPEG files of 400 x 300 in im_aug, and their masks in gt_aug."""
    rng = np.random.default_rng(54)
    for part in ("im_aug", "gt_aug"):
        (path / part).mkdir(parents=True, exist_ok=True)
    for i in range(rows or 240):
        _photograph(rng, 400, 300).save(path / "im_aug" / f"{i:05}.jpg")
        _mask(rng, 400, 300).save(path / "gt_aug" / f"{i:05}.png")


def _objects(path: Path, rows: int | None) -> None:
    """VOC2007 and VOC2012: JPEG files of 500 x 375, boxes in XML; lists as long as the real."""
    rng = np.random.default_rng(55)
    for year, length in (("2007", 5011), ("2012", 11540)):
        home = path / f"VOC{year}"
        for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (home / part).mkdir(parents=True, exist_ok=True)
        count = (rows or 240) // 2
        for i in range(count):
            _photograph(rng, 500, 375).save(home / "JPEGImages" / f"{i:06}.jpg")
            boxes = "".join(_box(rng) for _ in range(rng.integers(1, 5)))
            text = f"<annotation>{boxes}</annotation>"
            (home / "Annotations" / f"{i:06}.xml").write_text(text)
        names = [f"{i % count:06}" for i in range(length)]
        (home / "ImageSets" / "Main" / "trainval.txt").write_text("\n".join(names) + "\n")


def _box(rng: Any) -> str:
    left, top = rng.integers(1, 300), rng.integers(1, 200)
    right, bottom = left + rng.integers(60, 190), top + rng.integers(60, 170)
    return (
        f"<object><name>{rng.choice(['cat', 'dog', 'car'])}</name><difficult>0</difficult>"
        f"<bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
        "</bndbox></object>"
    )


def _pictures(path: Path, rows: int | None) -> None:
    """DIV2K at half its size: PNG files of 1020 x 678 for training, and five for validation."""
    rng = np.random.default_rng(56)
    for part, count in (("DIV2K_train_HR", rows or 64), ("DIV2K_valid_HR", 5)):
        (path / part).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            _photograph(rng, 1020, 678).save(path / part / f"{i:04}.png", compress_level=3)


def _brains(path: Path, rows: int | None) -> None:
    """MRBrainS18: NIfTI volumes of 48 x 240 x 240 and their labels, and a list of the pairs."""
    import nibabel

    rng = np.random.default_rng(57)
    path.mkdir(parents=True, exist_ok=True)
    inside = np.zeros((48, 240, 240), bool)
    inside[4:44, 30:210, 40:200] = True
    lines = []
    for i in range(rows or 7):
        volume = np.where(inside, rng.normal(300, 60, inside.shape), 0).astype(np.int16)
        labels = np.where(inside, rng.integers(0, 2, inside.shape), 0).astype(np.uint8)
        for name, found in (("T1", volume), ("label", labels)):
            nibabel.save(nibabel.Nifti1Image(found, np.eye(4)), path / f"{i}_{name}.nii.gz")
        lines.append(f"{i}_T1.nii.gz {i}_label.nii.gz")
    (path / "train.txt").write_text("\n".join(lines) + "\n")


def _slices(path: Path, rows: int | None) -> None:
    """Synapse: slices of 512 x 512 with labels in NPZ files, and the list of their names."""
    rng = np.random.default_rng(58)
    folder, lists = path / "data" / "Synapse" / "train_npz", path / "lists"
    for one in (folder, lists):
        one.mkdir(parents=True, exist_ok=True)
    names = [f"case{i // 40:04}_slice{i % 40:03}" for i in range(rows or 160)]
    for name in names:
        labels = np.kron(rng.integers(0, 9, (16, 16)), np.ones((32, 32))).astype(np.float32)
        np.savez(folder / name, image=rng.random((512, 512), np.float32), label=labels)
    (lists / "train.txt").write_text("\n".join(names) + "\n")


def _frames(path: Path, rows: int | None) -> None:
    """UCF101: folders of 45 JPEG frames of 171 x 128 a video, in train, val and test."""
    rng = np.random.default_rng(59)
    for part, share in (("train", 1.0), ("val", 0.25), ("test", 0.25)):
        for i in range(int((rows or 160) * share)):
            folder = path / part / f"action{i % 10:02}" / f"v{i:04}"
            folder.mkdir(parents=True, exist_ok=True)
            for j in range(45):
                _photograph(rng, 171, 128).save(folder / f"0000{j}.jpg")


def _shapes(path: Path, rows: int | None) -> None:
    """ModelNet10: 10,000 points with normals in a text a shape, in a folder a class."""
    rng = np.random.default_rng(60)
    names = [f"class{i}" for i in range(10)]
    for part, count in (("train", rows or 160), ("test", (rows or 160) // 4)):
        shapes = [f"{names[i % 10]}_{part}{i:04}" for i in range(count)]
        for shape in shapes:
            folder = path / shape.rpartition("_")[0]
            folder.mkdir(parents=True, exist_ok=True)
            points = rng.normal(size=(10_000, 6))
            np.savetxt(folder / f"{shape}.txt", points, fmt="%.6f", delimiter=",")
        (path / f"modelnet10_{part}.txt").write_text("\n".join(shapes) + "\n")
    (path / "modelnet10_shape_names.txt").write_text("\n".join(names) + "\n")


def _histories(path: Path, rows: int | None) -> None:
    """Pairs of a user and a film of MovieLens, by user: 165 films a user, of 3,416."""
    rng = np.random.default_rng(61)
    users = np.repeat(np.arange((rows or 996_600) // 165) + 1, 165)
    films = rng.integers(1, 3417, len(users))
    pairs = zip(users, films, strict=True)
    path.write_text("\n".join(f"{user} {film}" for user, film in pairs) + "\n")


def _listeners(path: Path, rows: int | None) -> None:
    """LastFM: pairs of 1,892 listeners and 4,489 artists for training and test; friends."""
    rng = np.random.default_rng(62)
    path.mkdir(parents=True, exist_ok=True)
    counts = (("data1", rows or 42_135, 4489), ("test1", 10_533, 4489))
    for name, count, most in (*counts, ("trustnetwork", 25_434, 1892)):
        first = np.concatenate([np.arange(1892), rng.integers(0, 1892, count - 1892)]) + 1
        pairs = np.stack([first, rng.integers(1, most + 1, count), np.ones(count, int)], 1)
        np.savetxt(path / f"{name}.txt", pairs, fmt="%d", delimiter="\t")


def _dialogues(path: Path, rows: int | None) -> None:
    """Pairs of neighbouring sentences, a tab between them, for training and test."""
    rng = np.random.default_rng(63)
    words = np.array([f"w{i}" for i in range(8000)])
    path.mkdir(parents=True, exist_ok=True)
    for name, count in (("corpus", rows or 8000), ("test", (rows or 8000) // 10)):
        lines = ["\t".join(_sentence(rng, words) for _ in range(2)) for _ in range(count)]
        (path / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _sentence(rng: Any, words: Sequence[str]) -> str:
    chosen = np.minimum(rng.zipf(1.2, rng.integers(4, 16)) - 1, len(words) - 1)
    return " ".join(words[i] for i in chosen)


def _transformers(path: Path, rows: int | None) -> None:
    """ETTh1.csv: seven measurements of a transformer, every hour of two years."""
    rng = np.random.default_rng(64)
    count = rows or 17_420
    times = np.datetime64("2016-07-01T00:00:00") + np.arange(count) * np.timedelta64(1, "h")
    values = np.cumsum(rng.normal(size=(count, 7)), 0).round(3)
    lines = [
        f"{str(time).replace('T', ' ')},{','.join(map(str, row))}"
        for time, row in zip(times, values, strict=True)
    ]
    path.write_text("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n" + "\n".join(lines) + "\n")


def _traffic(path: Path, rows: int | None) -> None:
    """METR-LA: windows of 12 times 207 sensors times 2 in NPZ files, and the graph."""
    rng = np.random.default_rng(65)
    path.mkdir(parents=True, exist_ok=True)
    for name, share in (("train", 1.0), ("val", 0.14), ("test", 0.1)):
        shape = (int((rows or 2000) * share), 12, 207, 2)
        np.savez(path / f"{name}.npz", x=rng.random(shape) * 60, y=rng.random(shape) * 60)
    graph = np.where(rng.random((207, 207)) < 0.04, rng.random((207, 207)), 0) + np.eye(207)
    names = [str(i) for i in range(207)]
    adjacency = [names, {name: i for i, name in enumerate(names)}, graph.astype(np.float32)]
    (path / "adj_mx.pkl").write_bytes(pickle.dumps(adjacency))


def _stories(path: Path, rows: int | None) -> None:
    """Shards of a million uint16 tokens."""
    rng = np.random.default_rng(66)
    path.mkdir(parents=True, exist_ok=True)
    for i in range(4):
        rng.integers(0, 512, rows or 1_000_000).astype(np.uint16).tofile(path / f"data{i:02}.bin")


def _package(path: Path, rows: int | None) -> None:
    """An empty file, so that a folder is not hidden by an installed package of its name."""
    path.write_text("")


MEDIA_WRITERS = {
    "package": _package,
    "commands": _commands,
    "speakers": _speakers,
    "nuclei": _nuclei,
    "salient": _salient,
    "objects": _objects,
    "pictures": _pictures,
    "brains": _brains,
    "slices": _slices,
    "frames": _frames,
    "shapes": _shapes,
    "histories": _histories,
    "listeners": _listeners,
    "dialogues": _dialogues,
    "transformers": _transformers,
    "traffic": _traffic,
    "stories": _stories,
}
