"""Features of frozen encoders are computed once, and kept on the disk where that is asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from secfed.algorithms.data.image_cache import FOLDER
from secfed.algorithms.models import kept_features
from secfed.algorithms.models.kept_features import KeptFeatures

RECORD = torch.arange(12.0).reshape(3, 2, 2)
FEATURES = torch.arange(10.0).reshape(2, 5) / 3


class Encoder:
    """Gives the same features each time, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def of(self, kept: KeptFeatures, name: str = "one 1.0", record: torch.Tensor = RECORD) -> torch.Tensor:
        def compute() -> torch.Tensor:
            self.asked += 1
            return FEATURES

        found = kept.of(name, 5, record, compute)
        assert torch.equal(found, FEATURES.to(torch.float16))
        return found


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    return tmp_path / "kept" / "features"


def test_without_a_folder_each_process_computes_once(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    kept = KeptFeatures()
    encoder.of(kept)
    encoder.of(kept)
    assert encoder.asked == 1
    encoder.of(KeptFeatures())
    assert encoder.asked == 2
    assert list(tmp_path.iterdir()) == []


def test_with_a_folder_the_next_process_reads_them(encoder: Encoder, folder: Path) -> None:
    encoder.of(KeptFeatures())
    encoder.of(KeptFeatures())
    assert encoder.asked == 1
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_another_encoder_release_record_shape_or_type_has_its_own(encoder: Encoder, folder: Path) -> None:
    kept = KeptFeatures()
    encoder.of(kept)
    encoder.of(kept, "two 1.0")
    encoder.of(kept, "one 1.1")
    encoder.of(kept, record=RECORD + 1)
    encoder.of(kept, record=RECORD.reshape(2, 3, 2))
    encoder.of(kept, record=RECORD.view(torch.int32))
    assert encoder.asked == len(list(folder.iterdir())) == 6


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: content[-4:],
        lambda content: content[:-1],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content[:-4] + bytes(2) + content[-4:],
    ],
)
def test_a_file_that_is_not_whole_is_written_again(encoder: Encoder, folder: Path, harm) -> None:
    encoder.of(KeptFeatures())
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(harm(whole))
    encoder.of(KeptFeatures())
    assert encoder.asked == 2
    assert file.read_bytes() == whole


def test_another_width_is_computed_again(encoder: Encoder, folder: Path) -> None:
    encoder.of(KeptFeatures())
    assert KeptFeatures().of("one 1.0", 4, RECORD, lambda: torch.zeros(3, 4)).shape == (3, 4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_costs_time_only(encoder: Encoder, folder: Path) -> None:
    folder.parent.mkdir(mode=0o500)
    encoder.of(KeptFeatures())
    assert not folder.exists()


def test_a_folder_that_is_a_file_costs_time_only(encoder: Encoder, folder: Path) -> None:
    folder.parent.write_bytes(b"")
    encoder.of(KeptFeatures())
    assert encoder.asked == 1


def test_the_folder_has_a_limit_whoever_filled_it(
    encoder: Encoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_features, "_MOST_ON_DISK", 50)
    for number in range(4):
        encoder.of(KeptFeatures(), record=RECORD + number)
    assert len(list(folder.iterdir())) == 2
    kept = KeptFeatures()
    for number in range(4, 8):
        encoder.of(kept, record=RECORD + number)
    assert len(list(folder.iterdir())) == 2


def test_memory_has_a_limit_and_the_disk_goes_on(
    encoder: Encoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_features, "_MOST_BYTES", 19)
    kept = KeptFeatures()
    encoder.of(kept)
    encoder.of(kept)
    assert encoder.asked == 1
    monkeypatch.delenv(FOLDER)
    encoder.of(kept)
    assert encoder.asked == 2
