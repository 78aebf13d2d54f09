"""Pretrained weights from local files: what is taken, what is refused, and that nothing is fetched."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.models.dual_encoder import DualEncoder, build
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.algorithms.models.encoder_libraries import bert_classes, timm_layers
from secfed.errors import ConfigError
from tests.algorithms.dual_encoder_case import LENGTH, VOCABULARY, Shapes, pairs


def loaded(folder: Path, **paths: str) -> DualEncoder:
    torch.manual_seed(0)
    options = VisionLanguageOptions(name="vision-language", **paths)  # type: ignore[arg-type]
    return build(Shapes(), options, folder)  # type: ignore[arg-type]


def vit(channels: int = 1, side: int = 16, depth: int = 2) -> nn.Module:
    """Timm's own vision transformer, with a classifier."""
    timm_layers()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(7)
    made: nn.Module = VisionTransformer(
        img_size=side, patch_size=8, in_chans=channels, embed_dim=64, depth=depth, num_heads=4, num_classes=3
    )
    nn.init.normal_(made.cls_token)  # type: ignore[arg-type]
    return made


def bert(**changed: int) -> Any:
    """Hugging Face's own BERT, longer, with two token types and a pooler."""
    config_class, model_class = bert_classes()
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 20,
        **changed,
    }
    torch.manual_seed(7)
    return model_class(
        config_class(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ).eval()


def images() -> torch.Tensor:
    return pairs(3)[0]


@pytest.mark.parametrize("nested", [False, True])
def test_image_weights_give_the_features_of_timm(tmp_path: Path, nested: bool) -> None:
    theirs = vit()
    torch.save(
        {"model": theirs.state_dict(), "epoch": 3} if nested else theirs.state_dict(), tmp_path / "vit.pth"
    )
    ours = loaded(tmp_path, image_weights="vit.pth").image_encoder
    assert torch.allclose(ours(images()), theirs.forward_features(images()), atol=1e-5)  # type: ignore[operator]


def test_image_weights_of_three_channels_see_a_grey_image_as_a_repeated_one(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = vit(channels=3)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = loaded(tmp_path, image_weights=".").image_encoder
    wanted = theirs.forward_features(images().expand(-1, 3, -1, -1))  # type: ignore[operator]
    assert torch.allclose(ours(images()), wanted, atol=1e-5)


def test_text_weights_give_the_features_of_the_first_layers_of_bert(tmp_path: Path) -> None:
    theirs = bert()
    theirs.save_pretrained(tmp_path / "bert")
    ours = loaded(tmp_path, text_weights="bert").text_encoder
    tokens = pairs(3)[1]
    words = tokens != 0
    wanted = theirs(tokens, words.long(), output_hidden_states=True).hidden_states[2]
    assert torch.allclose(ours(tokens, words)[words], wanted[words], atol=1e-5)


def test_text_weights_with_old_names_are_the_same_weights(tmp_path: Path) -> None:
    state = bert().state_dict()
    old = {}
    for name, value in state.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old["bert." + name] = value
    torch.save(state, tmp_path / "new.bin")
    torch.save({**old, "cls.predictions.bias": torch.zeros(3)}, tmp_path / "old.bin")
    new, found = (loaded(tmp_path, text_weights=name).text_encoder for name in ("new.bin", "old.bin"))
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), found.parameters(), strict=True))


def test_weights_fill_one_encoder_and_leave_the_rest_as_it_was(tmp_path: Path) -> None:
    torch.save(vit().state_dict(), tmp_path / "vit.pth")
    plain, filled = loaded(tmp_path), loaded(tmp_path, image_weights="vit.pth")
    for (name, before), after in zip(plain.named_parameters(), filled.parameters(), strict=True):
        if not name.startswith("image_encoder."):
            assert torch.equal(before, after), name
    assert not torch.equal(plain.image_encoder.prefix.pos, filled.image_encoder.prefix.pos)


@pytest.mark.parametrize("key", ["image_weights", "text_weights"])
def test_a_file_that_is_not_there_is_named_and_nothing_is_fetched(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        pytest.fail("a connection was attempted")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ConfigError, match=rf"model\.{key}: there is no file .*bert-base-cased"):
        loaded(tmp_path, **{key: "bert-base-cased"})


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.bin"])
def test_a_file_that_is_no_weights_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(ConfigError, match=r"model\.text_weights: .*is not a file of weights"):
        loaded(tmp_path, text_weights=name)


class _Code:
    """Runs when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code in the file was run",))


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save({"cls_token": _Code()}, tmp_path / "evil.bin")
    with pytest.raises(ConfigError, match="is not a file of weights"):
        loaded(tmp_path, image_weights="evil.bin")


def not_finite() -> nn.Module:
    made = vit()
    with torch.no_grad():
        made.get_parameter("norm.bias")[3] = torch.nan
    return made


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (lambda: vit(depth=1), r"model\.image_weights: .*model\.pth has no 'blocks\.1\."),
        (lambda: vit(side=32), r"'prefix\.pos'.*\(1, 17, 64\).*\(1, 5, 64\)"),
        (not_finite, r"'norm\.bias'.*not numbers"),
        (lambda: bert(vocab_size=VOCABULARY + 1), r"model\.text_weights: 'embeddings\.word_embeddings\."),
        (lambda: bert(max_position_embeddings=LENGTH - 1), r"position_embeddings.*\(11, 64\).*\(12, 64\)"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(tmp_path: Path, theirs: Any, says: str) -> None:
    made = theirs()
    torch.save(made.state_dict(), tmp_path / "model.pth")
    key = "text_weights" if hasattr(made, "embeddings") else "image_weights"
    with pytest.raises(ConfigError, match=says):
        loaded(tmp_path, **{key: "model.pth"})
