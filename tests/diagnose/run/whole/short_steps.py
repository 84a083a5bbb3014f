"""Rows are made for milliseconds, and a step takes next to nothing."""


def make(row: int) -> list[int]:
    return [row * n % 7 for n in range(20_000)]


def train_step(weight: float, row: list[int]) -> float:
    return weight + 0.1 * row[0]


def main() -> None:
    weight = 0.0
    for number in range(1_000_000):
        row = make(number)
        weight = train_step(weight, row)


main()
