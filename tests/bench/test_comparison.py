"""The comparison page is what its generator writes; its cells have sources, its figures JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import comparison, figures, fill
from bench.comparison import COMPARISON, COSTS, FIGURES, SECTIONS, Contest, Entrant
from bench.results import read

DOCS = COMPARISON.parent
VALUE = re.compile(r"(yes|no)(: .+)?|partly: .+")


def cells() -> list[tuple[str, str, dict[str, Any]]]:
    """The feature, the column and the content of every cell."""
    tables = read(FIGURES / "features.json")["tables"]
    return [
        (row["feature"], column, cell)
        for table in tables
        for row in table["rows"]
        for column, cell in row["cells"].items()
    ]


def has_section(place: str, folder: Path) -> bool:
    """The page exists, and the section if one is named."""
    name, _, anchor = place.partition("#")
    page = folder / name
    if not page.is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    return not anchor or anchor in slugs


def test_the_page_is_what_the_generator_writes() -> None:
    assert COMPARISON.read_text() == comparison.page()


def test_check_fails_for_another_page_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "comparison.md"
    other.write_text("another page")
    monkeypatch.setattr(comparison, "COMPARISON", other)
    monkeypatch.setattr(sys, "argv", ["comparison", "--check"])
    with pytest.raises(SystemExit) as ended:
        comparison.main()
    assert ended.value.code == 1
    assert "python -m bench.comparison" in capsys.readouterr().err
    assert other.read_text() == "another page"

    monkeypatch.setattr(sys, "argv", ["comparison"])
    comparison.main()
    assert other.read_text() == COMPARISON.read_text()
    monkeypatch.setattr(sys, "argv", ["comparison", "--check"])
    comparison.main()


def test_every_cell_has_a_source() -> None:
    for feature, column, cell in cells():
        where = feature, column
        if cell["value"] == "not found":
            assert cell["source"] is None, where
        else:
            assert VALUE.fullmatch(cell["value"]), where
            assert len(cell["value"]) <= 100, where
            assert column == "fastfeed" or cell["source"].startswith("https://"), where


def test_every_row_of_a_table_has_the_same_columns() -> None:
    for table in read(FIGURES / "features.json")["tables"]:
        assert len({tuple(row["cells"]) for row in table["rows"]}) == 1


def test_the_sources_of_fastfeed_are_sections_of_its_documentation() -> None:
    own = [cell["source"] for _, column, cell in cells() if column == "fastfeed"]
    assert own
    assert not [source for source in own if not has_section(source, DOCS)]


def test_every_relative_link_of_the_page_leads_somewhere() -> None:
    text = COMPARISON.read_text()
    places = re.findall(r"^\[.+\]: (\S+)$|\]\((\S+?)\)", text, re.MULTILINE)
    links = {first or second for first, second in places}
    relative = {place for place in links if not place.startswith("https://")}
    assert len(relative) > len(set(SECTIONS.values()))
    assert not [place for place in relative if not is_there(place)]


def is_there(place: str) -> bool:
    """Files that are not pages have no sections."""
    place = COMPARISON.name + place if place.startswith("#") else place
    return has_section(place, DOCS) if ".md" in place else (DOCS / place).is_file()


def test_every_label_of_the_page_has_an_address() -> None:
    text = COMPARISON.read_text()
    used = set(re.findall(r"\[(?:yes|no|partly)\]\[(\w+)\]", text)) | {
        s for s, _ in SECTIONS.values()
    }
    assert used == set(re.findall(r"^\[(.+)\]: ", text, re.MULTILINE))


def test_every_figure_has_its_json() -> None:
    assert not [kind for kind in SECTIONS if not (FIGURES / f"{kind}.json").exists()]
    found = comparison.documents()
    assert {one.kind for one in comparison.contests(found)} == set(SECTIONS)
    assert comparison.cost_table(found).count("\n") == len(COSTS) + 1


def contest(unit: str, ours: tuple[float, ...], other: tuple[float, ...]) -> Contest:
    return Contest("transport", "what", unit, 1, Entrant("fastfeed", ours), Entrant("torch", other))


@pytest.mark.parametrize(
    ("one", "factor", "apart"),
    [
        pytest.param(contest("GB/s", (4, 6), (2, 3)), 2, True, id="more-is-better"),
        pytest.param(contest("s", (4, 6), (2, 3)), 0.5, True, id="less-is-better"),
        pytest.param(contest("GB/s", (2, 8), (2, 3)), 2, False, id="overlap"),
        pytest.param(contest("GB/s", (5,), (2, 3)), 2, False, id="one-run"),
    ],
)
def test_a_contest(one: Contest, factor: float, apart: bool) -> None:
    assert one.factor == factor
    assert one.apart is apart


def row(peer: str, workers: int, *values: float, unit: str = "GB/s") -> dict[str, Any]:
    return {
        "table": f"1 KB, workers: {workers}",
        "peer": peer,
        "workers": workers,
        "unit": unit,
        "values": list(values),
    }


def test_the_best_of_fastfeed_meets_the_best_of_the_others() -> None:
    rows = [row("fastfeed", 2, 1, 2), row("fastfeed, yield", 2, 5, 6), row("torch", 2, 3, 4)]
    rows += [row("grain", 2), row("spdl", 2, 1, 1), row("bare ring", 2, 9, 9)]
    (one,) = comparison.of_rows("transport", rows)
    assert (one.ours.name, one.other.name, one.what) == ("fastfeed, yield", "torch", "1 KB")

    less = [{**each, "unit": "s"} for each in rows]
    (one,) = comparison.of_rows("transport", less)
    assert (one.ours.name, one.other.name) == ("fastfeed", "spdl")


def test_a_table_is_shown_for_the_least_and_the_most_workers() -> None:
    rows = [
        {**row(peer, n, n, n), "table": "start"}
        for n in (1, 2, 8)
        for peer in ("fastfeed", "torch")
    ]
    assert [one.workers for one in comparison.of_rows("startup", rows)] == [1, 8]


def test_where_no_other_library_was_measured_there_is_no_contest() -> None:
    rows = [{**row("runner.dataset()", 0, 1, 2), "table": "Handing over 100 KB"}]
    assert not list(comparison.of_rows("sinks", rows))
    other = {**row("from_generator", 0, 3, 4), "table": "Handing over 100 KB"}
    assert len(list(comparison.of_rows("sinks", [*rows, other]))) == 1

    rates = {"fastfeed, arrays": [1.0, 2.0]}
    assert not list(comparison.of_arrays(rates))
    rates["DataLoader of a TensorDataset"] = [3.0, 4.0]
    assert len(list(comparison.of_arrays(rates))) == 1


def training(form: str, ours: str, *seconds: float, reached: bool = True) -> dict[str, Any]:
    about = {"reached": reached, "steps": 100, "steps_per_s": 5.0}
    runs = [{"seconds": one, **about} for one in seconds]
    return {"training": "tokens", "form": form, "ours": ours, "runs": runs}


def test_a_training_compares_both_forms_with_the_best_other_one() -> None:
    rows = [
        training("plain", "", 40, 42),
        training("Grain", "", 20, 22),
        training("fast", "", 1, 1, reached=False),
        training("two", "fixed", 21, 23),
        training("auto", "auto", 31, 33),
    ]
    found = comparison.of_training("texts", rows)
    assert {one.other.name for one in found.values()} == {"Grain"}
    assert [comparison.of_other(found[ours]) for ours in ("fixed", "auto")] == ["1.05", "1.52"]
    assert [found[ours].apart for ours in ("fixed", "auto")] == [False, True]
    assert not comparison.of_training("texts", rows[2:])

    document = {"trainings": {"tokens": {"title": "texts"}}, "rows": [*rows, {**rows[0]}]}
    losses = comparison.training_losses(document)
    assert (losses["all"], losses["slower"], losses["apart"]) == (2, 2, 1)
    assert losses["table"].split("\n")[2:] == [
        "| texts | auto: 32 (31 to 33) | Grain: 21 (20 to 22) | 1.52 | 1.52 |",
        "| texts | two: 22 (21 to 23) | Grain: 21 (20 to 22) | 1.05, ranges overlap | "
        "1.05, ranges overlap |",
    ]


def test_the_losses_of_fastfeed_stand_first() -> None:
    found = comparison.documents()
    first, _, _ = comparison.page().partition("## Where fastfeed is faster")
    assert comparison.training_losses(found[comparison.TRAININGS])["table"] in first
    losses = comparison.profiler_losses(found[comparison.PROFILERS])
    assert losses in " ".join(first.split())
    photos = [one for one in comparison.contests(found) if one.kind == "photos"]
    assert ("fastfeed, augment in threads", "spdl") in {(c.ours.name, c.other.name) for c in photos}


def test_the_shares_of_a_call_are_those_of_tensorflow_and_the_rest() -> None:
    medians = {"runner.dataset()": 150.0, comparison.EMPTY: 100.0, "fastfeed": 20.0}
    rows = [
        {"table": "Handing over 100 KB", "peer": name, "values": [value]}
        for name, value in medians.items()
    ]
    assert comparison.call_shares({"rows": rows}) == {
        "whole": "150",
        "call": "100 µs (67 %)",
        "own": "50 µs (33 %)",
        "loop": "20 µs",
    }


def test_all_tables_and_pictures_follow_from_the_json_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    places = [(comparison, "COMPARISON"), (fill, "PAGE"), (figures.trainings, "PAGE")]
    places += [(figures, "README"), (figures.tutorial, "PAGE")]
    copies: dict[Path, Path] = {}
    for number, (module, name) in enumerate(places):
        place: Path = getattr(module, name)
        copies[place] = tmp_path / str(number)
        copies[place].write_text(place.read_text())
        monkeypatch.setattr(module, name, copies[place])
    for place in figures.TABLE_PAGES:
        copies.setdefault(place, tmp_path / place.name).write_text(place.read_text())
    monkeypatch.setattr(figures, "TABLE_PAGES", [copies[one] for one in figures.TABLE_PAGES])
    monkeypatch.setattr(
        figures.report, "plot", lambda document, folder: drawn.append(document["kind"])
    )
    figures.main()
    assert drawn == sorted(picture.stem for picture in FIGURES.glob("*.png"))
    for place, copy in copies.items():
        assert copy.read_text() == place.read_text(), place
    assert json.loads((FIGURES / "features.json").read_text())["kind"] == comparison.FEATURES
