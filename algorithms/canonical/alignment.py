"""Image-text alignment in closed form: canonical projections of the features of frozen encoders.

An image and its text are two views of a record. What they have in common is found by canonical correlation
analysis, from two secure sums: each view's moments, and the cross-covariance. The projections align the two
linearly, and an image is found by the cosine of what the projections make of it and of a text. Encoders are
public and stay as they are: no rounds of training, so there is no gradient to be clipped, and noise in the
sum has to hide a pair in two sums only.

Security: as :mod:`secfed.algorithms.canonical.algorithm`. The bound on what a pair adds holds whatever the
encoders are, so a site takes over those that are broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from secfed.algorithms.canonical import pair_scores
from secfed.algorithms.canonical.algorithm import CanonicalSums, check_privacy, check_protection, maps_of
from secfed.algorithms.canonical.alignment_plan import AlignmentPlan
from secfed.algorithms.canonical.alignment_site import AlignmentSite
from secfed.algorithms.canonical.options import AlignmentOptions, CanonicalOptions, ProjectionOptions
from secfed.algorithms.canonical.pair_features import PairFeatures
from secfed.algorithms.canonical.plan import CanonicalPlan
from secfed.algorithms.canonical.server import CanonicalServer
from secfed.algorithms.data.image_text.base import ImageTextData, ImageTextSite, check_image_text
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.framework.base import Metrics, SiteId
from secfed.algorithms.framework.parameters import check_shapes, shapes_of
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.server_state import MODEL
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.algorithms.models.study_encoders import StudyEncoders
from secfed.config.schema import OwnOptions
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State, Totals

# Keys of [model] that features depend on; "start" is refused elsewhere.
_ENCODERS = {
    *("name", "size", "image_weights", "text_weights", "image_tower", "text_tower"),
    *("gradient_checkpointing", "start"),
}


class AlignmentServer(CanonicalServer):
    """Moments and projections; images are view 0, texts view 1. Reads totals only."""

    def __init__(self, plan: CanonicalPlan, encoders: State) -> None:
        super().__init__(plan)
        self._encoders = {MODEL + name: value for name, value in encoders.items()}

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """What this exchange needs, and the encoders."""
        return {**super().broadcast(round_number, exchange), **self._encoders}

    def _projected(self) -> None:
        self._state["found"] = torch.ones_like(self._state["found"])

    def _scores(self, totals: Totals) -> Mapping[str, float]:
        return pair_scores.finish(totals)


@register("canonical-alignment", options=AlignmentOptions)
class CanonicalAlignment(CanonicalSums):
    """Canonical alignment, bound to one study."""

    def __init__(self, setting: Setting, options: AlignmentOptions) -> None:
        study, data = setting.study, setting.data
        if not isinstance(data, ImageTextData):
            raise ConfigError(
                f"data.name: canonical-alignment needs image-report pairs, which {study.data.name} does not "
                "give",
                remedy="use a set of pairs, for example chest-synthetic or image-text",
            )
        check_protection(study.protection)
        self.setting, self.options, self.pairs = setting, options, data
        self.maps = maps_of(options, 2)
        self._check()
        self._encoders = None if study.model.name == "none" else StudyEncoders(study, data)
        shapes = None if self._encoders is None else self._encoders.shapes
        self._names: tuple[str, ...] = () if shapes is None else tuple(shapes.encoder_names)
        self._shapes = {} if shapes is None else shapes_of(dict(shapes.named_parameters()))
        features = PairFeatures.of(data, shapes, options.image_cells)
        sizes = tuple(
            one.size(size, view)
            for view, (one, size) in enumerate(zip(self.maps, features.sizes, strict=True), start=1)
        )
        shared = options.model_dump(include={*ProjectionOptions.model_fields, "noise_ridge"} - {"name"})
        self.plan: AlignmentPlan = AlignmentPlan(
            options=CanonicalOptions(name="canonical", **shared),
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            privacy=study.privacy,
            view_of=dict.fromkeys(data.sites),
            raw_sizes=features.sizes,
            sizes=sizes,
            standardised=(False, False),
            clusters=0,
            dimensions=min(options.dimensions, *sizes),
            features=features,
            evaluation_batch=options.evaluation_batch,
        )

    def _check(self) -> None:
        study = self.setting.study
        model, privacy = study.model, study.privacy
        if model.name != "none" and not isinstance(model, VisionLanguageOptions | OwnOptions):
            raise ConfigError(
                f"model.name: canonical-alignment has no use for {model.name!r}",
                remedy='set model.name = "vision-language", or "none" for pixels and counts of words',
            )
        unused = model.model_fields_set - _ENCODERS if isinstance(model, VisionLanguageOptions) else set()
        if unused:
            raise ConfigError(
                f"model.{min(unused)}: has no effect with canonical-alignment, which uses the encoders alone",
                remedy="remove it",
            )
        if model.name == "none" and "image_cells" in self.options.model_fields_set:
            raise ConfigError(
                'algorithm.image_cells: has no effect with model.name = "none"', remedy="remove it"
            )
        if any(one.standardises for one in self.maps):
            raise ConfigError(
                'algorithm.maps: "standard" is not offered by canonical-alignment', remedy='use "l2"'
            )
        if privacy is None:
            return
        check_privacy(privacy, self.maps)
        if privacy.metrics == "private":
            raise ConfigError(
                'privacy.metrics: "private" is not offered by canonical-alignment, where one pair moves the '
                "scores of others",
                remedy='set privacy.metrics = "withheld", or "unprotected" where held-out records are public',
            )

    def network(self) -> DualEncoder | None:
        """A network that encoders are to be written into; None where there is none."""
        return None if self._encoders is None else self._encoders.network(choose_device(self.options.device))

    @cached_property
    def initial(self) -> State:
        """The encoders, by name of the parameter."""
        return {} if self._encoders is None else {name: self._encoders.initial[name] for name in self._names}

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than :meth:`AlignmentServer.broadcast` gives."""
        encoders = {MODEL + name: self._shapes[name] for name in self._names}
        check_shapes(broadcast, self.plan.broadcast(self.stage(round_number, exchange)) | encoders)

    def server(self) -> AlignmentServer:
        """A fresh server program."""
        return AlignmentServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> AlignmentSite:
        """One site's program, bound to that site's pairs."""
        data = self.site_data(site_id)
        pairs, privacy = data.train, self.plan.privacy
        if privacy is not None and privacy.unit == "record" and not len(self.pairs.site(site_id).train):
            pairs = pairs.take(torch.arange(0))  # the first would replace a blank one, at twice the norm
        no_labels = torch.zeros(len(pairs), dtype=torch.int64)
        patients = data.train_patients if len(pairs) else None
        train = MultiviewSite((pairs.images, pairs.tokens), no_labels, patients)
        return AlignmentSite(
            self.plan, self.maps, self.within_limit(train, site_id), data.test, self.network()
        )

    def site_data(self, site_id: SiteId) -> ImageTextSite:
        """One site's checked pairs."""
        return check_image_text(site_id, self.pairs.site(site_id), self.pairs)

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Metrics of one model at every site. Simulation only: in a study nobody has two sites' pairs."""
        found = {}
        for site_id in self.setting.sites:
            site = self.site(site_id)
            found[site_id] = site.metrics({**model, **{MODEL + n: one for n, one in self.initial.items()}})
        return found
