"""The networks of benchmarks and examples in Keras."""

from __future__ import annotations

from typing import Any

from fastfeed.errors import MissingExtra

# The small network, here and in `cnn_session`.
FILTERS = (4, 8, 8, 8)
HIDDEN = 64
# after 300 steps of MNIST 51-56 % of the test set are right; with Keras's 0.99, which lags, 11-47 %
MOMENTUM = 0.9


def model(
    input_shape: tuple[int, ...],
    classes: int = 10,
    *,
    dtype: str = "uint8",
    learning_rate: float = 1e-4,
) -> Any:
    """Return a compiled keras.Model from images of `input_shape` (H, W) or (H, W, C), H and W at
    least 8, to class scores.

    uint8 becomes 0..1 on the device; every other `dtype` keeps its values. Labels (B,) are
    integers; the scores are logits (B, classes) float32; the metric is called "accuracy".
    """
    keras = imported_keras()
    pixels = keras.Input(input_shape, dtype=dtype)
    x = keras.layers.Rescaling(1 / 255 if dtype == "uint8" else 1.0)(pixels)
    x = x if len(input_shape) == 3 else keras.layers.Reshape((*input_shape, 1))(x)
    for filters in FILTERS:
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=MOMENTUM)(x))
        x = x if min(x.shape[1:3]) < 4 else keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dense(HIDDEN, activation="relu")(keras.layers.Flatten()(x))
    network = keras.Model(pixels, keras.layers.Dense(classes)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(learning_rate), loss, metrics=["accuracy"])
    return network


def resnet(input_shape: tuple[int, ...], classes: int = 1000) -> Any:
    """Return a compiled ResNet-50 (He et al., 2015) from uint8 images (H, W, 3) to class scores,
    with random weights."""
    keras = imported_keras()
    pixels = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(pixels)
    network = keras.applications.ResNet50(weights=None, classes=classes, classifier_activation=None)
    model = keras.Model(pixels, network(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def imported_keras() -> Any:
    """Return Keras. Raise MissingExtra without it."""
    try:
        import keras
    except ImportError as error:
        raise MissingExtra("keras", "tensorflow-cpu") from error
    return keras
