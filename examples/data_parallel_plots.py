"""Pictures of the comparisons of data_parallel.py."""

from __future__ import annotations

from typing import Any

COLOURS = ("tab:gray", "tab:blue", "tab:red", "tab:green")


def plot(figures: dict[str, Any], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure((6.4, 3.8), layout="constrained")
    if figures["study"] == "slow":
        draw_waits(figure, figures)
    else:
        draw_accuracies(figure.subplots(), figures["accuracies"])
    figure.savefig(path, dpi=120)


def draw_accuracies(axes: Any, found: dict[str, list[list[float]]]) -> None:
    """Draw a line for each seed, with one colour for each case."""
    for (name, histories), colour in zip(found.items(), COLOURS, strict=False):
        for turn, history in enumerate(histories):
            label = name if not turn else None
            axes.plot(range(1, len(history) + 1), history, ".-", color=colour, label=label)
    axes.set(xlabel="epoch", ylabel="test accuracy", title="Each line is one seed")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def draw_waits(figure: Any, figures: dict[str, Any]) -> None:
    """Draw the wait of each rank in each step, without and with the slow rank."""
    parts = figure.subplots(1, len(figures["runs"]), sharey=True)
    most = max(max(waits) for found in figures["runs"] for waits in found["waits"])
    for axes, found in zip(parts, figures["runs"], strict=True):
        for number, (work, waits) in enumerate(zip(found["work_ms"], found["waits"], strict=True)):
            style = {"marker": "ox+*"[number % 4], "linestyle": "", "markersize": 4}
            label = f"rank {number}: {work:.0f} ms of work"
            axes.plot([1e3 * wait for wait in waits], label=label, **style)
        # above the points is room for the legend
        axes.set(xlabel="step", ylim=(-20 * most, 1400 * most))
        axes.legend(fontsize=8, loc="upper center")
    parts[0].set(ylabel="wait for the other ranks, ms")
