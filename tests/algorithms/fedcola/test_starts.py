"""FedCola from weights in a file, and from a whole model of an earlier study."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.framework.server_state import MODEL
from secfed.algorithms.models.encoder_libraries import timm_layers
from secfed.errors import ConfigError, RoundAborted
from secfed.runs.run_folder import MODEL_FILE
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.fedcola_case import study
from tests.algorithms.loop import Rounds
from tests.algorithms.whole import model_bytes, run


def vit(**changed: int) -> nn.Module:
    """timm's own of the tiny study's size, whose images have 24 pixels a side and patches 6."""
    timm_layers()
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 24, "patch_size": 6, "embed_dim": 8, "depth": 2, "num_heads": 2, **changed}
    torch.manual_seed(3)
    return VisionTransformer(in_chans=3, num_classes=4, **shape)


def built(folder: Path, name: str, **changes: object) -> FedCola:
    made = study(model__weights=name, **changes).model_copy(update={"folder": folder})
    found = build(made)
    assert isinstance(found, FedCola)
    return found


class TestWeights:
    def test_all_blocks_are_those_of_timms_file_and_features_of_images_are_timms(self, tmp_path):
        theirs = vit()
        save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
        algorithm = built(tmp_path, "vit.safetensors")
        for kind in KINDS:
            for name, value in algorithm.initial[kind].items():
                tower, _, rest = name.partition(".")
                if rest.startswith("blocks."):
                    assert tower in ("image", "text")
                    assert torch.equal(value, theirs.state_dict()[rest])
        network = algorithm.plan.network("image", algorithm.initial["image"], torch.device("cpu")).eval()
        images = torch.randn(3, 3, 24, 24)
        with torch.no_grad():
            ours, wanted = network.norm(network.tower(images)), theirs.eval().forward_features(images)[:, 0]
        assert torch.allclose(ours, wanted, atol=1e-5)

    def test_a_model_of_fedcola_gives_its_classifier_of_images(self, tmp_path):
        server = build(study(study__seed=77)).server()
        save_file(dict(server.model()), tmp_path / "model.safetensors")
        algorithm, plain = built(tmp_path, "model.safetensors"), build(study())
        for kind in KINDS:
            for name, value in algorithm.initial[kind].items():
                rest = name.partition(".")[2]
                wanted = plain.initial[kind][name]
                if rest.startswith("blocks.") or name.startswith(("image.", "norm.")):
                    source = f"image/image.{rest}" if not name.startswith("norm.") else f"image/{name}"
                    wanted = server.model()[source]
                assert torch.equal(value, wanted), name

    def test_another_size_and_a_second_start_are_refused(self, tmp_path):
        save_file(vit(depth=1).state_dict(), tmp_path / "vit.safetensors")
        with pytest.raises(ConfigError, match=r"model\.weights: .* has no 'blocks\.1\."):
            built(tmp_path, "vit.safetensors").server()
        with pytest.raises(ConfigError, match=r"model\.weights: has no effect beside model\.start"):
            study(model__weights="a", model__start="b")


def began_with(path: Path, **changes: object) -> Study:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return study(model__start=str(path), model__start_sha256=digest, **changes)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a finished study."""
    out = tmp_path_factory.mktemp("first")
    run(study(study__rounds=1), out)
    return out / MODEL_FILE


class TestStart:
    def test_every_site_begins_with_its_groups_part_of_the_file(self, first):
        algorithm = build(began_with(first))
        model = load_file(first)
        rounds = Rounds(algorithm)
        rounds.server.begin(model)
        for number, exchange in enumerate(algorithm.exchanges(1)):
            stage = algorithm.stage(1, exchange)
            if stage.step != "own":
                continue
            broadcast = rounds.server.broadcast(1, exchange)
            algorithm.check_broadcast(1, exchange, broadcast)
            assert set(algorithm.model_in(broadcast)) == set(model)
            own, other = algorithm.plan.received(stage, 1, broadcast)
            assert all(torch.equal(value, model[f"{stage.of}/{name}"]) for name, value in own.items())
            assert set(own) == set(algorithm.plan.shapes[stage.of])
            assert bool(other) == (stage.of != "pairs")
            rounds.take(1, number)
        later = rounds.server.broadcast(2, algorithm.exchanges(2)[0])
        assert not any(name.startswith(f"{MODEL}pairs/") for name in later)

    def test_the_first_round_is_as_that_of_a_server_that_sends_parts(self, first, tmp_path):
        changes: dict[str, object] = {"study__rounds": 1, "study__seed": 9, "algorithm__evaluate": "every"}
        run(began_with(first, **changes), tmp_path)
        parts = build(study(**changes))
        rounds = Rounds(parts)
        rounds.server.begin(load_file(first))
        rounds.round(1)
        found = load_file(tmp_path / MODEL_FILE)
        for name, value in rounds.server.model().items():
            assert torch.allclose(found[name], value, atol=1e-4), name

    @pytest.mark.parametrize("name", ["masked", pytest.param("encrypted", marks=pytest.mark.slow)])
    def test_protection_changes_nothing(self, first, tmp_path, name):
        for one in ("plain", name):
            run(began_with(first, protection__name=one, study__rounds=1), tmp_path / one)
        assert model_bytes(tmp_path / "plain") == model_bytes(tmp_path / name)

    def test_a_site_that_is_sent_another_model_refuses(self, first, tmp_path, monkeypatch):
        from secfed.algorithms.fedcola.server import FedColaServer

        honest = FedColaServer.broadcast

        def other(self, round_number, exchange):
            state = honest(self, round_number, exchange)
            return {name: value + 0.5 if "/norm." in name else value for name, value in state.items()}

        monkeypatch.setattr(FedColaServer, "broadcast", other)
        with pytest.raises(RoundAborted):
            run(began_with(first, protection__name="masked", study__rounds=1), tmp_path)
