"""What plain and encrypted attempts share: one upload per site, no interaction, nothing to unmask."""

from __future__ import annotations

from collections.abc import Mapping

from secfed.crypto.attempt import AttemptId, SiteContribution
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.messages import Specification
from secfed.crypto.specification import check_specification, decode_as
from secfed.errors import RoundAborted, WrongState


def open_specification(message: Buffer, contribution: SiteContribution, *, floor: int) -> Specification:
    """Check message 0 and note that the update is spent: in such an attempt it leaves at once.

    Raises:
        SecfedError: refusals 1-16 and 37-39 of ``refusals.py``.
    """
    spec = decode_as(Specification, message)
    check_specification(spec, contribution, floor=floor)
    attempt = AttemptId(spec.round, spec.exchange_index, spec.attempt)
    contribution.journal.begin(spec.study, attempt)
    contribution.journal.uploaded(spec.study, attempt)
    return spec


class OneStepServer:
    """The aggregator's half but for what is done with an upload."""

    def __init__(self, spec: Specification, roster: Roster) -> None:
        self._spec, self._roster = spec, roster
        self._answered: set[str] = set()  # also those whose upload was refused
        self._uploaded: set[str] = set()
        self._finished = False
        self.spent = False
        self.disputes: tuple[tuple[str, str], ...] = ()  # sites send each other nothing

    @property
    def stage(self) -> str:
        """The one step takes the name of the step it stands for."""
        return "done" if self._finished else "mask"

    def begin(self) -> Mapping[str, Buffer]:
        """The specification to every site of the cohort."""
        return dict.fromkeys(self._spec.cohort, self._spec.encode())

    def receive(self, site: str, reply: Buffer) -> None:
        """Check one upload and add it; nothing is added if any part of it is refused.

        Raises:
            ProtocolError: the upload is refused; the site counts as dropped.
        """
        if self._finished or site not in self._spec.cohort or site in self._answered:
            raise WrongState(f"site {site!r} was not asked, or answered twice")
        self._answered.add(site)
        self._add(site, reply)
        self._uploaded.add(site)

    def _add(self, site: str, reply: Buffer) -> None:
        """Add an upload; ``spent`` from the moment that it is known to be the site's."""
        raise NotImplementedError

    def advance(self) -> Mapping[str, Buffer]:
        """Finish.

        Raises:
            RoundAborted: fewer uploads than the specification's threshold.
        """
        if len(self._uploaded) < self._spec.threshold:
            raise RoundAborted(
                f"only {len(self._uploaded)} of {len(self._spec.cohort)} sites uploaded, "
                f"{self._spec.threshold} are needed.",
                remedy="wait for more sites",
            )
        self._finished = True
        return {}

    @property
    def survivors(self) -> tuple[str, ...]:
        """Sites whose upload is in the sum, in roster order."""
        return tuple(name for name in self._spec.cohort if name in self._uploaded)
