"""``[privacy]`` of the study file: what is protected, how much of it is spent, and what leaves without noise.

A study without this table has no differential privacy: protection hides one site's values from the
aggregator, and nothing bounds what the sums say about one record.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.dp.accounting.accountants import LEAST_DELTA, below_least
from secfed.dp.accounting.unit import Adjacency, PrivacyUnit, Unit
from secfed.errors import ConfigError


class PrivacySection(Strict):
    """``[privacy]``.

    ``epsilon`` and ``delta`` are for the whole study: every site chooses the noise that keeps all planned
    rounds within them, from its own number of records. What a site's budget leaves is the site's
    business and has the last word.
    """

    unit: Literal["record", "group", "site"] = Field(
        description='"record", "group" or "site": whom the guarantee hides'
    )
    epsilon: float = Field(gt=0, le=500, description="above 0: the guarantee of the whole study, at most 500")
    delta: float = Field(gt=0, lt=1, description="between 0 and 1, well below 1 / (records of a site)")
    clip_norm: float = Field(
        default=1.0, gt=0, description="above 0: the largest L2 norm of one unit (or one site's update)"
    )
    clip_quantile: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="between 0 and 1: let clip_norm follow this quantile of the gradient norms",
    )
    adjacency: (
        Literal["add-or-remove-record", "replace-record", "replace-patient", "zero-out-site", "replace-site"]
        | None
    ) = Field(default=None, description="the relation of neighbours; leave it out for the unit's usual one")
    accountant: Literal["pld", "prv", "rdp"] = Field(default="pld", description='"pld", "prv" or "rdp"')
    engine: Literal["auto", "hooks", "ghost", "loop"] = Field(
        default="auto",
        description='"auto" ("ghost" where it fits, else "hooks"), "hooks", "ghost" or "loop": how gradients '
        'are clipped in local steps; "loop" in sums',
    )
    group_size: int | None = Field(
        default=None, ge=2, description='records per group, at least 2; only for unit = "group"'
    )
    noise: Literal["site", "sum"] | None = Field(
        default=None,
        description='"site" (each hospital adds all of the noise and trusts nobody) or "sum" (each adds a '
        'share, hidden by the secure sum); for unit = "record" and "group", by default "site"',
    )
    distribution: Literal["skellam", "discrete-gaussian"] = Field(
        default="skellam", description='"skellam" or "discrete-gaussian"; only for noise in the sum'
    )
    metrics: Literal["withheld", "private", "unprotected"] = Field(
        default="withheld",
        description='"withheld" (no metric leaves), "private" (noise, of the last model only) or '
        '"unprotected" (sums over records leave without noise, and the report says so)',
    )
    metrics_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description='for metrics = "private", between 0 and 1: their share of epsilon, or with noise in the '
        "sum of 1 / noise^2",
    )
    weights: Literal["withheld", "unprotected"] = Field(
        default="withheld",
        description='"withheld" or "unprotected" (the total number of records leaves without noise)',
    )

    @model_validator(mode="before")
    @classmethod
    def _read_former_name(cls, given: Any) -> Any:
        """``noise`` was once the name of ``distribution``, in study files and in records."""
        if isinstance(given, dict) and given.get("noise") in ("skellam", "discrete-gaussian"):
            if "distribution" in given:
                raise ConfigError(
                    f'privacy.noise: "{given["noise"]}" is a distribution; privacy.distribution names one',
                    remedy='set privacy.noise to "site" or "sum", or remove it',
                )
            return {"distribution": given["noise"], **{k: v for k, v in given.items() if k != "noise"}}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.privacy_unit  # noqa: B018  # refuses a relation that the unit does not support
        group, site = self.unit == "group", self.unit == "site"
        if group and self.group_size is None:
            raise ConfigError("privacy.group_size: is missing", remedy="set the records per group, 2 or more")
        needs = {
            "group_size": group,
            "noise": not site,
            "distribution": self.in_sum,
            "engine": self.in_local_steps or (not site and self.engine == "loop"),
            "clip_quantile": self.in_local_steps,
            "metrics_share": self.metrics == "private",
        }
        for key, fits in needs.items():
            if not fits and key in self.model_fields_set and getattr(self, key) is not None:
                why = f'unit = "{self.unit}"'
                if key == "metrics_share":
                    why = f'metrics = "{self.metrics}"'
                elif not site and key in ("distribution", "clip_quantile", "engine"):
                    why = f'noise = "{self.noise or "site"}"'
                raise ConfigError(f"privacy.{key}: has no effect with {why}", remedy="remove it")
        if group and "engine" in self.model_fields_set and self.engine not in ("auto", "loop"):
            raise ConfigError(
                f'privacy.engine: "{self.engine}" clips single records, not groups',
                remedy='remove it, or set privacy.engine = "loop"',
            )
        # Noise in the sum is accounted by formulas; noise in local steps may not be.
        accountant = "pld" if self.privacy_unit.adjacency.factor == 2 else self.accountant
        if self.in_local_steps and self.delta < LEAST_DELTA[accountant]:
            raise below_least(accountant, self.delta)
        if site and self.metrics == "private":
            raise ConfigError(
                'privacy.metrics: "private" releases noisy metrics under record-level privacy only',
                remedy='set privacy.metrics = "withheld" or "unprotected"',
            )
        if self.metrics == "private" and self.privacy_unit.adjacency is Adjacency.REPLACE_PATIENT:
            raise ConfigError(
                'privacy.metrics: "private" releases noisy sums over records, and a patient with several '
                "records would move them several times",
                remedy='set privacy.metrics = "withheld" or "unprotected"',
            )
        return self

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """Unit and relation; ConfigError for a relation that the unit does not support."""
        unit = Unit(self.unit)
        if self.adjacency is None:
            return PrivacyUnit.default(unit)
        try:
            return PrivacyUnit(unit, Adjacency(self.adjacency))
        except ConfigError as error:
            raise ConfigError(f"privacy.adjacency: {error.message}", remedy=error.remedy) from None

    def canonical(self) -> dict[str, Any]:
        """The table as plain values; without ``noise = "sum"`` as before that key had another meaning.

        Where there is nothing to choose, ``engine`` is called what its default once was.
        """
        table = self.model_dump(mode="json")
        if table["engine"] == "auto" and not (self.unit == "record" and self.in_local_steps):
            table["engine"] = "hooks"
        if self.noise != "sum":
            table["noise"] = table.pop("distribution")
        return table

    @property
    def in_sum(self) -> bool:
        """Whether every site adds a share of the noise, which is whole in their secure sum only."""
        return self.unit == "site" or self.noise == "sum"

    @property
    def in_local_steps(self) -> bool:
        """Whether records are protected where they are used, at the site, by all of the noise."""
        return not self.in_sum

    @property
    def hides_records(self) -> bool:
        """Whether a record, or a group of them, is what neighbouring data sets differ in."""
        return self.unit != "site"

    @property
    def budgeted(self) -> Unit:
        """Whom the guarantee hides: a record or a site."""
        return self.privacy_unit.adjacency.protects
