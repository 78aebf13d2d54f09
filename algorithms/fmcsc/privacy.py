"""FMCSC under ``[privacy]``: which studies have a guarantee, and what a site's private training consists of.

The contrast of a multi-view site compares records (:mod:`secfed.algorithms.framework.coupled_privacy`), so
the unit is a fixed *group* of records in every phase, with "the content of one record is replaced"; or the
site. What leaves besides updates is public or does not leave: no losses, no mutual information.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from secfed.algorithms.fmcsc.losses import multiview_loss
from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.plan import FmcscPlan
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.coupled_privacy import check_coupled
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import Phase

PRETRAIN: Final = "pretrain"
ALL_VIEWS: Final = "all-views"
TEACH: Final = "teach"
OWN_VIEW: Final = "own-view"


def check_privacy(options: FmcscOptions, privacy: PrivacySection | None) -> None:
    """Refuse a study whose epsilon would be wrong, or that would let numbers out beside it."""
    if privacy is None:
        return
    contrast = multiview_loss(options).name
    check_coupled(privacy, "fmcsc", f"sites with all views train on the {contrast}, which couples records")
    if privacy.privacy_unit.adjacency is Adjacency.REPLACE_PATIENT:
        raise ConfigError(
            'privacy.adjacency: "replace-patient" is not offered, for its groups do not keep the records '
            "of one patient together",
            remedy='leave it out: the usual relation, "replace-record", holds for one record per patient',
        )
    if options.weights == "mi":
        message = 'algorithm.weights: "mi" lets numbers that depend on records leave without noise'
        raise ConfigError(message, remedy='set algorithm.weights = "public" or "equal"')
    if options.paper_laplace_epsilon is not None:
        message = "algorithm.paper_laplace_epsilon: is not a guarantee and has no place beside [privacy]"
        raise ConfigError(message, remedy="remove one of the two")
    if options.view_types == "hidden" and not privacy.in_local_steps:
        raise ConfigError(
            'algorithm.view_types: with "hidden" the number of sites in a group is summed, which depends on '
            "single sites and would leave without noise",
            remedy='set algorithm.view_types = "public", or privacy.unit = "group"',
        )


def epochs(options: FmcscOptions, phase: str) -> int:
    """Passes over a site's records each time that it works on a phase."""
    if phase == PRETRAIN:
        return options.pretrain_epochs
    return options.distillation_epochs if phase == TEACH else options.local_epochs


def phases(plan: FmcscPlan, site: SiteId, records: int) -> tuple[Phase, ...]:
    """What a site is going to train in the whole study; all of it follows from public facts.

    A site that is sampled for some pre-training rounds plans just these; who is sampled is known to
    everybody, so it is no amplification. How many records it has is treated as public.
    """
    from secfed.dp.training.local_privacy import Phase  # the accountants are slow to import

    options = plan.options
    trains = site in plan.participants
    sampled = sum(trains and site in plan.sampled(number) for number in range(1, plan.first_main_round))
    main = max(0, plan.rounds - options.pretrain_rounds) if trains else 0
    all_views = main if plan.view_of[site] is None else 0
    own_view = main if plan.view_of[site] is not None and plan.trains_own_view else 0
    times = {PRETRAIN: sampled, ALL_VIEWS: all_views, TEACH: all_views * plan.views, OWN_VIEW: own_view}
    return tuple(
        Phase(name, records, options.batch_size, count * epochs(options, name))
        for name, count in times.items()
    )
