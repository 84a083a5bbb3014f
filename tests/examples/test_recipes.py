"""Every block of docs/recipes.md runs as a script of its own with the real library, on data made
here."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "recipes.md").read_text()
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS: dict[str, list[str]] = {
    title: BLOCK.findall(body) for title, body in SECTION.findall(TEXT)
}


@pytest.fixture(autouse=True)
def where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def run(title: str, *checks: str) -> None:
    """Run each block of a section as a script, followed by its check with the names of the block.

    Nothing of another block is there.
    """
    strict = "import warnings, fastfeed\nwarnings.simplefilter('error', fastfeed.FeedWarning)"
    for block, check in zip(SECTIONS[title], checks, strict=True):
        Path("recipe.py").write_text("\n".join((strict, block, check, "print('checked')")))
        paths = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, "recipe.py"],
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, **paths},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("checked\n")


def test_every_block_is_run_by_a_test() -> None:
    source = Path(__file__).read_text()
    for title, blocks in SECTIONS.items():
        assert not blocks or re.search(rf'run\(\s*"{re.escape(title)}",', source), title


def test_arrays() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("train.h5", "w") as file:
        file["images"], file["labels"] = np.zeros((70, 4, 4)), np.arange(70)
    run(
        "Arrays",
        "assert batch['image'].shape == (104, 28, 28)",
        "assert lengths.dtype == 'int64' and numbers.shape == (1,)",
        "assert labels.shape == (6,)",
    )


def test_image_folder() -> None:
    cv2 = pytest.importorskip("cv2")
    for number in range(6):
        file = Path("photos", "cat" if number % 2 else "dog", f"{number}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(file), np.full((90, 80, 3), 40 * number, np.uint8))
    run("Image folder", "assert images.shape == (2, 64, 64, 3)")


def test_hugging_face() -> None:
    pytest.importorskip("datasets")
    rows = "\n".join(f"review {n},{n % 5}" for n in range(40))
    Path("reviews.csv").write_text(f"text,stars\n{rows}\n")
    check = "assert batch['text'].dtype.kind == 'U' and batch['stars'].dtype == 'int64'"
    run("Hugging Face datasets", check, check)


def test_webdataset() -> None:
    pytest.importorskip("webdataset")
    cv2 = pytest.importorskip("cv2")
    Path("shards").mkdir()
    for shard in range(2):
        with tarfile.open(f"shards/{shard}.tar", "w") as tar:
            for number in range(shard * 9, shard * 9 + 9):
                image = cv2.imencode(".png", np.full((5, 5, 3), number, np.uint8))[1].tobytes()
                for name, content in (("png", image), ("cls", b"%d" % number)):
                    entry = tarfile.TarInfo(f"{number:03}.{name}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    run("WebDataset", "assert (images[:, 2, 2, 0] == labels).all() and images.ndim == 4")


def test_tfrecord() -> None:
    tf = pytest.importorskip("tensorflow")
    with tf.io.TFRecordWriter("train.tfrecord") as writer:
        for number in range(40):
            image = tf.train.BytesList(value=[bytes([number] * 64)])
            label = tf.train.Int64List(value=[number])
            feature = {
                "image": tf.train.Feature(bytes_list=image),
                "label": tf.train.Feature(int64_list=label),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    run("TFRecord", "assert abs(images[:, 0, 0] * 255 - labels).max() < 1e-9")


def test_parquet() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    users = np.arange(900)
    columns = {"user": users, "price": users * 0.5, "country": [f"c{n % 7}" for n in users]}
    parquet.write_table(pyarrow.table(columns), "clicks.parquet", row_group_size=100)
    run("Parquet", "assert [f'c{n % 7}' for n in batch['user']] == batch['country'].tolist()")


UPLOAD = """
import fsspec, numpy
store = fsspec.filesystem("s3")
store.mkdir("training")
for number in range(10):
    store.pipe_file(f"training/records/{number}", numpy.ones(6, numpy.float32).tobytes())
"""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of S3 on this machine."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    serving = server.ThreadedMotoServer(port=port)
    serving.start()
    try:
        yield
    finally:
        serving.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.usefixtures("s3")
def test_s3() -> None:
    Path("upload.py").write_text(UPLOAD)
    subprocess.run([sys.executable, "upload.py"], check=True, timeout=100)
    run("S3 and other remote files", "assert batch.shape == (2, 6)")


def test_video() -> None:
    cv2 = pytest.importorskip("cv2")
    Path("videos").mkdir()
    for number in range(2):
        form = cv2.VideoWriter_fourcc(*"MJPG")
        writer = cv2.VideoWriter(f"videos/{number}.avi", form, 10.0, (32, 24))
        for frame in range(20):
            writer.write(np.full((24, 32, 3), 10 * frame, np.uint8))
        writer.release()
    run("Video", "assert batch.shape == (2, 8, 24, 32, 3)")


def test_text() -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefg"), rng.integers(1, 30))) for _ in range(100)]
    Path("corpus.txt").write_text("\n".join(lines))
    check = "assert sorted(buckets.indices(1, 2, 100)) == list(range(100))"
    run("Text", f"assert mask.sum() == lengths.sum()\n{check}")


def test_audio() -> None:
    wavfile = pytest.importorskip("scipy.io.wavfile")
    Path("audio").mkdir()
    for number in range(5):
        wavfile.write(f"audio/{number}.wav", 800, np.full(2000, number, np.int16))
    run("Audio", "assert batch.shape == (1, 800)")


def test_from_dataloader() -> None:
    pytest.importorskip("torch")
    run("From DataLoader", "assert isinstance(images, torch.Tensor)")


def test_from_generator() -> None:
    pytest.importorskip("tensorflow")
    run("From `from_generator`", "assert images.shape == (32, 3)")


def test_from_pydataset() -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    run("From PyDataset (Keras)", "assert model.optimizer.iterations == 10")
