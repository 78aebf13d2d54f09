from pathlib import Path

import adapters
import compare_code
import pytest

from secfed.study.study import Study
from tests.algorithms.loop import Rounds


def test_lines_are_those_that_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('# a comment\n\n[study]\nname = "a"  # said\n"""A docstring."""\n')
    assert compare_code.lines(path) == 2


@pytest.mark.parametrize("name", sorted(compare_code.FLOWER))
def test_the_studies_are_those_of_the_other_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(compare_code.HERE))
    import common

    study = Study.load(compare_code.HERE / f"{name}.toml")
    options = study.algorithm
    assert (study.rounds, options.local_epochs, options.learning_rate) == (
        common.ROUNDS,
        common.EPOCHS,
        common.RATE,
    )
    assert (compare_code.HERE / compare_code.FLOWER[name][0]).is_file()
    assert len(common.hospitals().sites) == common.SITES


@pytest.mark.slow  # imports timm
def test_a_transformer_of_timm_trains_by_adapters() -> None:
    way = adapters.WAYS['adapters and head (`adapters = ["blocks.*"]`)']
    given = adapters.argparse.Namespace(rounds=1, width=64, depth=1)
    rounds = Rounds(adapters.study(way, False, given))
    names = {name for name in rounds.round(1)["update"]["hospital-1"] if name.startswith("update/")}
    assert "update/blocks.0.attn.qkv.up.weight" in names
    assert "update/head.weight" in names
    assert all(".up." in name or ".down." in name or "/head." in name for name in names)
