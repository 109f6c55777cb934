"""Parts of equal size: of ranges of offsets for tasks, of a limit for partitions. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from tms.spark.source.topics import Split

WeightedRange = tuple[int, int, int]  # offsets from and to, and how much they weigh, 1 at least


def apportioned(weights: Sequence[int], total: int) -> list[int]:
    """`total` in whole parts that are proportional to the weights and together exactly `total`. The
    parts that rounding shortened most get the rest."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [weight * total // whole for weight in weights]
    by_loss = sorted(range(len(weights)), key=lambda i: (-(weights[i] * total % whole), i))
    for i in by_loss[: total - sum(parts)]:
        parts[i] += 1
    return parts


def even_splits(topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int) -> list[Split]:
    """Splits that are about equally long, for ranges of which each offset weighs the same."""
    pieces = {partition: [_even(*range_)] for partition, range_ in ranges.items()}
    return weighted_splits(topic, pieces, at_least)


def weighted_splits(
    topic: str, pieces: Mapping[int, Sequence[WeightedRange]], at_least: int
) -> list[Split]:
    """Splits that weigh about the same: one for each partition that has pieces, and the heavier
    ones divided until there are `at_least`, as far as there are offsets. The pieces of a partition
    ascend; between them nothing is."""
    filled = {
        partition: pieces_
        for partition, pieces_ in sorted(pieces.items())
        if pieces_ and pieces_[0][0] < pieces_[-1][1]
    }
    spare = max(0, at_least - len(filled))
    extra = apportioned([sum(piece[2] for piece in pieces_) for pieces_ in filled.values()], spare)
    return [
        Split(topic, partition, at, to)
        for (partition, pieces_), more in zip(filled.items(), extra, strict=True)
        for at, to in pairwise(_cuts(pieces_, 1 + more))
    ]


def cut(splits: Iterable[Split], offsets_max: int | None) -> list[Split]:
    """Splits with the same ranges; a split longer than `offsets_max` is divided evenly."""
    if offsets_max is None:
        return list(splits)
    return [
        split._replace(start=at, stop=to)
        for split in splits
        for at, to in pairwise(
            _cuts([_even(split.start, split.stop)], -((split.start - split.stop) // offsets_max))
        )
    ]


def _even(start: int, stop: int) -> WeightedRange:
    """A range of which each offset weighs the same."""
    return start, stop, stop - start


def _cuts(pieces: Sequence[WeightedRange], parts: int) -> Iterator[int]:
    """The offsets at which pieces are cut into parts of like weight: first, last and between."""
    sums = list(accumulate(weight for _, _, weight in pieces))
    at = pieces[0][0]
    parts = min(parts, pieces[-1][1] - at)
    yield at
    for i in range(1, parts):
        share = sums[-1] * i  # in units of 1 / parts, so that all numbers are whole
        number = bisect_left(sums, -(-share // parts))
        start, stop, weight = pieces[number]
        behind = (stop - start) * (sums[number] * parts - share)
        cut = stop + -behind // (weight * parts)
        if at < cut < pieces[-1][1]:
            at = cut
            yield at
    yield pieces[-1][1]
