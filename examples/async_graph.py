"""The graph of async_sessions.py: variables on the parameter server, gradients, and updates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

SIZES = (784, 100, 10)


class Model(NamedTuple):
    """The variables on the parameter server."""

    layers: list[tuple[Any, Any]]
    version: Any  # updates so far
    applied: Any  # how often each record was

    def variables(self) -> list[Any]:
        return [variable for layer in self.layers for variable in layer]

    def __call__(self, images: Any) -> Any:
        import tensorflow as tf

        values = tf.reshape(tf.cast(images, tf.float32) / 255, (-1, SIZES[0]))
        *hidden, (weights, bias) = self.layers
        for w, b in hidden:
            values = tf.nn.relu(values @ w + b)
        return values @ weights + bias


def shared_model(records: int, cluster: dict[str, list[str]], seed: int, index: int = 0) -> Model:
    """Create the variables, or refer to those of the other workers, which have the same names."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="worker", task_id=index, num_accelerators={}
    )
    strategy = tf1.distribute.experimental.ParameterServerStrategy(resolver)
    with strategy.scope():  # puts every variable on a parameter server
        layers = []
        for number, (rows, columns) in enumerate(pairwise(SIZES)):
            first = tf1.glorot_uniform_initializer(seed + number)
            weights = tf1.get_variable(f"w{number}", (rows, columns), initializer=first)
            bias = tf1.get_variable(f"b{number}", columns, initializer=tf1.zeros_initializer())
            layers.append((weights, bias))
        zeros = tf1.zeros_initializer()
        version = tf1.get_variable("version", (), tf.int64, zeros, trainable=False)
        applied = tf1.get_variable("applied", records, tf.int32, zeros, trainable=False)
    return Model(layers, version, applied)


def reading(model: Model, images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """Return the version of the parameters that are read, and their gradients at a batch."""
    import tensorflow as tf

    # in this order: a batch, the version, the parameters
    with tf.control_dependencies([images]), tf.control_dependencies([read := model.version + 0]):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
    return read, tf.gradients(tf.reduce_mean(losses), model.variables())


def updating(model: Model, rate: float) -> tuple[Any, list[Any]]:
    """Return the version after an update, and the placeholders of it: the gradients, and the
    numbers of the records."""
    import tensorflow as tf

    tf1, variables = tf.compat.v1, model.variables()
    places = [tf1.placeholder(tf.float32, v.shape) for v in variables]
    trained = tf1.placeholder(tf.int64, (None,))
    optimizer = tf1.train.GradientDescentOptimizer(rate)
    applied = [
        optimizer.apply_gradients(zip(places, variables, strict=True)),
        tf1.scatter_add(model.applied, trained, tf.ones_like(trained, tf.int32)),
    ]
    with tf.control_dependencies(applied):
        return tf1.assign_add(model.version, 1), [*places, trained]
