"""Names of the study file to code: algorithms, models, data sets, and a user's own.

A built-in is an :class:`Entry`: the model of its options and a builder. Adding one is a line here. A
user's own is ``name = "package.module:factory"``; the other keys of the table are its arguments:

* ``[data]``: ``factory(**options)`` gives a data set (:class:`~secfed.algorithms.data.memory.SiteTables`
  is the short way; :class:`~secfed.algorithms.data.base.LabelledData` is what is required);
* ``[model]``: ``factory(input_shape, classes, **options)`` gives a ``torch.nn.Module``;
* ``[algorithm]``: ``factory(setting, **options)`` gives an :class:`~secfed.algorithms.base.Algorithm`. What
  its sites draw in their own work takes ``setting.local_seed``, what all parties agree on ``study.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from secfed.algorithms import (
    fedavg,
    fedavg_options,
    fedcola,
    fedcola_options,
    feddra,
    fedprox,
    fedrgb,
    fedrgb_options,
    fmcsc,
    fmcsc_options,
    vlp_averaging,
    vlp_ema,
    vlp_ldawa,
    vlp_moon,
)
from secfed.algorithms.base import Algorithm
from secfed.algorithms.data import (
    chest_synthetic,
    digits_views,
    flickr_transfer,
    heart_disease,
    image_text_files,
    image_text_options,
    medpix,
    mimic_cxr,
    multiview_options,
    multiview_sets,
    ophthalmology,
    pool,
    scenes,
    table,
    table_options,
    transfer_files,
    transfer_options,
)
from secfed.algorithms.data.base import FederatedData, SiteId
from secfed.algorithms.models import dual_encoder_options, multiview, networks
from secfed.algorithms.models.transfer_options import TransferTransformerOptions
from secfed.algorithms.options import ModelOptions, Options, OwnModelOptions, OwnOptions, checked, suggestion
from secfed.algorithms.own import check_arguments, is_own, load_factory, make
from secfed.algorithms.randomness import seeded
from secfed.algorithms.setting import Setting
from secfed.dp.unit import Adjacency, no_patients
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.study import Study


@dataclass(frozen=True)
class Entry:
    """One built-in.

    Attributes:
        options: validates its table.
        build: makes it; see the registry for the arguments.
    """

    options: type[Options]
    build: Callable[..., Any]


def _no_classifier(*_: object) -> nn.Module:
    raise ConfigError(
        "model.name: this model embeds images and texts, and the algorithm trains a classifier",
        remedy='train "vision-language" with feddra, fedrgb or a vlp-... algorithm, "transfer-transformer" '
        "with fedcola, or use another model",
    )


# build(setting, options) -> Algorithm
ALGORITHMS: Mapping[str, Entry] = {
    "fedavg": Entry(fedavg_options.FedAvgOptions, fedavg.FedAvg),
    "fedprox": Entry(fedprox.FedProxOptions, fedprox.FedProx),
    "fmcsc": Entry(fmcsc_options.FmcscOptions, fmcsc.Fmcsc),
    "fedcola": Entry(fedcola_options.FedColaOptions, fedcola.FedCola),
    "feddra": Entry(feddra.FedDraOptions, feddra.FedDra),
    "vlp-fedavg": Entry(vlp_averaging.VlpFedAvgOptions, vlp_averaging.VlpFedAvg),
    "fedrgb": Entry(fedrgb_options.FedRgbOptions, fedrgb.FedRgb),
    "vlp-fedprox": Entry(vlp_averaging.VlpFedProxOptions, vlp_averaging.VlpFedProx),
    "vlp-fedmoon": Entry(vlp_moon.VlpMoonOptions, vlp_moon.VlpMoon),
    "vlp-fedema": Entry(vlp_ema.VlpEmaOptions, vlp_ema.VlpEma),
    "vlp-fedldawa": Entry(vlp_ldawa.VlpLdawaOptions, vlp_ldawa.VlpLdawa),
}

# build(input_shape, classes, options) -> torch.nn.Module
MODELS: Mapping[str, Entry] = {
    "logistic-regression": Entry(ModelOptions, networks.logistic_regression),
    "multiview": Entry(multiview.MultiviewModelOptions, multiview.MultiviewNetwork),
    "mlp": Entry(networks.MlpOptions, networks.mlp),
    "small-cnn": Entry(networks.SmallCnnOptions, networks.small_cnn),
    "transfer-transformer": Entry(TransferTransformerOptions, _no_classifier),
    "vision-language": Entry(dual_encoder_options.VisionLanguageOptions, _no_classifier),
}

# build(options, seed, folder of the study file) -> FederatedData
DATASETS: Mapping[str, Entry] = {
    "breast-cancer": Entry(pool.PoolOptions, lambda options, seed, _: pool.breast_cancer(options, seed)),
    "digits": Entry(pool.DigitsOptions, lambda options, seed, _: pool.digits(options, seed)),
    "csv": Entry(
        table_options.TableOptions,
        lambda options, seed, folder: table.table_data(options, folder / options.path, seed),
    ),
    "multiview": Entry(multiview_options.MultiviewOptions, multiview_sets.multiview),
    "mnist-usps": Entry(multiview_options.MnistUspsOptions, multiview_sets.mnist_usps),
    "bdgp": Entry(multiview_options.BdgpOptions, multiview_sets.bdgp),
    "chest-synthetic": Entry(
        chest_synthetic.ChestSyntheticOptions,
        lambda options, seed, _: chest_synthetic.ChestSynthetic(options, seed),
    ),
    "image-text": Entry(image_text_options.ImageTextOptions, image_text_files.image_text),
    "medpix": Entry(medpix.MedpixOptions, medpix.medpix),
    "mimic-cxr": Entry(mimic_cxr.MimicCxrOptions, mimic_cxr.mimic_cxr),
    "ophthalmology": Entry(ophthalmology.OphthalmologyOptions, ophthalmology.ophthalmology),
    "scenes": Entry(
        transfer_options.ScenesOptions, lambda options, seed, _: scenes.SceneSites(options, seed)
    ),
    "flickr-transfer": Entry(transfer_options.FlickrTransferOptions, flickr_transfer.FlickrTransfer),
    "transfer-files": Entry(transfer_options.TransferFilesOptions, transfer_files.TransferFiles),
    "digits-views": Entry(multiview_options.DigitsViewsOptions, digits_views.digits_views),
    "heart-disease": Entry(
        heart_disease.HeartDiseaseOptions,
        lambda options, seed, _: heart_disease.heart_disease(options, seed),
    ),
}

# Table of the study file: its built-ins, and how many positional arguments a user's factory gets.
KINDS: Mapping[str, tuple[Mapping[str, Entry], int]] = {
    "algorithm": (ALGORITHMS, 1),
    "model": (MODELS, 2),
    "data": (DATASETS, 0),
}


def resolve(kind: str, section: Mapping[str, Any], own_code: Collection[str] | None) -> Options:
    """Validate the table ``[algorithm]``, ``[model]`` or ``[data]``.

    Args:
        kind: which of the three.
        section: its keys and values.
        own_code: names of factories that may be imported; None permits all.

    Raises:
        ConfigError: names the key and the remedy.
    """
    entries, given = KINDS[kind]
    name = section.get("name")
    if not isinstance(name, str):
        what = "is missing" if name is None else f"must be a text, not {name!r}"
        raise ConfigError(f"{kind}.name: {what}", remedy=suggestion("", entries, "use one of: "))
    if is_own(name):
        if own_code is not None and name not in own_code:
            raise ConfigError(
                f"{kind}.name: {name!r} is not permitted here",
                remedy="the administrator of this machine can permit it after reading the code",
            )
        options = checked(OwnModelOptions if kind == "model" else OwnOptions, section, kind)
        check_arguments(load_factory(name, f"{kind}.name"), given, options.arguments, kind)
        return options
    if name not in entries:
        hint = suggestion(name, entries, "use one of: ")
        raise ConfigError(
            f"{kind}.name: there is no {name!r}", remedy=f"{hint}; your own is package.module:factory"
        )
    return checked(entries[name].options, section, kind)


def site_ids(data: Options) -> tuple[SiteId, ...] | None:
    """The sites that a ``[data]`` table names, or None when only a user's factory knows them."""
    return data.site_ids() if isinstance(data, pool.DataOptions) else None


def build(study: Study, *, site_seed: int | None = None) -> Algorithm:
    """The study's algorithm, bound to its data set and model.

    No record is read until a site's program is asked for: the aggregator builds the same object.

    Args:
        study: the study.
        site_seed: of this site's own work in it, see :attr:`~secfed.algorithms.setting.Setting.local_seed`;
            None takes the study's.

    Raises:
        ConfigError: pieces that do not fit together, a relation that hides patients on a built-in data set
            that does not name them, or a ``model.start`` that the algorithm has no use for.
    """
    data = build_data(study)
    study.check_roster(len(data.sites))
    setting = Setting(study=study, data=data, model=lambda: build_model(study, setting), site_seed=site_seed)
    algorithm: Algorithm = _make("algorithm", study.algorithm, (setting,), (setting, study.algorithm))
    hides = None if study.privacy is None else study.privacy.privacy_unit.adjacency
    known = not isinstance(study.data, pool.DataOptions) or study.data.names_patients
    if hides is Adjacency.REPLACE_PATIENT and not known:
        raise no_patients()  # a user's own data set is asked when a site plans its work
    if study.model.start is not None and not hasattr(algorithm, "model_in"):
        raise ConfigError(
            f"model.start: {study.algorithm.name} cannot begin with a model from a file",
            remedy="remove model.start and model.start_sha256, or use fedavg, fedprox or a vision-language "
            "algorithm; your own needs model_in and begin, see secfed.algorithms.base",
        )
    return algorithm


def build_data(study: Study) -> FederatedData:
    """The study's data set.

    Raises:
        ConfigError: a user's factory gives something else.
    """
    folder: Path = study.folder
    data = _make("data", study.data, (), (study.data, study.seed, folder))
    if not isinstance(data, FederatedData) or not isinstance(data.sites, tuple):
        raise ConfigError(
            f"data.name: {study.data.name!r} gives no data set",
            remedy="return a SiteTables, or an object as in secfed.algorithms.data.base",
        )
    if study.privacy is not None and study.privacy.in_local_steps:
        # A user's own data set without this method owes what the method checks.
        by_itself = getattr(data, "for_record_privacy", None)
        slots = study.privacy.privacy_unit.adjacency.keeps_slots
        return data if by_itself is None else by_itself(slots=slots)
    return data


def build_model(study: Study, setting: Setting) -> nn.Module:
    """The study's model, with initial parameters that depend on the study's seed only.

    Raises:
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
    return KINDS[kind][0][options.name].build(*built_in)
