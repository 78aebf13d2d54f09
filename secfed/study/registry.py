"""Names of the study file to code: algorithms, models, data sets, and a user's own.

A built-in algorithm registers itself (:mod:`secfed.algorithms.framework.registry`); a model or data set is a
line here. A user's own is ``name = "package.module:factory"``; the other keys of the table are its arguments:

* ``[data]``: ``factory(**options)`` gives a data set (:class:`~secfed.algorithms.data.memory.SiteTables`
  is the short way; :class:`~secfed.algorithms.framework.datasets.LabelledData` is what is required);
* ``[model]``: ``factory(input_shape, classes, **options)`` gives a ``torch.nn.Module``;
* ``[algorithm]``: ``factory(setting, **options)`` gives an
  :class:`~secfed.algorithms.framework.base.Algorithm`; a class with ``options_type`` is made with (setting,
  options), and its table is checked like a built-in's. What its sites draw in their own work takes
  ``setting.local_seed``, what all parties agree on ``study.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn

from secfed.algorithms.data import notes, pool
from secfed.algorithms.data.base import DataOptions
from secfed.algorithms.data.image_text import chest_synthetic, medpix, mimic_cxr, ophthalmology
from secfed.algorithms.data.image_text import files as image_text_files
from secfed.algorithms.data.image_text import options as image_text_options
from secfed.algorithms.data.multiview import digits, fashion, sets
from secfed.algorithms.data.multiview import options as multiview_options
from secfed.algorithms.data.tabular import column_options, column_sets, heart_disease, table
from secfed.algorithms.data.tabular import options as table_options
from secfed.algorithms.data.transfer import files as transfer_files
from secfed.algorithms.data.transfer import flickr, scenes
from secfed.algorithms.data.transfer import options as transfer_options
from secfed.algorithms.data.volumes import folders as volume_folders
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.registry import RegistryEntry, find_algorithms
from secfed.algorithms.models import dual_encoder_options, linear_head, multiview, networks, note_encoder
from secfed.algorithms.models.transfer_options import TransferTransformerOptions
from secfed.config.plugins import check_arguments, is_user_code, load_factory
from secfed.config.schema import ModelOptions, Options, OwnModelOptions, OwnOptions, checked, suggestion
from secfed.errors import ConfigError


def _no_classifier(*_: object) -> nn.Module:
    raise ConfigError(
        "model.name: this model embeds images and texts, and the algorithm trains a classifier",
        remedy='train "vision-language" with feddra, fedrgb or a vlp-... algorithm, "transfer-transformer" '
        "with fedcola, or use another model",
    )


def _no_network(*_: object) -> nn.Module:
    raise ConfigError(
        'model.name: "none" is no network to train', remedy="keep it for canonical, or use another model"
    )


# build(setting, options) -> Algorithm
ALGORITHMS: Mapping[str, RegistryEntry] = find_algorithms()

# build(input_shape, classes, options) -> torch.nn.Module
MODELS: Mapping[str, RegistryEntry] = {
    "none": RegistryEntry(ModelOptions, _no_network),
    "linear-head": RegistryEntry(linear_head.LinearHeadOptions, linear_head.linear_head),
    "logistic-regression": RegistryEntry(ModelOptions, networks.logistic_regression),
    "multiview": RegistryEntry(multiview.MultiviewModelOptions, multiview.MultiviewNetwork),
    "note-encoder": RegistryEntry(note_encoder.NoteEncoderOptions, note_encoder.note_encoder),
    "mlp": RegistryEntry(networks.MlpOptions, networks.mlp),
    "small-cnn": RegistryEntry(networks.SmallCnnOptions, networks.small_cnn),
    "transfer-transformer": RegistryEntry(TransferTransformerOptions, _no_classifier),
    "vision-language": RegistryEntry(dual_encoder_options.VisionLanguageOptions, _no_classifier),
}


def _bundled(options: type[DataOptions], build: Callable[[Any, int], Any]) -> RegistryEntry:
    """A data set that no file beside the study belongs to."""
    return RegistryEntry(options, lambda chosen, seed, _: build(chosen, seed))


# build(options, seed, folder of the study file) -> FederatedData
DATASETS: Mapping[str, RegistryEntry] = {
    "breast-cancer": _bundled(pool.PoolOptions, pool.breast_cancer),
    "digits": _bundled(pool.DigitsOptions, pool.digits),
    "mixture": _bundled(pool.MixtureOptions, pool.mixture),
    "csv": RegistryEntry(
        table_options.TableOptions,
        lambda options, seed, folder: table.table_data(options, folder / options.path, seed),
    ),
    "multiview": RegistryEntry(multiview_options.MultiviewOptions, sets.multiview),
    "notes": RegistryEntry(notes.NotesOptions, notes.notes),
    "mnist-usps": RegistryEntry(multiview_options.MnistUspsOptions, sets.mnist_usps),
    "bdgp": RegistryEntry(multiview_options.BdgpOptions, sets.bdgp),
    "multi-fashion": RegistryEntry(multiview_options.MultiFashionOptions, fashion.multi_fashion),
    "nuswide": RegistryEntry(multiview_options.NuswideOptions, sets.nuswide),
    "chest-synthetic": _bundled(chest_synthetic.ChestSyntheticOptions, chest_synthetic.ChestSynthetic),
    "image-text": RegistryEntry(image_text_options.ImageTextOptions, image_text_files.image_text),
    "medpix": RegistryEntry(medpix.MedpixOptions, medpix.medpix),
    "mimic-cxr": RegistryEntry(mimic_cxr.MimicCxrOptions, mimic_cxr.mimic_cxr),
    "ophthalmology": RegistryEntry(ophthalmology.OphthalmologyOptions, ophthalmology.ophthalmology),
    "scenes": _bundled(transfer_options.ScenesOptions, scenes.SceneSites),
    "flickr-transfer": RegistryEntry(transfer_options.FlickrTransferOptions, flickr.FlickrTransfer),
    "transfer-files": RegistryEntry(transfer_options.TransferFilesOptions, transfer_files.TransferFiles),
    "digits-views": RegistryEntry(multiview_options.DigitsViewsOptions, digits.digits_views),
    "heart-disease": _bundled(heart_disease.HeartDiseaseOptions, heart_disease.heart_disease),
    "volumes": RegistryEntry(volume_folders.VolumesOptions, volume_folders.volumes),
    "volume-table": RegistryEntry(volume_folders.VolumeTableOptions, volume_folders.VolumeTable),
    "columns": RegistryEntry(column_options.ColumnsOptions, column_sets.columns),
    "heart-table": _bundled(column_sets.HeartTableOptions, column_sets.heart_table),
    "diabetes-table": _bundled(column_sets.BundledTableOptions, column_sets.diabetes_table),
    "breast-cancer-table": _bundled(column_sets.BundledTableOptions, column_sets.breast_cancer_table),
}

# Table of the study file: its built-ins, and how many positional arguments a user's factory gets.
KINDS: Mapping[str, tuple[Mapping[str, RegistryEntry], int]] = {
    "algorithm": (ALGORITHMS, 1),
    "model": (MODELS, 2),
    "data": (DATASETS, 0),
}


def resolve(kind: str, section: Mapping[str, Any], own_code: Collection[str] | None) -> Options:
    """Validate ``[algorithm]``, ``[model]`` or ``[data]``; ``own_code`` as in ``Study.parse``."""
    entries, given = KINDS[kind]
    name = section.get("name")
    if not isinstance(name, str):
        what = "is missing" if name is None else f"must be a text, not {name!r}"
        raise ConfigError(f"{kind}.name: {what}", remedy=suggestion("", entries, "use one of: "))
    if is_user_code(name):
        _check_permitted(f"{kind}.name", name, own_code)
        factory = load_factory(name, f"{kind}.name")
        declared: type[Options] | None = getattr(factory, "options_type", None)
        if kind == "algorithm" and declared is not None:
            return _all_permitted(kind, checked(declared, section, kind), own_code)
        options = checked(OwnModelOptions if kind == "model" else OwnOptions, section, kind)
        check_arguments(factory, given, options.arguments, kind)
        return options
    if name not in entries:
        hint = suggestion(name, entries, "use one of: ")
        stop = "" if hint.endswith("?") else "."
        raise ConfigError(
            f"{kind}.name: there is no {name!r}",
            remedy=f"{hint}{stop} Name code of your own as package.module:factory",
        )
    return _all_permitted(kind, checked(entries[name].options, section, kind), own_code)


def _all_permitted(kind: str, options: Options, own_code: Collection[str] | None) -> Options:
    for key, name in options.own_factories.items():
        _check_permitted(f"{kind}.{key}", name, own_code)
    return options


def _check_permitted(key: str, name: str, own_code: Collection[str] | None) -> None:
    if own_code is not None and name not in own_code:
        raise ConfigError(
            f"{key}: {name!r} is not permitted here",
            remedy="the administrator of this machine can permit it after reading the code",
        )


def site_ids(data: Options) -> tuple[SiteId, ...] | None:
    """The sites that a ``[data]`` table names, or None when only a user's factory knows them."""
    return data.site_ids() if isinstance(data, DataOptions) else None
