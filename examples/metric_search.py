"""Search in the images of the shop for the items in the street, for metric_learning.py."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from metric_feed import in_order
from metric_images import SHOP, STREET
from metric_model import unit

NEAREST = 7  # neighbours that are shown, or fewer: all of the smallest classes
SHOWN = 8  # queries of a picture


@dataclass(frozen=True)
class FoundItem:
    """A query in the street: its pixels, the nearest images of the shop with whether they are
    right, and the nearest right one with its rank from 1."""

    pixels: np.ndarray
    nearest: list
    answer: np.ndarray
    rank: int


def search(model, test, args):
    """Search the images of the shop for the others, taken in the shop and in the street.

    Return the recall by where the queries are taken, some queries in the street, and some of those
    whose shown neighbours are all wrong.
    """
    domain = np.array(test.street)
    gallery, queries = (test.chosen(np.flatnonzero(domain == part)) for part in (False, True))
    known, recall = embedded(model, gallery.seen(SHOP), args), {}
    for look, where in ((SHOP, "shop to shop"), (STREET, "street to shop")):
        found = embedded(model, queries.seen(look), args)
        nearest, answers, ranks = ranked(found, known, queries=queries, gallery=gallery)
        recall[where] = [float((ranks <= count).mean()) for count in (1, 5)]
        print(
            f"{where}: {len(found)} queries in {len(known)} images, recall@1 "
            f"{recall[where][0]:.3f}, recall@5 {recall[where][1]:.3f}"
        )
    sizes = Counter(gallery.names)
    shown = np.array([min(NEAREST, sizes[name]) for name in queries.names])
    order = np.random.default_rng(args.seed).permutation(len(queries))
    some, missed = order[:SHOWN].tolist(), order[(ranks > shown)[order]][:SHOWN].tolist()
    pixels = chosen_pixels(queries.seen(STREET), {*some, *missed}, args)

    def item(n):
        near = [(gallery.plain(m), gallery.names[m] == queries.names[n]) for m in nearest[n]]
        return FoundItem(pixels[n], near[: shown[n]], gallery.plain(answers[n]), int(ranks[n]))

    return recall, [item(n) for n in some], [item(n) for n in missed]


def ranked(found, known, *, queries, gallery):
    """Return, for each query, the nearest images of the gallery, its nearest right one, and the
    rank of that from 1."""
    names, parts = np.array(gallery.names), []
    pieces = len(found) // 1000 + 1
    for part, wanted in zip(
        np.array_split(found, pieces), np.array_split(queries.names, pieces), strict=True
    ):
        products = part @ known.T
        answers = np.where(wanted[:, None] == names, products, -np.inf).argmax(axis=1)
        reached = np.take_along_axis(products, answers[:, None], axis=1)
        ranks = 1 + (products > reached).sum(axis=1)
        parts.append((np.argsort(-products, axis=1)[:, :NEAREST], answers, ranks))
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def embedded(model, images, args):
    """Return the embeddings of all images in order, each of length 1."""
    batches = in_order(images, args)
    return np.concatenate([unit(model(batch, training=False)) for _, batch in batches])


def chosen_pixels(images, wanted, args):
    """Return the pixels of some images by their number, rendered as for `embedded`."""
    return {
        number: batch[number - first].copy()
        for first, batch in in_order(images, args)
        for number in wanted
        if first <= number < first + len(batch)
    }
