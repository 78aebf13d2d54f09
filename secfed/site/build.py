"""Where a site is put together: the one place, for hospitals, simulations and attacks alike."""

from __future__ import annotations

from secfed.algorithms.framework.base import SiteProgram
from secfed.crypto.attempt import SiteLimits
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import WrongState
from secfed.protection.opened_at_sites import OpenedAtSites
from secfed.site.attempt_store import AttemptStore
from secfed.site.opening_session import OpeningSession
from secfed.site.parts import Agreement, Draws, Member, Services
from secfed.site.privacy import SitePrivacy
from secfed.site.session import Site
from secfed.site.terms import Terms
from secfed.study.warm_start import pinned_model


def build_site(
    terms: Terms,
    member: Member,
    program: SiteProgram,
    *,
    limits: SiteLimits,
    draws: Draws,
    store: AttemptStore,
    services: Services,
    ledger: Ledger | None = None,
) -> Site:
    """One hospital's side of one study.

    Args:
        program: the local work, bound to this site's data.
        draws: its randomness; from the store in a hospital, from the study's seed in a simulation.
        store: its memory; on the disk in a hospital, a ``NullStore`` in a simulation.
        ledger: of the data set; needed where the study has ``[privacy]``.

    Raises:
        WrongState: a study with ``[privacy]`` and no ledger.
    """
    study, privacy = terms.study, None
    if study.privacy is not None:
        if ledger is None:
            raise WrongState("a study with [privacy] needs a ledger: nothing works on records unpaid")
        privacy = SitePrivacy(study.privacy, terms.algorithm, ledger, terms.study_id, study.seed, draws)
    named = frozenset(terms.sites)
    agreement = Agreement(
        terms.study_id,
        terms.algorithm,
        terms.protection,
        tuple(name for name in member.roster.sites if name in named),
        begins_with=pinned_model(study),
        broadcast_bound=study.protection.broadcast_bound,
    )
    site_type = OpeningSession if isinstance(terms.protection, OpenedAtSites) else Site
    return site_type(
        member,
        agreement,
        program,
        limits=limits,
        draws=draws,
        store=store,
        services=services,
        privacy=privacy,
    )
