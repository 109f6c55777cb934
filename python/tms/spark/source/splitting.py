"""Parts of equal size: of ranges of offsets for tasks, of a limit for partitions. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from tms.spark.source.topics import Split

Piece = tuple[int, int, int]  # offsets from and to, and how much they weigh


def apportioned(weights: Sequence[int], total: int) -> list[int]:
    """`total` in whole parts that are proportional to the weights and together exactly `total`:
    what rounding down leaves goes to those that lost most by it."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [weight * total // whole for weight in weights]
    by_loss = sorted(range(len(weights)), key=lambda i: (-(weights[i] * total % whole), i))
    for i in by_loss[: total - sum(parts)]:
        parts[i] += 1
    return parts


def even_splits(topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int) -> list[Split]:
    """Splits that are about equally long: one for each range that is not empty, and the longer
    ranges divided until there are `at_least`, as far as there are offsets."""
    filled = [(p, start, stop) for p, (start, stop) in sorted(ranges.items()) if start < stop]
    spare = max(0, at_least - len(filled))
    extra = apportioned([stop - start for _, start, stop in filled], spare)
    return [
        Split(topic, partition, at, to)
        for (partition, start, stop), more in zip(filled, extra, strict=True)
        for at, to in _divided(start, stop, 1 + more)
    ]


def weighted_splits(
    topic: str, pieces: Mapping[int, Sequence[Piece]], at_least: int
) -> list[Split]:
    """Splits that weigh about the same: one for each partition that has pieces, and the heavier
    ones divided until there are `at_least`, as far as there are offsets. The pieces of a partition
    ascend; between them nothing is."""
    filled = {partition: pieces_ for partition, pieces_ in sorted(pieces.items()) if pieces_}
    spare = max(0, at_least - len(filled))
    extra = apportioned([sum(piece[2] for piece in pieces_) for pieces_ in filled.values()], spare)
    return [
        Split(topic, partition, at, to)
        for (partition, pieces_), more in zip(filled.items(), extra, strict=True)
        for at, to in pairwise(_cuts(pieces_, 1 + more))
    ]


def _cuts(pieces: Sequence[Piece], parts: int) -> Iterator[int]:
    """The offsets at which pieces are cut into parts of like weight: first, last and between."""
    sums = list(accumulate(weight for _, _, weight in pieces))
    at = pieces[0][0]
    yield at
    for i in range(1, parts):
        share = sums[-1] * i / parts
        number = bisect_left(sums, share)
        start, stop, weight = pieces[number]
        cut = stop - int((stop - start) * (sums[number] - share) / max(1, weight))
        if at < cut < pieces[-1][1]:
            at = cut
            yield at
    yield pieces[-1][1]


def cut(splits: Iterable[Split], offsets_max: int | None) -> list[Split]:
    """The same splits; a split longer than `offsets_max` is divided evenly."""
    if offsets_max is None:
        return list(splits)
    return [
        split._replace(start=at, stop=to)
        for split in splits
        for at, to in _divided(
            split.start, split.stop, -((split.start - split.stop) // offsets_max)
        )
    ]


def _divided(start: int, stop: int, parts: int) -> Iterable[tuple[int, int]]:
    """The range in `parts` equal parts, but none that is empty."""
    length = stop - start
    parts = max(1, min(parts, length))
    for i in range(parts):
        yield start + length * i // parts, start + length * (i + 1) // parts
