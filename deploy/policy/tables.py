"""The tables of a policy, read: what a hospital permits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

from secfed.deploy.policy.rules import Rules
from secfed.deploy.policy.sections import Compute, DataSet, PrivacyRules, ProtectionRules, Studies
from secfed.deploy.policy.time_windows import Window

if TYPE_CHECKING:
    from secfed.study.study import Study


@dataclass(frozen=True)
class PolicyTables:
    """What a policy says, table by table."""

    approve: Literal["manual", "automatic"]
    studies: Studies
    protection: ProtectionRules
    privacy: PrivacyRules
    compute: Compute
    algorithms: Mapping[str, Rules] = field(default_factory=dict)
    models: Mapping[str, Rules] = field(default_factory=dict)
    data: tuple[DataSet, ...] = ()
    hours: tuple[Window, ...] = ()  # empty for always
    zone: ZoneInfo | None = None  # of the hours; None for the machine's own

    def data_set(self, study: Study) -> DataSet | None:
        """The data set that a study means; None if the policy names none that fits."""
        table = study.data.model_dump()
        return next((item for item in self.data if item.matches(table)), None)
