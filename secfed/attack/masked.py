"""Attacks on masked sums, by the aggregator and hospitals that help it.

Everything is tried on real sessions. Where a hospital refuses, the attacker goes on with what it has: every
share that was answered, and the upload itself, so that what it learned is measured and not assumed.

Sources: Bonawitz et al. 2017 (section 6, the active adversary), Pasquini, Francati, Ateniese 2022 (model
inconsistency), So et al. 2023 (sums of several rounds), Boenisch et al. 2023 (models made for one record).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from secfed.attack import made_up_model
from secfed.attack.attack import Attack, AttackSetting, Impossible, lanes_of, minus
from secfed.attack.evidence import Evidence
from secfed.attack.harvest import Harvest, unmask_alone
from secfed.attack.masked_steps import best, deliver, evidence, nothing, try_sum, views
from secfed.attack.scene import Attempt, SimulatedConsortium
from secfed.crypto import thresholds
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Adverts, Deliveries, SharingSet, UnmaskRequest, View
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError

LEAST_COHORT: Final = SiteLimits().min_cohort
_AGGREGATOR: Final = "the aggregator"
_ONE_HELPER: Final = "the aggregator and one hospital"


def _read_upload(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    attempt = consortium.attempt().run()
    victim = consortium.names[0]
    return evidence(attempt, victim, best(attempt, victim), allowed=(attempt.server.sums,))


def _late_upload(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[-1]

    def up(stage: str, site: str, reply: Buffer) -> Buffer | None:
        return None if (stage, site) == ("mask", victim) else reply

    attempt = consortium.attempt(up=up)
    total = try_sum(attempt)
    return evidence(attempt, victim, best(attempt, victim), allowed=() if total is None else (total,))


def _second_sum(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    first = consortium.attempt().run()
    return _difference(first, consortium, victim, tuple(others))


def _difference(
    first: Attempt, consortium: SimulatedConsortium, victim: str, rest: tuple[str, ...], round_number: int = 1
) -> Evidence:
    """Sum the rest once more, and subtract."""
    spec = consortium.specification(attempt=1 if round_number == 1 else 0, cohort=rest, round=round_number)
    second = consortium.attempt(spec)
    guess = try_sum(second)
    guess = best(first, victim) if guess is None else minus(consortium, first.server.sums, guess)
    return evidence(first, victim, guess, allowed=(first.server.sums,), seen=second)


def _small_cohort(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, helper, *_ = consortium.names
    attempt = consortium.attempt(consortium.specification(cohort=(victim, helper), threshold=2))
    total = try_sum(attempt)
    guess = nothing(consortium) if total is None else minus(consortium, total, consortium.updates[helper])
    return evidence(attempt, victim, guess, allowed=(consortium.updates[helper],))


def _low_threshold(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[0]
    attempt = consortium.attempt(consortium.specification(threshold=2))
    try_sum(attempt)
    return evidence(attempt, victim, best(attempt, victim))


def _invented_hospitals(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[0]
    invented = tuple(f"{victim}-{number}" for number in range(1, setting.hospitals))
    attempt = consortium.attempt(consortium.specification(cohort=(victim, *invented)), sites=(victim,))
    try_sum(attempt)
    return evidence(attempt, victim, best(attempt, victim))


def _swapped_keys(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[0]
    impostors = SimulatedConsortium(setting.hospitals, runs=consortium.shape.runs, seed=setting.seed + 1)
    theirs = impostors.attempt().run(until="share")
    made_up = {advert.site: advert for advert in Adverts.decode(theirs.requests[victim]).adverts}
    attempt = consortium.attempt().run(until="share")
    real = Adverts.decode(attempt.requests[victim]).adverts
    shown = tuple(advert if advert.site == victim else made_up[advert.site] for advert in real)
    refused = deliver(attempt, victim, Adverts(shown).encode())
    return evidence(attempt, victim, best(attempt, victim), refused=refused)


def _another_model(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    for name in others:  # they got a model on which every update is zero
        consortium.updates[name] = nothing(consortium)
    got = {"broadcast_digest": bytes(reversed(consortium.broadcast_digest))}
    attempt = consortium.attempt(contributions={victim: got})
    total = try_sum(attempt)
    return evidence(attempt, victim, nothing(consortium) if total is None else total)


def _both_secrets(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    attempt = consortium.attempt().run(until="unmask")
    refused: list[SecfedError] = []
    for index, site in enumerate(others):  # half of them are told that the victim dropped
        views = UnmaskRequest.decode(attempt.requests[site]).views
        lie = UnmaskRequest((victim,), views).encode()
        refused += deliver(attempt, site, lie if index % 2 else attempt.requests[site])
    return evidence(attempt, victim, best(attempt, victim), refused=refused)


def _two_views(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    names, victim = consortium.names, consortium.names[-1]
    attempt = consortium.attempt().run(until="consistency")
    deceived = names[: setting.hospitals // 2]
    refused: list[SecfedError] = []
    seen: dict[str, View] = {}
    for site in names:
        told = names[:-1] if site in deceived else names
        seen.update(views(attempt, (site,), told, refused))
    for site in names[:-1]:
        told, dropped = (names[:-1], (victim,)) if site in deceived else (names, ())
        signed = tuple(seen[name] for name in told if name in seen)
        refused += deliver(attempt, site, UnmaskRequest(dropped, signed).encode())
    return evidence(attempt, victim, best(attempt, victim), refused=refused)


def _isolate(setting: AttackSetting, helpers: int, **options: Any) -> Evidence:
    """Show the victim as few peers as it accepts, and have the rest open the masks of just these.

    The victim masks towards t - 1 peers: the helpers, and t - 1 - c that everybody else is told have
    dropped. There are n - t + c others, who open masks if they are t: the reason why 2t > n + c must hold.
    """
    consortium = setting.consortium(**options)
    victim, *peers = consortium.names
    attempt = consortium.attempt().run(until="confirm")
    away = attempt.spec.threshold - 1 - helpers
    rest, dropped = peers[: len(peers) - away], peers[len(peers) - away :]
    if away < 0 or not rest:
        raise Impossible
    shown = (victim, *peers[:helpers], *dropped)
    envelopes = Deliveries.decode(attempt.requests[victim]).envelopes
    kept = tuple(envelope for envelope in envelopes if envelope.sender in shown)
    refused = deliver(attempt, victim, Deliveries(kept).encode())
    refused += deliver(attempt, victim, SharingSet(tuple(sorted(shown))).encode())
    everybody = SharingSet(consortium.names).encode()
    for site in rest:
        refused += deliver(attempt, site, attempt.requests[site])
        refused += deliver(attempt, site, everybody)
    seen = views(attempt, rest, (victim, *rest), refused)
    for site in seen:
        refused += deliver(attempt, site, UnmaskRequest(tuple(dropped), tuple(seen.values())).encode())
    colluding = peers[:helpers]
    stripped = unmask_alone(attempt, victim, Harvest.of(attempt, colluding), colluding, shown)
    guess = lanes_of(consortium, attempt.uploaded(victim)) if stripped is None else stripped
    known = tuple(consortium.updates[name] for name in colluding)
    return evidence(attempt, victim, guess, allowed=known, refused=refused)


def _hidden_peers(setting: AttackSetting) -> Evidence:
    return _isolate(setting, thresholds.default_colluders(setting.hospitals))


def _too_many_helpers(setting: AttackSetting) -> Evidence:
    """The hospitals tolerate nobody, so that this threshold is enough for them."""
    threshold = max(3, setting.hospitals // 2 + 1)
    helpers = 2 * threshold - setting.hospitals
    return _isolate(setting, helpers, threshold=threshold, limits=SiteLimits(colluders=0))


def _all_others(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    attempt = consortium.attempt().run()
    guess = minus(consortium, attempt.server.sums, *(consortium.updates[name] for name in others))
    return evidence(attempt, victim, guess, allowed=(attempt.server.sums,))


def _rolled_back(setting: AttackSetting, forgetting: int) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    first = consortium.attempt().run()
    if forgetting == len(others) < LEAST_COHORT:
        raise Impossible
    consortium.forget(others[:forgetting])
    return _difference(first, consortium, victim, tuple(others))


def _few_rolled_back(setting: AttackSetting) -> Evidence:
    # One more must have forgotten than the second sum can do without.
    rest = setting.hospitals - 1
    return _rolled_back(setting, thresholds.default_threshold(rest) - 1)


def _all_rolled_back(setting: AttackSetting) -> Evidence:
    return _rolled_back(setting, setting.hospitals - 1)


def _same_again(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim, *others = consortium.names
    if len(others) < LEAST_COHORT:
        raise Impossible
    first = consortium.attempt().run()
    return _difference(first, consortium, victim, tuple(others), round_number=2)


def _made_up_model(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[0]
    made = made_up_model.updates(consortium.names, victim, consortium.shape.runs, setting.seed)
    consortium.updates.update(made)
    attempt = consortium.attempt().run()  # nobody is lied to: one model, one cohort, one sum
    return evidence(attempt, victim, tuple(attempt.server.sums))


def _attack(
    name: str,
    who: str,
    what: str,
    run: Callable[[AttackSetting], Evidence],
    *,
    refusals: tuple[Refusal, ...] = (),
    limit: str | None = None,
) -> Attack:
    return Attack(name, "masked", who, what, run, refusals, limit)


_BEYOND: Final = "What each party sees"
_OPEN: Final = "What is not protected"

MASKED: Final = (
    _attack("read-upload", _AGGREGATOR, "keeps an upload and looks for the update in it", _read_upload),
    _attack(
        "late-upload",
        _AGGREGATOR,
        "says that a hospital dropped, has the others open its masks, and then uses its upload",
        _late_upload,
    ),
    _attack(
        "second-sum",
        _AGGREGATOR,
        "has everybody but one hospital summed once more, and subtracts",
        _second_sum,
        refusals=(Refusal.ALREADY_SPENT, Refusal.COHORT_TOO_SMALL),
    ),
    _attack(
        "small-cohort",
        _ONE_HELPER,
        "ask for a sum over two hospitals, of which one is the helper",
        _small_cohort,
        refusals=(Refusal.COHORT_TOO_SMALL,),
    ),
    _attack(
        "low-threshold",
        _AGGREGATOR,
        "asks for fewer answers than keep one hospital hidden",
        _low_threshold,
        refusals=(Refusal.THRESHOLD_TOO_LOW,),
    ),
    _attack(
        "invented-hospitals",
        _AGGREGATOR,
        "fills the cohort with hospitals that it made up",
        _invented_hospitals,
        refusals=(Refusal.UNKNOWN_MEMBER,),
    ),
    _attack(
        "swapped-keys",
        _AGGREGATOR,
        "shows a hospital keys of its own in place of the others'",
        _swapped_keys,
        refusals=(Refusal.ADVERT_SIGNATURE,),
    ),
    _attack(
        "another-model",
        _AGGREGATOR,
        "sends one hospital a real model, and the others one on which their updates are zero",
        _another_model,
        refusals=(Refusal.BROADCAST_UNKNOWN,),
    ),
    _attack(
        "both-secrets",
        _AGGREGATOR,
        "tells half of the hospitals that one dropped, to get both of its secrets",
        _both_secrets,
        refusals=(Refusal.DROPPED_MISMATCH,),
    ),
    _attack(
        "two-views",
        _AGGREGATOR,
        "shows two groups different survivors from the start",
        _two_views,
        refusals=(Refusal.VIEW_SIGNATURE, Refusal.TOO_FEW_SURVIVORS),
    ),
    _attack(
        "hidden-peers",
        "the aggregator and as many hospitals as are tolerated",
        "hide most peers from one hospital, so that few masks protect it",
        _hidden_peers,
        refusals=(Refusal.TOO_FEW_VIEWS, Refusal.TOO_FEW_SURVIVORS),
    ),
    _attack(
        "journals-rolled-back",
        _AGGREGATOR,
        "asks again where hospitals restored an old journal, but too few of them",
        _few_rolled_back,
        refusals=(Refusal.ALREADY_SPENT, Refusal.COHORT_TOO_SMALL),
    ),
    _attack(
        "all-others-help",
        "the aggregator and all other hospitals",
        "subtract their own updates from the sum",
        _all_others,
        limit=_BEYOND,
    ),
    _attack(
        "too-many-helpers",
        "the aggregator and more hospitals than are tolerated",
        "hide most peers from one hospital, with a threshold for fewer colluders",
        _too_many_helpers,
        limit="Who is trusted for what",
    ),
    _attack(
        "all-journals-rolled-back",
        _AGGREGATOR,
        "asks again after all other hospitals restored an old journal",
        _all_rolled_back,
        limit="Journal rollback",
    ),
    _attack(
        "same-values-again",
        _AGGREGATOR,
        "subtracts the sums of two rounds, one of them without the hospital, of values that stay the same",
        _same_again,
        limit=_OPEN,
    ),
    _attack(
        "made-up-model",
        _AGGREGATOR,
        "sends everybody one model on which only records of a kind that one hospital has give a gradient",
        _made_up_model,
        limit=_OPEN,
    ),
)
