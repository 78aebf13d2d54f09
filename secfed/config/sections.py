"""The sections of a study file that every layer reads: [study] and [protection]."""

from __future__ import annotations

from typing import Final, Literal, Self, get_args

from pydantic import Field, model_validator

from secfed.config.protections import CLOSED, TRAITS, ProtectionName, ProtectionTraits, Reveal
from secfed.config.schema import LATER, OPERATIONAL, Strict
from secfed.crypto import thresholds
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.masked.graph import DROPOUT_RATE, SparseGraph
from secfed.errors import ConfigError, RangeError

BROADCAST_BOUND: Final = 1e6  # of every number in a broadcast, where the study names no other
PROTECTIONS: Final[tuple[ProtectionName, ...]] = get_args(ProtectionName)

_LEAST_SITES: Final = 2  # a "sum" over one site is that site's update


class StudySection(Strict):
    """``[study]``."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="a name for files: lower-case letters, digits and hyphens, at most 63",
    )
    rounds: int = Field(ge=0, le=1_000_000, description="the number of training rounds; 0 only evaluates")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="the seed of partition, split, initial model and batch order"
    )
    purpose: str = Field(
        default="",
        max_length=500,
        json_schema_extra=LATER,
        description="what the study is for, in a sentence: people at hospitals read it before they approve",
    )


class ProtectionSection(Strict):
    """``[protection]``: how summands become totals."""

    name: ProtectionName = Field(default="masked", description="one of " + ", ".join(PROTECTIONS))
    reveal: Reveal = Field(
        default="aggregator",
        json_schema_extra=LATER,
        description='who reads the sums: "aggregator", or "sites" (closed sums); only for masked',
    )
    bits: int = Field(
        default=32, ge=8, le=32, description="8 to 32: bits on the wire per element of a tensor"
    )
    bound: float = Field(
        default=4.0,
        gt=0,
        le=2.0**64,
        description="above 0: the largest element of one site's weighted update",
    )
    broadcast_bound: float = Field(
        default=BROADCAST_BOUND,
        gt=0,
        le=2.0**64,
        json_schema_extra=LATER,
        description="above 0: the largest number in a broadcast; sites refuse another one unseen",
    )
    min_cohort: int = Field(
        default=3, ge=1, description="the least number of sites in a sum, normally 3 or more"
    )
    threshold: int | None = Field(
        default=None, ge=1, description="the number of sites that must answer; leave it out for the default"
    )
    max_dropouts: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra=LATER,
        description="how many of the sites that an exchange plans for may be missing in its sum; without it "
        "only min_cohort and threshold count",
    )
    sites_per_round: int | None = Field(
        default=None,
        ge=_LEAST_SITES,
        json_schema_extra=LATER,
        description="how many sites, drawn by the study's digest, train in a round; left out, all",
    )
    colluders: int | None = Field(
        default=None,
        ge=0,
        description="how many sites may collude with the server; default ceil(n/3) - 1",
    )
    graph: Literal["complete", "sparse"] = Field(
        default="complete",
        json_schema_extra=LATER,
        description='"complete" or "sparse": fewer masks, for cohorts above a hundred; only for masked',
    )
    keystream: Literal["chacha20", "aes-256-ctr"] = Field(
        default="chacha20",
        json_schema_extra=LATER,
        description='"chacha20" or "aes-256-ctr": what makes masks; only for masked',
    )
    dropout_rate: float = Field(
        default=DROPOUT_RATE,
        ge=0,
        le=0.5,
        json_schema_extra=LATER,
        description="0 to 0.5: the share of sites whose dropping out at random a sparse graph must survive",
    )
    key_mode: Literal["public", "symmetric"] = Field(
        default="public", description='"public" or "symmetric"; only for encrypted'
    )
    key_holder: str | None = Field(
        default=None,
        description="the site that makes the study key; default the first; only where sites open the sums",
    )
    scheme: Literal["bfv", "ckks"] = Field(
        default="bfv", description='"bfv" (exact) or "ckks" (approximate); only for encrypted'
    )
    processes: int = Field(
        default=0,
        ge=0,
        le=64,
        json_schema_extra=OPERATIONAL,
        description="worker processes per site for encryption, 0 for none",
    )
    deadline_s: float = Field(
        default=600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="above 0: seconds a site has to answer",
    )

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> Self:
        for other in PROTECTIONS:
            for key in TRAITS[other].own_options:
                unused = key not in self.traits.own_options
                if unused and getattr(self, key) != type(self).model_fields[key].default:
                    closed = self.name == "masked" and key in TRAITS[CLOSED].own_options
                    raise ConfigError(
                        f"protection.{key}: has no effect under {self.name} protection"
                        + (" whose sums the aggregator reads" if closed else ""),
                        remedy=f'remove it, or set protection.name = "{other}"'
                        + (' or protection.reveal = "sites"' if closed else ""),
                    )
        if self.sites_per_round is not None and not self.traits.aggregator_reads_sums:
            raise ConfigError(
                f"protection.sites_per_round: where only the sites read sums ({self.kind}) they keep the "
                "model, and one that the last rounds do not ask would be left with an older one",
                remedy='set protection.name = "masked" and protection.reveal = "aggregator", or remove it',
            )
        if self.graph == "complete" and self.dropout_rate != DROPOUT_RATE:
            raise ConfigError(
                "protection.dropout_rate: has no effect in a complete graph",
                remedy='remove it, or set protection.graph = "sparse"',
            )
        return self

    @property
    def traits(self) -> ProtectionTraits:
        """What follows from the choice of this protection."""
        return TRAITS[self.kind]

    @property
    def sparse_graph(self) -> SparseGraph | None:
        """How masks are shared; None for the complete graph."""
        return SparseGraph(self.dropout_rate) if self.graph == "sparse" else None

    @property
    def cipher(self) -> StreamCipher:
        """What makes masks."""
        return StreamCipher(self.keystream)

    @property
    def kind(self) -> str:
        """Its name in records and reports; masked sums that sites open are ``closed`` there."""
        return CLOSED if self.name == "masked" and self.reveal == "sites" else self.name

    def asked_of(self, sites: int) -> int:
        """How many of so many sites one round asks."""
        return sites if self.sites_per_round is None else min(sites, self.sites_per_round)

    def colluders_for(self, sites: int) -> int:
        """Colluding sites tolerated in a study of ``sites``, or in a cohort of so many."""
        if self.colluders is not None:
            return self.colluders
        return thresholds.default_colluders(self.asked_of(sites))

    def tolerated_colluders(self, sites: int) -> int | None:
        """Sites of a cohort of ``sites`` that may collude with the aggregator and still learn only sums.

        0 where every site holds the key that opens uploads; None where the aggregator sees every update.
        """
        if not self.traits.hides_sites:
            return None
        return self.colluders_for(sites) if self.traits.opened_by_shares else 0

    def threshold_for(self, sites: int) -> int:
        """Sites that must answer in a study of ``sites``, or in a cohort of so many."""
        if self.threshold is not None:
            return self.threshold
        return thresholds.default_threshold(self.asked_of(sites))

    def check_cohort(self, sites: int) -> None:
        """ConfigError, with the key, if a study of this many sites cannot be summed under these rules."""
        if sites < _LEAST_SITES:
            raise ConfigError(
                "data.sites: a cohort of one site would reveal that site's update",
                remedy="a study needs at least two sites, and three unless protection.name is plain",
            )
        counted, more = "the number of sites", "add sites"
        if self.sites_per_round is not None:
            if self.sites_per_round >= sites:
                raise ConfigError(
                    f"protection.sites_per_round: {self.sites_per_round} has no effect among {sites} sites",
                    remedy="remove it, or lower it",
                )
            # From here on the sites of one sum count, wherever they come from.
            sites = self.sites_per_round
            counted, more = "protection.sites_per_round", "raise protection.sites_per_round"
        least = self.traits.least_cohort
        if self.min_cohort < least:
            raise ConfigError(
                f"protection.min_cohort: {self.min_cohort} is below {least}, the least for {self.name}",
                remedy=f"set protection.min_cohort = {least} or more",
            )
        if self.min_cohort > sites:
            raise ConfigError(
                f"protection.min_cohort: {self.min_cohort} is above {counted}, {sites}",
                remedy=f"lower protection.min_cohort or {more}"
                if sites >= least
                else f"{more}: a sum under {self.name} protection needs at least {least}",
            )
        if self.threshold is not None and self.threshold > sites:
            raise ConfigError(
                f"protection.threshold: {self.threshold} is above {counted}, {sites}",
                remedy="lower protection.threshold, or leave it out for the default",
            )
        least = max(self.min_cohort, self.threshold or 0)
        if self.max_dropouts is not None and sites - self.max_dropouts <= least:
            raise ConfigError(
                f"protection.max_dropouts: {self.max_dropouts} of {sites} sites has no effect where {least} "
                "must be in a sum anyway",
                remedy="remove it, or lower it",
            )
        threshold, colluders = self.threshold_for(sites), self.colluders_for(sites)
        if self.traits.opened_by_shares and not thresholds.is_safe(threshold, sites, colluders):
            key = "threshold" if self.threshold is not None else "colluders"
            needed = max(thresholds.FLOOR, (sites + colluders) // 2 + 1)
            raise ConfigError(
                f"protection.{key}: {threshold} answers of {sites} sites do not keep one site's update safe "
                f"from the aggregator with {colluders} of the others (2 * threshold must exceed "
                f"sites + colluders, and threshold must be at least {thresholds.FLOOR})",
                remedy=f"set protection.threshold = {needed}"
                if needed <= sites
                else f"lower protection.colluders or {more}",
            )
        # First whether the bits leave room for so many sites, whatever the bound.
        for key, bound in (("bits", 1.0), ("bound", self.bound)):
            try:
                FixedPoint.choose(bound=bound, bits=self.bits, sites=sites)
            except RangeError as error:
                remedy = (error.remedy or "").replace("the bound", "protection.bound")
                raise ConfigError(
                    f"protection.{key}: {error.message}",
                    remedy="raise protection.bits" if key == "bits" else remedy,
                ) from None
