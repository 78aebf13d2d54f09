"""What an algorithm is given to work with: the study, the data set and a way to make the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from secfed.algorithms.data.base import FederatedData, LabelledData, SiteId
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.study import Study


@dataclass(frozen=True)
class Setting:
    """One study's ingredients; the same on every machine, except whose records ``data`` can read.

    Attributes:
        study: the validated study file.
        data: the data set.
        model: makes the study's model, with the same initial parameters every time.
    """

    study: Study
    data: FederatedData
    model: Callable[[], nn.Module]

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites of the study."""
        return self.data.sites

    def labelled(self) -> LabelledData:
        """The data set, for algorithms that train classifiers.

        Raises:
            ConfigError: its records carry no class labels.
        """
        if not isinstance(self.data, LabelledData):
            raise ConfigError(
                f"data.name: {self.study.algorithm.name} needs labelled records, "
                f"which {self.study.data.name} does not give",
                remedy="give it sites, input_shape, classes and site(); see secfed.algorithms.data.base",
            )
        return self.data
