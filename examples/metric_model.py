"""Network, loss and step of metric_learning.py."""

import keras
import tensorflow as tf

DIMENSIONS = 256
L2 = 0.03  # of the embeddings


def build(name, images):
    """Return a network from (n, side, side, channels) uint8 to embeddings (n, 256)."""
    shape = (images.side, images.side, images.channels)
    inputs = keras.Input(shape, dtype="uint8")
    found = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    if name == "resnet50":
        found = keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=shape, pooling="avg"
        )(found)
    else:
        for filters in (32, 64, 128, 128):
            found = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(found)
            found = keras.layers.BatchNormalization(momentum=0.9)(found)
            found = keras.layers.MaxPooling2D(2)(keras.layers.ReLU()(found))
        found = keras.layers.Flatten()(found)
    # short at first: the products of long random embeddings are large errors
    start = keras.initializers.VarianceScaling(0.02)
    return keras.Model(inputs, keras.layers.Dense(DIMENSIONS, kernel_initializer=start)(found))


def npair_loss(embedded):
    """Return the N-pair loss of embeddings in the order anchor, positive, anchor, positive.

    Each anchor is classified among the positives of all classes of the batch (Sohn, Improved deep
    metric learning with multi-class N-pair loss objective, NIPS 2016). Its L2 term keeps the
    lengths of the embeddings in bounds.
    """
    anchors, positives = embedded[0::2], embedded[1::2]
    logits = tf.matmul(anchors, positives, transpose_b=True)
    right = tf.range(tf.shape(logits)[0])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=right, logits=logits)
    return tf.reduce_mean(losses) + L2 * tf.reduce_mean(tf.reduce_sum(embedded**2, axis=1))


def step_of(model, optimizer, *, pairs=None):
    """Return a function that trains on one batch and returns its loss; with `pairs`, that of its
    first pairs: the loss grows with their number, so it compares with another one of as many."""

    @tf.function(reduce_retracing=True)
    def step(images):
        with tf.GradientTape() as tape:
            embedded = model(images, training=True)
            loss = npair_loss(embedded)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss if pairs is None else npair_loss(embedded[: 2 * pairs])

    return step


def unit(embedded):
    """Return embeddings of length 1: their product is the cosine of their angle."""
    return tf.math.l2_normalize(embedded, axis=1).numpy()
