"""Files of generated data where a script looks for its own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.public import written_sets
from bench.public.written_media import MEDIA_WRITERS

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(kind: str, home: Path, rows: int | None) -> None:
    """Write the data `kind` (KIND:PATH) into the script's folder."""
    name, _, place = kind.partition(":")
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[name](path, rows)


def _vocabulary(rng: Any, count: int) -> list[str]:
    return ["".join(rng.choice(list(LETTERS), n)) for n in rng.integers(2, 10, count)]


def _text(path: Path, rows: int | None) -> None:
    """Words of a Zipf distribution, 12 a line."""
    rng = np.random.default_rng(4)
    words = np.array(_vocabulary(rng, 5000))
    chosen = words[np.minimum(rng.zipf(1.2, (rows or 20000, 12)) - 1, 4999)]
    path.write_text("\n".join(" ".join(line) for line in chosen) + "\n")


def _names(path: Path, rows: int | None) -> None:
    """One lower-case name a line."""
    rng = np.random.default_rng(5)
    path.write_text("\n".join(_vocabulary(rng, rows or 32000)) + "\n")


def _corpus(path: Path, rows: int | None) -> None:
    """train.txt, valid.txt and test.txt in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    for name, share in (("train", 1.0), ("valid", 0.1), ("test", 0.1)):
        _text(path / f"{name}.txt", int((rows or 20000) * share))


def _reviews(path: Path, rows: int | None) -> None:
    """rt-polarity.pos and .neg of short sentences, in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(6)
    words = np.array(_vocabulary(rng, 8000))
    for name in ("rt-polarity.pos", "rt-polarity.neg"):
        lines = [
            " ".join(words[np.minimum(rng.zipf(1.2, n) - 1, 7999)])
            for n in rng.integers(5, 50, rows or 5331)
        ]
        (path / name).write_text("\n".join(lines) + "\n")


def _photographs(path: Path, rows: int | None) -> None:
    """JPEG files of 256 x 256 in two folders, train and val with two classes each."""
    from PIL import Image

    rng = np.random.default_rng(7)
    for part, count in (("train", rows or 400), ("val", (rows or 400) // 5)):
        for label in ("a", "b"):
            folder = path / part / label
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count // 2):
                small = rng.integers(0, 255, (32, 32, 3), np.uint8)
                Image.fromarray(small).resize((256, 256)).save(folder / f"{i:05}.jpg")


def _waves(path: Path, rows: int | None) -> None:
    """torch.save of sines, 100 of 1,000 values."""
    import torch

    rng = np.random.default_rng(8)
    x = np.arange(1000) + rng.integers(-80, 80, 100).reshape(100, 1)
    torch.save(np.sin(x / 20.0).astype("float64"), path)


def _cora(path: Path, rows: int | None) -> None:
    """cora.content and cora.cites in the folder: 2,708 papers of 1,433 words."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(9)
    words = rng.random((2708, 1433)) < 0.0127
    labels = rng.integers(0, 7, 2708)
    with (path / "cora.content").open("w") as file:
        for i, row in enumerate(words.astype(int)):
            file.write("\t".join([str(i), *map(str, row), f"class{labels[i]}"]) + "\n")
    pairs = rng.integers(0, 2708, (5429, 2))
    (path / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in pairs) + "\n")


def _idx(path: Path, rows: int | None) -> None:
    """The four gzipped files of MNIST, in the folder."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "standins"))
    try:
        made = importlib.import_module("made")
    finally:
        del sys.path[0]
    path.mkdir(parents=True, exist_ok=True)
    made.keras_file("train-images-idx3-ubyte.gz", {"data": str(path), "rows": rows})


def _ratings(path: Path, rows: int | None) -> None:
    """ratings.csv and movies.csv of 610 users and 9,000 films, in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(12)
    count = rows or 100_000
    users, films = rng.integers(1, 611, count), rng.integers(1, 9001, count)
    stars = rng.integers(1, 11, count) / 2
    lines = [f"{u},{f},{s},0" for u, f, s in zip(users, films, stars, strict=True)]
    (path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines) + "\n")


def _series(path: Path, rows: int | None) -> None:
    """FordA_TRAIN.tsv and FordA_TEST.tsv: a label and 500 values a line, in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(13)
    for name, count in (("TRAIN", rows or 3601), ("TEST", 300)):
        values = np.concatenate([rng.choice([-1, 1], (count, 1)), rng.normal(size=(count, 500))], 1)
        np.savetxt(path / f"FordA_{name}.tsv", values, fmt="%.5f", delimiter="\t")


def _cats(path: Path, rows: int | None) -> None:
    """PetImages: JPEG files of about 400 x 350 in the folders Cat and Dog."""
    from PIL import Image

    rng = np.random.default_rng(14)
    for label in ("Cat", "Dog"):
        (path / label).mkdir(parents=True, exist_ok=True)
        for i in range((rows or 640) // 2):
            small = rng.integers(0, 255, (40, 44, 3), np.uint8)
            Image.fromarray(small).resize((400, 360)).save(path / label / f"{i}.jpg")


def _reviews_folder(path: Path, rows: int | None) -> None:
    """aclImdb: a text file a review, in train/pos, train/neg, test/pos and test/neg."""
    rng = np.random.default_rng(15)
    words = np.array(_vocabulary(rng, 20000))
    for part, share in (("train", 1.0), ("test", 0.2)):
        for label in ("pos", "neg"):
            folder = path / part / label
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(int((rows or 3200) * share / 2)):
                length = int(np.clip(rng.lognormal(5.2, 0.6), 20, 1500))
                text = " ".join(words[np.minimum(rng.zipf(1.2, length) - 1, 19999)])
                (folder / f"{i}_1.txt").write_text(text)


def _heart(path: Path, rows: int | None) -> None:
    """heart.csv: 13 columns of numbers and one of words, and the target."""
    rng = np.random.default_rng(16)
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"
    tall = ("fixed", "normal", "reversible")
    lines = [
        ",".join(map(str, [
            rng.integers(30, 75), rng.integers(0, 2), rng.integers(0, 5), rng.integers(95, 190),
            rng.integers(150, 400), rng.integers(0, 2), rng.integers(0, 3), rng.integers(80, 200),
            rng.integers(0, 2), round(float(rng.random() * 5), 1), rng.integers(1, 4),
            rng.integers(0, 4), tall[rng.integers(0, 3)], rng.integers(0, 2),
        ]))
        for _ in range(rows or 303)
    ]  # fmt: skip
    path.write_text(names + "\n" + "\n".join(lines) + "\n")


def _tokens(path: Path, rows: int | None) -> None:
    """train.bin and val.bin of uint16 tokens, in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(17)
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        rng.integers(0, 65, count).astype(np.uint16).tofile(path / f"{name}.bin")


def _sounds(path: Path, rows: int | None) -> None:
    """WAV files of 4 s at 44.1 kHz in stereo, and the annotations of UrbanSound8K."""
    import wave

    rng = np.random.default_rng(18)
    lines = ["slice_file_name,fsID,start,end,salience,fold,classID,class"]
    for i in range(rows or 256):
        folder = path / "audio" / f"fold{i % 10 + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setparams((2, 2, 44100, 0, "NONE", ""))
            file.writeframes(rng.integers(-8000, 8000, 2 * 4 * 44100, np.int16).tobytes())
        lines.append(f"{i}.wav,{i},0,4,1,{i % 10 + 1},{i % 10},x")
    (path / "UrbanSound8K.csv").write_text("\n".join(lines) + "\n")


def _implicit(path: Path, rows: int | None) -> None:
    """ml-1m.train.rating and ml-1m.test.negative of 6,040 users and 3,706 films, in the folder.

    A held-out film and 99 negative ones are there for one user of 165 ratings, as in the real.
    """
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(21)
    count = rows or 994_169
    users, films = rng.integers(0, 6040, count), rng.integers(0, 3706, count)
    users[-1], films[-1] = 6039, 3705
    lines = [f"{u}\t{f}\t5\t0" for u, f in zip(users, films, strict=True)]
    (path / "ml-1m.train.rating").write_text("\n".join(lines) + "\n")
    lines = [
        "\t".join([f"({u},{rng.integers(0, 3706)})", *map(str, rng.integers(0, 3706, 99))])
        for u in rng.integers(0, 6040, count // 165)
    ]
    (path / "ml-1m.test.negative").write_text("\n".join(lines) + "\n")


def _masks(path: Path, rows: int | None) -> None:
    """JPEG files of 480 x 320 in imgs, and PNG files of two values in masks."""
    from PIL import Image

    rng = np.random.default_rng(23)
    for part in ("imgs", "masks"):
        (path / part).mkdir(parents=True, exist_ok=True)
    for i in range(rows or 100):
        small = rng.integers(0, 255, (32, 48, 3), np.uint8)
        Image.fromarray(small).resize((480, 320)).save(path / "imgs" / f"{i:05}.jpg")
        mask = (rng.random((8, 12)) < 0.3).astype(np.uint8) * 255
        Image.fromarray(mask).resize((480, 320), 0).save(path / "masks" / f"{i:05}_mask.png")


def _pickled(path: Path, rows: int | None) -> None:
    """mnist.pkl.gz: pairs of float32 images in [0, 1] and labels for training and two tests."""
    import gzip
    import pickle

    rng = np.random.default_rng(24)
    sets = []
    for count in (rows or 50000, (rows or 50000) // 5, (rows or 50000) // 5):
        x = rng.random((count, 784), np.float32)
        x *= rng.random((count, 784), np.float32) < 0.2
        sets.append((x, rng.integers(0, 10, count)))
    with gzip.open(path, "wb", 1) as file:
        pickle.dump(tuple(sets), file)


def _characters(path: Path, rows: int | None) -> None:
    """Omniglot: folders of 20 PNG files of 28 x 28 a character, 30 characters an alphabet."""
    from PIL import Image

    rng = np.random.default_rng(31)
    for i in range(rows or 1623):
        folder = path / f"alphabet{i // 30:02}" / f"character{i % 30:02}"
        folder.mkdir(parents=True, exist_ok=True)
        for j, pixels in enumerate(rng.random((20, 28, 28)) < 0.9):
            Image.fromarray(pixels.astype(np.uint8) * 255).save(folder / f"{i:04}_{j:02}.png")


def _characters_array(path: Path, rows: int | None) -> None:
    """omniglot.npy: 20 images of 1 x 28 x 28 a character, as floats."""
    rng = np.random.default_rng(32)
    np.save(path, (rng.random((rows or 1623, 20, 1, 28, 28)) < 0.9).astype(float))


def _gzipped(path: Path, rows: int | None) -> None:
    """A gzipped text of as many lines as rows."""
    import gzip

    plain = path.with_suffix(".part")
    _text(plain, rows)
    path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    plain.unlink()


def _digits(path: Path, rows: int | None) -> None:
    """The four files of MNIST, not zipped, in the folder."""
    import gzip

    _idx(path, rows)
    for zipped in path.glob("*.gz"):
        zipped.with_suffix("").write_bytes(gzip.decompress(zipped.read_bytes()))
        zipped.unlink()


def _text8(path: Path, rows: int | None) -> None:
    """A zipped file of one line: words of a Zipf distribution over 60,000."""
    import zipfile

    rng = np.random.default_rng(25)
    words = np.array(_vocabulary(rng, 60000))
    chosen = words[np.minimum(rng.zipf(1.2, rows or 1_000_000) - 1, 59999)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("text8", " ".join(chosen))


def _weather(path: Path, rows: int | None) -> None:
    """A zipped table of 14 measurements every ten minutes, in the words of Jena's station."""
    import zipfile

    rng = np.random.default_rng(26)
    names = (
        '"Date Time","p (mbar)","T (degC)","Tpot (K)","Tdew (degC)","rh (%)","VPmax (mbar)",'
        '"VPact (mbar)","VPdef (mbar)","sh (g/kg)","H2OC (mmol/mol)","rho (g/m**3)","wv (m/s)",'
        '"max. wv (m/s)","wd (deg)"'
    )
    count = rows or 420_551
    times = np.datetime64("2009-01-01T00:10:00") + np.arange(count) * np.timedelta64(10, "m")
    values = np.cumsum(rng.normal(size=(count, 14)), 0).round(2)
    lines = [f"{t},{','.join(map(str, row))}" for t, row in zip(times, values, strict=True)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("jena_climate_2009_2016.csv", names + "\n" + "\n".join(lines) + "\n")


_WRITERS = {
    **MEDIA_WRITERS,
    **written_sets.WRITERS,
    "digits": _digits,
    "text8": _text8,
    "weather": _weather,
    "characters": _characters,
    "characters_array": _characters_array,
    "gzipped": _gzipped,
    "implicit": _implicit,
    "masks": _masks,
    "pickled": _pickled,
    "idx": _idx,
    "ratings": _ratings,
    "series": _series,
    "cats": _cats,
    "folders": _reviews_folder,
    "heart": _heart,
    "tokens": _tokens,
    "sounds": _sounds,
    "text": _text,
    "names": _names,
    "corpus": _corpus,
    "reviews": _reviews,
    "photographs": _photographs,
    "waves": _waves,
    "cora": _cora,
}
