"""Pictures of metric_learning.py: queries with their neighbours, and the course of the training."""

from pathlib import Path

from matplotlib.figure import Figure


def draw(history, found, *, missed, folder):
    """Save the pictures."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    draw_training(history, folder / "training.png")
    rows = [[(one.pixels, "black", ""), *neighbours(one)] for one in found]
    title = "left: in the street; then the nearest in the shop, green if right"
    draw_rows(rows, folder / "neighbours.png", title=title)
    names = ["training.png", "neighbours.png", "missed.png"]
    if missed:
        title = "left: in the street; the right answer, and its rank; then the nearest, all wrong"
        rows = [
            [
                (one.pixels, "black", ""),
                (one.answer, "tab:green", f"rank {one.rank}"),
                *neighbours(one),
            ]
            for one in missed
        ]
        draw_rows(rows, folder / names[-1], title=title)
    else:
        (folder / names.pop()).unlink(missing_ok=True)
        print("no query has only wrong neighbours")
    print(f"pictures: {', '.join(str(folder / name) for name in names)}")


def neighbours(item):
    return [(image, "tab:green" if right else "tab:red", "") for image, right in item.nearest]


def draw_rows(rows, path, *, title):
    """Save rows of (image, colour of the frame, caption)."""
    width = max(map(len, rows))
    figure = Figure((width, 1.05 * len(rows) + 0.3), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), width, squeeze=False), rows, strict=True):
        for axis in axes[len(row) :]:
            axis.set_axis_off()
        for axis, (image, colour, caption) in zip(axes, row, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel(caption, fontsize=7, labelpad=1)
            for side in axis.spines.values():
                side.set(color=colour, linewidth=1 if colour == "black" else 4)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=80)


def draw_training(history, path):
    """Save the loss of the training and of held-out classes, and their top-1."""
    figure = Figure((6, 3.5), layout="constrained")
    pairs, training, validation, top1 = (
        [window[name] for window in history] for name in ("pairs", "loss", "held_out_loss", "top1")
    )
    left = figure.subplots()
    left.plot(pairs, training, "o-", color="tab:blue", label="loss, training")
    left.plot(pairs, validation, "o--", color="tab:orange", label="loss, held-out classes")
    left.set(xlabel="pairs", ylabel="loss", ylim=0)
    right = left.twinx()
    right.plot(pairs, top1, "s-", color="tab:green", label="top-1, held-out classes")
    right.set(ylabel="top-1 on held-out classes", ylim=(0, 1))
    right.yaxis.label.set_color("tab:green")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=80)
