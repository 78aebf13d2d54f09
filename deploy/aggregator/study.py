"""What the study centre derives from a study file and a roster: who is asked, and for what."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from secfed.algorithms.framework.base import Algorithm
from secfed.config.cohort_rules import threshold
from secfed.crypto.identity import Roster
from secfed.errors import ConfigError, RosterError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.protection.interface import SiteId
from secfed.protection.opened_at_sites import OpenedAtSites
from secfed.protection.registry import make_protection
from secfed.study.build import build, build_data
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model, pinned_model
from secfed.wire.layout import State


class CentralStudy:
    """A study at the study centre, before anything is opened.

    ``only`` these of its sites are asked; ``removed`` were in the roster.

    Raises:
        RosterError: a site of the study is not enrolled.
        ConfigError: pieces that do not fit together, too few sites, or a ``model.start`` that cannot be used.
    """

    def __init__(
        self,
        study: Study,
        roster: Roster,
        only: Sequence[SiteId] | None = None,
        *,
        removed: Collection[SiteId] = (),
    ) -> None:
        self.study, self.roster, self.id = study, roster, study_id(study)
        self.names = tuple(sorted(build_data(study).sites))
        strangers = [name for name in self.names if name not in roster.sites]
        gone = [name for name in strangers if name in removed]
        if gone:
            raise RosterError(
                f"data.sites: {', '.join(gone)}: removed from the roster of this consortium",
                remedy="leave them out of the study, or admit them anew",
            )
        if strangers:
            raise RosterError(
                f"data.sites: not in the roster of this consortium: {', '.join(strangers)}",
                remedy=f"admit them, or use the enrolled names: {', '.join(roster.sites)}",
            )
        for name in only or ():
            if name not in self.names:
                sites = ", ".join(self.names)
                raise ConfigError(f"--sites: the study has no site {name!r}", remedy=f"its sites are {sites}")
        chosen = self.names if only is None else only
        self.asked = tuple(name for name in roster.sites if name in chosen)  # in roster order
        study.check_roster(len(self.names))
        if len(self.asked) < study.protection.min_cohort:
            raise ConfigError(
                f"--sites: names {len(self.asked)} of the sites, and protection.min_cohort is "
                f"{study.protection.min_cohort}",
                remedy="name more sites",
            )
        left_out, most = len(self.names) - len(self.asked), study.protection.max_dropouts
        if most is not None and left_out > most:
            raise ConfigError(
                f"--sites: leaves out {left_out} of the sites, and protection.max_dropouts is {most}",
                remedy="name more sites",
            )
        self.algorithm: Algorithm = with_privacy(study, build(study), self.names)
        self.protection = make_protection(study.protection, self.algorithm, study.rounds, self.names)
        # None for the seed's, and where only the sites run the server program: each has the model at home.
        self.start: State | None = None
        if self.protection.traits.aggregator_reads_sums:
            self.start = load_initial_model(study, self.algorithm)
        else:
            pinned_model(study)
        if isinstance(self.protection, OpenedAtSites) and self.protection.holder not in self.asked:
            raise ConfigError(
                f"--sites: leaves out {self.protection.holder}, which makes the study key",
                remedy="name it too, or set protection.key_holder",
            )

    def threshold(self, cohort: int) -> int:
        """Answers that a cohort needs which lacks none of the sites but those that are not asked at all."""
        rules = self.study.protection
        members = min(cohort + len(self.names) - len(self.asked), rules.asked_of(len(self.names)))
        return threshold(rules, len(self.roster.sites), cohort, members)
