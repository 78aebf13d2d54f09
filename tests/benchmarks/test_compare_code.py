from importlib.util import find_spec
from pathlib import Path

import adapters
import compare_code
import pytest

from secfed.simulation.simulate import simulate
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
    way = adapters.ways("timm")['adapters and head (`adapters = ["blocks.*"]`)']
    given = adapters.argparse.Namespace(rounds=1, width=64, depth=1, model="timm")
    rounds = Rounds(adapters.study(way, False, given))
    names = {name for name in rounds.round(1)["update"]["hospital-1"] if name.startswith("update/")}
    assert "update/blocks.0.attn.qkv.up.weight" in names
    assert "update/head.weight" in names
    assert all(".up." in name or ".down." in name or "/head." in name for name in names)


@pytest.mark.slow  # imports peft, timm and transformers
@pytest.mark.parametrize("model", sorted(adapters.MODELS))
@pytest.mark.parametrize("private", [False, True])
def test_of_a_model_that_peft_adapted_only_adapters_and_head_travel(model: str, private: bool) -> None:
    if find_spec("peft") is None:
        pytest.skip("peft is not installed (extra adapters)")
    (way,) = [way for name, way in adapters.ways(model).items() if "peft" in name]
    given = adapters.argparse.Namespace(rounds=1, width=64, depth=1, model=model)
    study = adapters.study(way, private, given).replace("data.sites", 3)
    report = simulate(study)
    assert report.rounds[0].aborted is None
    if not private:
        update = Rounds(study).round(1)["update"]["hospital-1"]
        names = {name for name in update if name.startswith("update/")}
        assert any("lora_A" in name for name in names)
        assert any("lora_B" in name for name in names)
        heads = {name for name in names if "lora_" not in name}
        assert len(heads) == 2  # weight and bias
        assert all("head." in name or "classifier." in name for name in heads)
