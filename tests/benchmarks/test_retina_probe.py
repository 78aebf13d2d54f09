from pathlib import Path

import pytest
import retina_probe
import torch

from secfed.errors import ConfigError
from secfed.study.study import Study
from tests.algorithms.image_text_case import picture
from tests.algorithms.toy_pairs import SIZE, ToyDual

STUDY = """
study = { name = "t", rounds = 1, seed = 3 }
algorithm = { name = "vlp-fedavg", batch_size = 4, local_steps = 1 }
model = { name = "vision-language", size = "tiny" }
protection = { name = "masked" }
[data]
"""
PAIRS = f"""
name = "image-text"
path = "."
table = "pairs.jsonl"
images = "images"
size = {SIZE}
channels = 1
mean = [0.25]
sites = ["north", "south", "east"]
site_column = "site"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty patients with two photographs each, brighter the more is wrong, and one that nobody graded."""
    (tmp_path / "images").mkdir()
    table = ["patient,file,final_icdr,final_edema"]
    for at in range(80):
        icdr, edema = (0, 2, 4, 4)[at % 4], ("no", "no", "no", "yes")[at % 4]
        level = 20 + 70 * (at % 4) + at % 3
        (tmp_path / "images" / f"{at}.jpg").write_bytes(picture(level, size=(12, 12), kind="JPEG"))
        table.append(f"{at // 2},{at}.jpg,{icdr},{edema}")
    (tmp_path / "labels_mbrset.csv").write_text("\n".join([*table, "40,none.jpg,,"]))
    return tmp_path


def test_photographs_are_prepared_as_the_study_s_images_and_patients_are_never_divided(folder: Path) -> None:
    data = retina_probe.mbrset(Study.parse(STUDY + PAIRS), folder)
    assert data.train.images.shape[1:] == (1, SIZE, SIZE)
    assert len(data.train) + len(data.test) == 80
    assert len(data.train) % 2 == 0 < len(data.test)
    lowest = float(data.train.images.min())
    assert lowest == pytest.approx((20 / 255 - 0.25) / 0.5, abs=0.03)


def test_a_row_per_finding_and_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retina_probe.linear_probe, "DRAWS", 1)
    data = retina_probe.mbrset(Study.parse(STUDY + PAIRS), folder)
    table = retina_probe.probe(ToyDual(), data, (0.1, 1.0), 0, torch.device("cpu")).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == [
        "| diabetic retinopathy, 10 % of the labels",
        "| diabetic retinopathy, 100 % of the labels",
        "| macular edema, 10 % of the labels",
        "| macular edema, 100 % of the labels",
    ]
    assert table[-1].endswith("| 100.0 | 100.0 |")  # brightness tells


def test_a_study_without_image_files_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="chest-synthetic does not read image files"):
        retina_probe.mbrset(Study.parse(STUDY + 'name = "chest-synthetic"'), folder)
