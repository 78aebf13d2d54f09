"""Every reason a site refuses to continue, numbered as SECURITY.md numbers them.

A refusal ends the attempt at this site: the state machine closes, its secrets are dropped, and nothing
further leaves. Each has a test in which a malicious server tries exactly that.
"""

from __future__ import annotations

from enum import Enum

from secfed.errors import (
    BadSignature,
    InconsistentView,
    MalformedMessage,
    PolicyRefused,
    Replay,
    RosterError,
    SecfedError,
    UnmaskRefused,
    WrongState,
)


class Refusal(Enum):
    """(number, error class, what is refused)."""

    MALFORMED = (1, MalformedMessage, "the bytes are not a well-formed message of this protocol version")
    OUT_OF_ORDER = (2, WrongState, "the message does not belong to the current state")
    SPEC_SIGNATURE = (3, BadSignature, "the specification is not signed by the pinned aggregator")
    ROSTER_CHANGED = (4, RosterError, "the specification names another roster than the pinned one")
    UNKNOWN_MEMBER = (5, RosterError, "the cohort contains a site that is not in the pinned roster")
    COHORT_ORDER = (6, RosterError, "the cohort is not a strictly ordered list of sites")
    NOT_INVITED = (7, RosterError, "the cohort does not contain this site")
    COHORT_TOO_SMALL = (8, PolicyRefused, "the cohort is below this site's minimum")
    THRESHOLD_TOO_LOW = (9, PolicyRefused, "the threshold is too low for this site or this cohort")
    OTHER_EXCHANGE = (10, InconsistentView, "the specification is for another study, round or exchange")
    OLD_ATTEMPT = (11, Replay, "the round, exchange or attempt is not larger than the journal's")
    ALREADY_SPENT = (12, Replay, "this update has already left the site in another attempt")
    LAYOUT_CHANGED = (13, InconsistentView, "the layout is not the one this site derived from the study")
    LAYOUT_TOO_LARGE = (14, PolicyRefused, "the layout is larger than this site's policy permits")
    BROADCAST_UNKNOWN = (15, InconsistentView, "the broadcast is not the one this site trained on")
    PRIVACY_FLOOR = (16, PolicyRefused, "the privacy that this site's policy demands was not applied")
    ADVERT_SIGNATURE = (17, BadSignature, "an advertised key is not signed by its pinned identity")
    ADVERT_OUTSIDER = (18, RosterError, "an advertised key comes from outside the cohort")
    ADVERT_ORDER = (19, InconsistentView, "advertised keys are out of order or repeated")
    DUPLICATE_KEY = (20, InconsistentView, "a key or commitment is advertised twice")
    OWN_ADVERT = (21, InconsistentView, "this site's own keys are missing or altered")
    TOO_FEW_ADVERTS = (22, UnmaskRefused, "fewer sites advertised keys than the threshold")
    ENVELOPE_SIGNATURE = (23, BadSignature, "an envelope is not signed by its sender for this attempt")
    ENVELOPE_STRAY = (
        24,
        InconsistentView,
        "an envelope or a member of the sharing set is unadvertised, repeated, missing or misaddressed",
    )
    ENVELOPE_SEALED = (
        25,
        MalformedMessage,
        "this site complained of an envelope that cannot be opened or does not hold the shares it states",
    )
    TOO_FEW_SHARING = (26, UnmaskRefused, "fewer sites shared secrets than the threshold")
    SURVIVORS_OUTSIDE = (27, InconsistentView, "the survivors are not an ordered subset of the sharing set")
    SURVIVORS_WITHOUT_SELF = (28, InconsistentView, "this site uploaded but is not among the survivors")
    TOO_FEW_SURVIVORS = (29, UnmaskRefused, "fewer survivors than the threshold")
    VIEW_SIGNATURE = (30, BadSignature, "a consistency signature does not verify for this site's own view")
    VIEW_OUTSIDER = (31, InconsistentView, "a consistency signature is not from a survivor, or is repeated")
    TOO_FEW_VIEWS = (32, UnmaskRefused, "fewer matching consistency signatures than the threshold")
    DROPPED_MISMATCH = (33, UnmaskRefused, "the dropped sites are not the complement of the signed survivors")
    SECOND_UNMASK = (34, UnmaskRefused, "shares were already given out in this attempt")
    RESULT_SIGNATURE = (35, BadSignature, "the result is not signed by the pinned aggregator")
    RESULT_MISMATCH = (36, InconsistentView, "the result is for another attempt or another set of survivors")
    JOURNAL_ROLLED_BACK = (37, Replay, "this site's journal was replaced or does not know the attempt")

    NOT_PLANNED = (38, PolicyRefused, "the study does not ask a site of the cohort in this exchange")
    TOO_FEW_CONTRIBUTORS = (
        39,
        PolicyRefused,
        "too few of the sites add more than zeros to a part of this sum",
    )
    MODEL_SIGNATURE = (40, BadSignature, "the final model is not signed by the pinned aggregator")
    MODEL_MISMATCH = (
        41,
        InconsistentView,
        "the final model is of another study or roster, not what was signed, or not this site's",
    )
    OTHER_START = (42, InconsistentView, "the first broadcast is not the model that the study begins with")
    BROADCAST_RANGE = (
        43,
        MalformedMessage,
        "the broadcast holds a number that is not finite or beyond the study's bound",
    )
    BROADCAST_SHAPE = (44, MalformedMessage, "the broadcast has other names or shapes than this study's")

    SUM_TAG = (45, InconsistentView, "what was relayed is not the sum of the uploads that the result names")

    # In a sparse graph of masks.
    TOO_MANY_ATTEMPTS = (46, Replay, "a sparse graph is not drawn so often for one exchange")
    CHOICE_SIGNATURE = (47, BadSignature, "a choice of holders is not signed by its site for this attempt")
    NEIGHBOURHOOD = (
        48,
        InconsistentView,
        "the neighbourhood is not this site's holders and the sites that chose it, with the keys advertised",
    )
    UPLOAD_UNPROVEN = (
        49,
        InconsistentView,
        "a survivor whose share this site holds did not sign its upload for the same sharing set",
    )

    BUILDS_ON = (
        50,
        InconsistentView,
        "the exchange builds on one that this site was not asked for, or from another broadcast",
    )

    def __init__(self, number: int, error: type[SecfedError], text: str) -> None:
        self.number = number
        self.error = error
        self.text = text

    @classmethod
    def of(cls, error: SecfedError) -> Refusal | None:
        """Which refusal an error is, also one that was kept as text and given again; None if it is none."""
        for one in cls:
            if isinstance(error, one.error) and error.message.startswith(f"refusal {one.number}: {one.text}"):
                return one
        return None

    def refuse(self, detail: str = "") -> SecfedError:
        """The error to raise; ``detail`` names a site or a field, never a secret."""
        suffix = f" ({detail})" if detail else ""
        ranged = self is Refusal.BROADCAST_RANGE
        own = "lower the step size, or raise protection.broadcast_bound; " if ranged else ""
        return self.error(
            f"refusal {self.number}: {self.text}{suffix}.",
            remedy=f"{own}the attempt is over at this site; SECURITY.md explains refusal {self.number}",
        )
