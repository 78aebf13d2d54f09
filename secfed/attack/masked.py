"""Attacks on masked sums, by the aggregator and hospitals that help it.

Everything is tried on real sessions. Where a hospital refuses, the attacker goes on with what it has: every
share that was answered, and the upload itself, so that what it learned is measured and not assumed.

Sources: Bonawitz et al. 2017 (section 6, the active adversary), Pasquini, Francati, Ateniese 2022 (model
inconsistency), So et al. 2023 (sums of several rounds), Boenisch et al. 2023 (models made for one record).
"""

from __future__ import annotations

from typing import Any, Final

from secfed.attack import made_up_model
from secfed.attack.attack import AttackSetting, Impossible, attack, attacks_of
from secfed.attack.evidence import Evidence
from secfed.attack.masked_play import MaskedPlay
from secfed.attack.scene import SimulatedConsortium
from secfed.crypto import thresholds
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Adverts, Deliveries, SharingSet, UnmaskRequest, View
from secfed.crypto.refusals import Refusal

LEAST_COHORT: Final = SiteLimits().min_cohort


@attack("read-upload", "keeps an upload and looks for the update in it")
def _read_upload(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    return play.learned(None, play.try_sum())


@attack(
    "late-upload", "says that a hospital dropped, has the others open its masks, and then uses its upload"
)
def _late_upload(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting, victim=-1)

    def up(stage: str, site: str, reply: Buffer) -> Buffer | None:
        return None if (stage, site) == ("mask", play.victim) else reply

    return play.learned(None, play.try_sum(up=up))


def _difference(play: MaskedPlay, round_number: int = 1) -> Evidence:
    first = play.first.server.sums
    attempt = 1 if round_number == 1 else 0
    spec = play.consortium.specification(attempt=attempt, cohort=play.others, round=round_number)
    second = play.try_sum(spec)
    return play.learned(None if second is None else play.consortium.minus(first, second), first)


@attack(
    "second-sum",
    "has everybody but one hospital summed once more, and subtracts",
    refusals=(Refusal.ALREADY_SPENT, Refusal.COHORT_TOO_SMALL),
)
def _second_sum(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    play.begin().run()
    return _difference(play)


@attack(
    "small-cohort",
    "ask for a sum over two hospitals, of which one is the helper",
    who="the aggregator and one hospital",
    refusals=(Refusal.COHORT_TOO_SMALL,),
)
def _small_cohort(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    consortium, helper = play.consortium, play.others[0]
    total = play.try_sum(consortium.specification(cohort=(play.victim, helper), threshold=2))
    known = consortium.updates[helper]
    return play.learned(consortium.zeros() if total is None else consortium.minus(total, known), known)


@attack(
    "low-threshold",
    "asks for fewer answers than keep one hospital hidden",
    refusals=(Refusal.THRESHOLD_TOO_LOW,),
)
def _low_threshold(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    play.try_sum(play.consortium.specification(threshold=2))
    return play.learned()


@attack(
    "invented-hospitals",
    "fills the cohort with hospitals that it made up",
    refusals=(Refusal.UNKNOWN_MEMBER,),
)
def _invented_hospitals(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    invented = tuple(f"{play.victim}-{number}" for number in range(1, setting.hospitals))
    play.try_sum(play.consortium.specification(cohort=(play.victim, *invented)), sites=(play.victim,))
    return play.learned()


@attack(
    "swapped-keys",
    "shows a hospital keys of its own in place of the others'",
    refusals=(Refusal.ADVERT_SIGNATURE,),
)
def _swapped_keys(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    impostors = SimulatedConsortium(setting.hospitals, runs=play.consortium.shape.runs, seed=setting.seed + 1)
    theirs = impostors.attempt().run(until="share")
    made_up = {advert.site: advert for advert in Adverts.decode(theirs.requests[play.victim]).adverts}
    real = Adverts.decode(play.begin(until="share").requests[play.victim]).adverts
    shown = tuple(advert if advert.site == play.victim else made_up[advert.site] for advert in real)
    play.deliver(play.victim, Adverts(shown).encode())
    return play.learned()


@attack(
    "another-model",
    "sends one hospital a real model, and the others one on which their updates are zero",
    refusals=(Refusal.BROADCAST_UNKNOWN,),
)
def _another_model(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    consortium = play.consortium
    consortium.updates |= {name: consortium.zeros() for name in play.others}
    received = {"broadcast_digest": bytes(reversed(consortium.broadcast_digest))}
    total = play.try_sum(contributions={play.victim: received})
    return play.learned(consortium.zeros() if total is None else total)


@attack(
    "both-secrets",
    "tells half of the hospitals that one dropped, to get both of its secrets",
    refusals=(Refusal.DROPPED_MISMATCH,),
)
def _both_secrets(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    requests = play.begin(until="unmask").requests
    for index, site in enumerate(play.others):  # every second one hears that the victim dropped
        lie = UnmaskRequest((play.victim,), UnmaskRequest.decode(requests[site]).views).encode()
        play.deliver(site, lie if index % 2 else requests[site])
    return play.learned()


@attack(
    "two-views",
    "shows two groups different survivors from the start",
    refusals=(Refusal.VIEW_SIGNATURE, Refusal.TOO_FEW_SURVIVORS),
)
def _two_views(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting, victim=-1)
    play.begin(until="consistency")
    deceived = play.names[: setting.hospitals // 2]
    views: dict[str, View] = {}
    for site in play.names:
        views |= play.views((site,), play.others if site in deceived else play.names)
    for site in play.others:
        shown, dropped = (play.others, (play.victim,)) if site in deceived else (play.names, ())
        signed = tuple(views[name] for name in shown if name in views)
        play.deliver(site, UnmaskRequest(dropped, signed).encode())
    return play.learned()


def _isolate(setting: AttackSetting, helpers: int, **options: Any) -> Evidence:
    """Show the victim as few peers as it accepts, and have the rest open the masks of just these.

    The victim masks towards t - 1 peers: the helpers, and t - 1 - c that everybody else believes to have
    dropped. There are n - t + c others, who open masks if they are t: the reason why 2t > n + c must hold.
    """
    play = MaskedPlay(setting, **options)
    requests = play.begin(until="confirm").requests
    away = play.first.spec.threshold - 1 - helpers
    rest, dropped = play.others[: len(play.others) - away], play.others[len(play.others) - away :]
    if away < 0 or not rest:
        raise Impossible
    colluding = play.others[:helpers]
    shown = (play.victim, *colluding, *dropped)
    envelopes = Deliveries.decode(requests[play.victim]).envelopes
    few = tuple(envelope for envelope in envelopes if envelope.sender in shown)
    play.deliver(play.victim, Deliveries(few).encode())
    play.deliver(play.victim, SharingSet(tuple(sorted(shown))).encode())
    for site in rest:
        play.deliver(site, requests[site])
        play.deliver(site, SharingSet(play.names).encode())
    views = play.views(rest, (play.victim, *rest))
    for site in views:
        play.deliver(site, UnmaskRequest(dropped, tuple(views.values())).encode())
    known = (play.consortium.updates[name] for name in colluding)
    return play.learned(play.unmasked(colluding, shown), *known)


@attack(
    "hidden-peers",
    "hide most peers from one hospital, so that few masks protect it",
    who="the aggregator and as many hospitals as are tolerated",
    refusals=(Refusal.TOO_FEW_VIEWS, Refusal.TOO_FEW_SURVIVORS),
)
def _hidden_peers(setting: AttackSetting) -> Evidence:
    return _isolate(setting, thresholds.default_colluders(setting.hospitals))


def _rolled_back(setting: AttackSetting, forgetting: int) -> Evidence:
    play = MaskedPlay(setting)
    play.begin().run()
    if forgetting == len(play.others) < LEAST_COHORT:
        raise Impossible
    play.consortium.forget(play.others[:forgetting])
    return _difference(play)


@attack(
    "journals-rolled-back",
    "asks again where hospitals restored an old journal, but too few of them",
    refusals=(Refusal.ALREADY_SPENT, Refusal.COHORT_TOO_SMALL),
)
def _few_rolled_back(setting: AttackSetting) -> Evidence:
    # One more must have forgotten than the second sum can do without.
    return _rolled_back(setting, thresholds.default_threshold(setting.hospitals - 1) - 1)


@attack(
    "all-others-help",
    "subtract their own updates from the sum",
    who="the aggregator and all other hospitals",
    limit="What each party sees",
)
def _all_others(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    total = play.begin().run().server.sums
    theirs = (play.consortium.updates[name] for name in play.others)
    return play.learned(play.consortium.minus(total, *theirs), total)


@attack(
    "too-many-helpers",
    "hide most peers from one hospital, with a threshold for fewer colluders",
    who="the aggregator and more hospitals than are tolerated",
    limit="Who is trusted for what",
)
def _too_many_helpers(setting: AttackSetting) -> Evidence:
    """The hospitals tolerate nobody, so that this threshold is enough for them."""
    threshold = max(3, setting.hospitals // 2 + 1)
    helpers = 2 * threshold - setting.hospitals
    return _isolate(setting, helpers, threshold=threshold, limits=SiteLimits(colluders=0))


@attack(
    "all-journals-rolled-back",
    "asks again after all other hospitals restored an old journal",
    limit="Journal rollback",
)
def _all_rolled_back(setting: AttackSetting) -> Evidence:
    return _rolled_back(setting, setting.hospitals - 1)


@attack(
    "same-values-again",
    "subtracts the sums of two rounds, one of them without the hospital, of values that stay the same",
    limit="Numbers that stay the same",
)
def _same_again(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    if len(play.others) < LEAST_COHORT:
        raise Impossible
    play.begin().run()
    return _difference(play, round_number=2)


@attack(
    "made-up-model",
    "sends everybody one model on which only records of a kind that one hospital has give a gradient",
    limit="Made-up models",
)
def _made_up_model(setting: AttackSetting) -> Evidence:
    play = MaskedPlay(setting)
    runs = play.consortium.shape.runs
    play.consortium.updates |= made_up_model.updates(play.names, play.victim, runs, setting.seed)
    return play.learned(play.begin().run().server.sums)  # nobody is deceived: one model, one cohort, one sum


MASKED: Final = attacks_of(vars())
