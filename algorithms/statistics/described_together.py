"""What descriptions tell, checked together with each other and with what is told beside them.

A described mean is a sum like any other: with that of a formula it gives the records by which the two differ.
Checked are each described sum, of all records or of a union of groups, with all joint numbers; each two
described columns with all joint numbers; and each two within every union of groups. A sum that is withheld
already says nothing together with another one, so it is left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from secfed.algorithms.statistics.checks import ONE, Described, Number, Span
from secfed.algorithms.statistics.leverage import MOST_OF_A_SQUARE
from secfed.errors import ConfigError

_MOST_SPANS: Final = 20_000  # of one study: seconds of every hospital
Answer = Callable[[int], bool]  # of a span by its position


@dataclass(frozen=True)
class DescribedSum:
    """One described sum, and positions of the spans that say whether it is told.

    Attributes:
        about: what is summed.
        mean: of its group for itself.
        base: of it among all records.
        deciding: with others; any of them that few records hold withholds it.
    """

    about: Described
    mean: int
    base: int
    deciding: list[int] = field(default_factory=list)


class DescribedSums:
    """All described sums of a study so far; their spans are appended to a list that others share."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._sums: list[DescribedSum] = []
        self._of: dict[int, tuple[DescribedSum, ...]] = {}  # the sums that a span is of

    def describe(
        self, name: str, described: Sequence[Described], first: int, joint: Mapping[str, Number]
    ) -> list[DescribedSum]:
        """Take the sums of a description, whose spans begin at ``first``."""
        found = list[DescribedSum]()
        for about in described:
            self._spans.append(Span((ONE, *about.numbers), shared=True))
            one = DescribedSum(about, first + about.mean, len(self._spans) - 1)
            if len(joint) > 1:
                one.deciding.extend(self._beside(joint, (one,)))
            for other in self._sums:
                if other.about.groups or about.groups:
                    if other in found and other.about.groups == about.groups:
                        numbers = (ONE, other.about.whole, about.whole)
                        one.deciding.append(
                            self._add(Span(numbers, about.rows, True, MOST_OF_A_SQUARE), (other, one))
                        )
                elif other.about.whole.name != about.whole.name:
                    one.deciding.extend(self._beside(joint, (other, one)))
            self._sums.append(one)
            found.append(one)
            self._check(name)
        return found

    def join(self, name: str, joint: Mapping[str, Number]) -> None:
        """Check all sums so far with joint numbers that have become more."""
        for at, one in enumerate(self._sums):
            self._beside(joint, (one,))
            for other in self._sums[:at] if not one.about.groups else ():
                if not other.about.groups:
                    self._beside(joint, (other, one))
        self._check(name)

    def has(self, at: int) -> bool:
        """Whether this is about a span of described sums."""
        return at in self._of

    def decides(self, at: int, held: Answer, lonely: Answer, about: DescribedSum | None = None) -> bool:
        """Whether few records, or one hospital, hold a combination of a span, all sums of which are told.

        ``about``: the sum that it decides about. A sum that is nearly of one hospital by itself is told
        where enough hospitals have such records; only what that hospital adds to others is looked at here.
        """
        sums = self._of.get(at, ())
        if not held(at) and (not lonely(at) or any(lonely(one.base) for one in sums)):
            return False
        return not any(self._withheld(one, held, lonely) for one in sums if one is not about)

    def beside(self, one: DescribedSum, held: Answer, lonely: Answer) -> bool:
        """Whether a sum is withheld for what is told beside it."""
        return any(self.decides(at, held, lonely, one) for at in one.deciding)

    def _withheld(self, one: DescribedSum, held: Answer, lonely: Answer) -> bool:
        return held(one.mean) or held(one.base) or self.beside(one, held, lonely)

    def _beside(self, joint: Mapping[str, Number], sums: tuple[DescribedSum, ...]) -> list[int]:
        """A span of these sums and the joint numbers; none where one of them is among these."""
        numbers = dict(joint)
        for one in sums:
            new = {number.name: number for number in one.about.numbers if number.name not in numbers}
            if not new:
                return []
            numbers |= new
        return [self._add(Span(tuple(numbers.values()), shared=True), sums)]

    def _add(self, span: Span, sums: tuple[DescribedSum, ...]) -> int:
        self._spans.append(span)
        self._of[len(self._spans) - 1] = sums
        return len(self._spans) - 1

    def _check(self, name: str) -> None:
        if len(self._spans) > _MOST_SPANS:
            raise ConfigError(
                f"algorithm.analyses.{name}: with the analyses before it more than {_MOST_SPANS} "
                "combinations of described numbers are to be checked",
                remedy="describe fewer numbers or groups, or take another study",
            )
