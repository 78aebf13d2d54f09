"""What a study builds: algorithm, data and model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from secfed.algorithms.data.base import DataOptions
from secfed.algorithms.framework.base import Algorithm
from secfed.algorithms.framework.datasets import FederatedData
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.setting import Setting
from secfed.config.plugins import is_user_code, make
from secfed.config.schema import Options, OwnOptions
from secfed.dp.accounting.unit import Adjacency, no_patients
from secfed.errors import ConfigError
from secfed.study.registry import KINDS

if TYPE_CHECKING:
    from secfed.study.study import Study


def build(study: Study, *, site_seed: int | None = None, data: FederatedData | None = None) -> Algorithm:
    """The study's algorithm, bound to its data set and model.

    No record is read until a site's program is asked for: the aggregator builds the same object.
    ``site_seed`` is that of a site's own work (``Setting.local_seed``); None takes the study's. ``data`` is
    another data set than the study's, for comparisons.

    ConfigError: pieces that do not fit together, a relation that hides patients on a built-in data set that
    does not name them, or a ``model.start`` that the algorithm has no use for.
    """
    data = build_data(study) if data is None else data
    study.check_roster(len(data.sites))
    setting = Setting(study=study, data=data, model=lambda: build_model(study, setting), site_seed=site_seed)
    algorithm: Algorithm = _make("algorithm", study.algorithm, (setting,), (setting, study.algorithm))
    hides = None if study.privacy is None else study.privacy.privacy_unit.adjacency
    known = not isinstance(study.data, DataOptions) or study.data.names_patients
    if hides is Adjacency.REPLACE_PATIENT and not known:
        raise no_patients()  # a user's own data set is asked when a site plans its work
    if study.protection.sites_per_round is not None and not algorithm.samples_sites:
        raise ConfigError(
            f"protection.sites_per_round: {study.algorithm.name} says by itself which sites a round asks",
            remedy="remove it (fmcsc and fedcola have algorithm.participation), or use fedavg or one of its "
            "kind; your own sets samples_sites, see secfed.algorithms.framework.base",
        )
    if study.model.start is not None and not algorithm.warm_start:
        raise ConfigError(
            f"model.start: {study.algorithm.name} cannot begin with a model from a file",
            remedy="remove model.start and model.start_sha256, or use fedavg, fedprox, fedcola or a "
            "vision-language algorithm; your own sets warm_start, see secfed.algorithms.framework.base",
        )
    return algorithm


def build_data(study: Study) -> FederatedData:
    """The study's data set."""
    data = _make("data", study.data, (), (study.data, study.seed, study.folder))
    if not isinstance(data, FederatedData) or not isinstance(data.sites, tuple):
        raise ConfigError(
            f"data.name: {study.data.name!r} gives no data set",
            remedy="return a SiteTables, or an object as in secfed.algorithms.framework.datasets",
        )
    if study.privacy is not None and study.privacy.hides_records:
        # A user's own data set without this method owes what the method checks.
        by_itself = getattr(data, "for_record_privacy", None)
        slots = study.privacy.privacy_unit.adjacency.keeps_slots
        return data if by_itself is None else by_itself(slots=slots)
    return data


def build_model(study: Study, setting: Setting) -> nn.Module:
    """The study's model, with initial parameters that depend on the study's seed only.

    ConfigError: the model does not fit the records, or a user's factory gives something else.
    """
    data = setting.labelled()
    shape = (data.input_shape, data.classes)
    with seeded(study.seed, "initial model"):
        model = _make("model", study.model, shape, (*shape, study.model))
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.name: {study.model.name!r} gives no torch.nn.Module", remedy="return the module"
        )
    return model


def _make(kind: str, options: Options, own: tuple[Any, ...], built_in: tuple[Any, ...]) -> Any:
    if isinstance(options, OwnOptions):
        return make(options.name, f"{kind}.name", *own, **options.arguments)
    if is_user_code(options.name):  # a class with options of its own
        return make(options.name, f"{kind}.name", *built_in)
    return KINDS[kind][0][options.name].build(*built_in)
