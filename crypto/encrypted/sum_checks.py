"""Which sum of ciphertexts a site decrypts: the rules that masked protection has before it unmasks.

Every site could open anything, so it checks specification, survivors and its own upload, whether it
contributed or was away; only the tag (``SiteCipher.verify``) makes certain that it is the sum of the
survivors' uploads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secfed.crypto import labels
from secfed.crypto.attempt import SumRules
from secfed.crypto.encrypted.messages import AnySum
from secfed.crypto.identity import Roster
from secfed.crypto.refusals import Refusal
from secfed.crypto.specification import check_cohort, check_contributors, ordered_subset, verified

FLOOR: Final = 2  # a sum over one site is its upload


@dataclass(frozen=True)
class ExpectedSum:
    """What one site knows about an exchange whose sum it is given."""

    site: str
    rules: SumRules
    exchange: str  # its name, by the site's own copy of the study
    layout_digest: bytes
    state_tag: bytes  # of the state that the sum is added to
    uploaded: bytes | None  # digest of the specification that its upload was made for; None without an upload
    floor: int = FLOOR  # smallest cohort of the protection
    view: tuple[str, ...] | None = None  # survivors that it has signed for this specification


def check_signed(summed: AnySum, roster: Roster, study: str) -> None:
    """Refuse (3, 4, 10, 35) what is not the aggregator's sum of this study."""
    spec, result = summed.spec, summed.result
    signed = (
        (spec, labels.SIGN_SPEC, Refusal.SPEC_SIGNATURE),
        (result, labels.SIGN_RESULT, Refusal.RESULT_SIGNATURE),
    )
    for record, label, refusal in signed:
        verified(record, roster.aggregator, label, who="aggregator", refusal=refusal)
    if spec.roster_digest != roster.digest:
        raise Refusal.ROSTER_CHANGED.refuse()
    if spec.study != study:
        raise Refusal.OTHER_EXCHANGE.refuse()


def check_sum(summed: AnySum, expected: ExpectedSum) -> None:
    """Refuse (4-6, 8, 10, 13, 29, 36, 38, 39) a sum that this site may not decrypt, words aside."""
    spec, result, rules = summed.spec, summed.result, expected.rules
    if spec.exchange != expected.exchange:
        raise Refusal.OTHER_EXCHANGE.refuse()
    if spec.layout_digest != expected.layout_digest:
        raise Refusal.LAYOUT_CHANGED.refuse()
    # A site that was away is in no cohort, and takes the sum all the same.
    check_cohort(spec, rules, floor=expected.floor, site=None)
    check_contributors(spec.cohort, rules)
    survivors = result.survivors
    # The specification that this site signed its upload for, or one that it has no part in.
    is_own = expected.site not in survivors if expected.uploaded is None else expected.uploaded == spec.digest
    if expected.uploaded is None and not is_own:
        raise Refusal.RESULT_MISMATCH.refuse(
            f"round {spec.round}: this site is named as a survivor and knows of no upload; its memory was "
            "lost, or its folder is an older copy, and then it sits out the rest of the study"
        )
    if (
        not is_own
        or (result.spec_digest, result.totals_digest) != (spec.digest, summed.totals_digest)
        or not ordered_subset(survivors, spec.cohort)
        or expected.view not in (None, survivors)
        or spec.broadcast_digest != expected.state_tag
    ):
        raise Refusal.RESULT_MISMATCH.refuse(f"round {spec.round}")
    least = max(spec.threshold, rules.limits.min_cohort, rules.limits.min_threshold, expected.floor)
    if len(survivors) < least:
        raise Refusal.TOO_FEW_SURVIVORS.refuse(f"{len(survivors)} of {least}")
    check_contributors(survivors, rules)
