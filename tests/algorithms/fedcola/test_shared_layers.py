"""Which layers FedCola averages over more sites than those of one kind, and over whom."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.models.transfer_options import is_shared
from secfed.errors import ConfigError
from tests.algorithms.fedcola_case import COUNTED, everybody_adds, models, study, tiny
from tests.algorithms.loop import Rounds


@pytest.mark.parametrize(
    ("layers", "wanted"), [("mlp", "mlp.fc"), ("blocks", "blocks."), ("attention", "attn.")]
)
def test_other_layers_than_attention_can_be_averaged_over_all_sites_with_the_modality(layers, wanted) -> None:
    rounds = Rounds(tiny(algorithm__shared_layers=layers, algorithm__aggregation="collaborative"))
    names = {
        exchange.name: {field.name for field in exchange.layout.fields if "update/" in field.name}
        for exchange in rounds.algorithm.exchanges(1)
    }
    shared = names["attention-image"]
    assert shared
    assert all(name.startswith("update/image.") and wanted in name for name in shared)
    assert not shared & names["own-image"]
    start = rounds.server.model()
    rounds.round(1)
    after = rounds.server.model()
    for name in shared:  # of one start, and of one sum
        inner = name.removeprefix("update/")
        assert torch.equal(after[f"image/{inner}"], after[f"pairs/{inner}"])
        assert not torch.equal(after[f"image/{inner}"], start[f"image/{inner}"])


def test_shared_layers_without_sharing_are_refused() -> None:
    with pytest.raises(ConfigError, match="shared_layers: has no effect"):
        tiny(algorithm__shared_layers="mlp", algorithm__aggregation="fedavg")


class TestSharedOverAll:
    def test_one_sum_over_every_site_that_trains_moves_all_towers_alike(self) -> None:
        rounds = Rounds(tiny(algorithm__shared_over="all", algorithm__aggregation="collaborative"))
        before = models(rounds)
        found = rounds.round(1)
        assert [name for name in found if name.startswith("attention")] == ["attention-all"]
        together = found["attention-all"]
        assert set(together) == set(rounds.algorithm.setting.sites)
        name = "blocks.0.attn.qkv.weight"
        step = sum(one[f"update/{name}"] for one in together.values()) / 10
        towers = [("image", "image"), ("text", "text"), ("pairs", "image"), ("pairs", "text")]
        for kind, tower in towers:
            path = f"{tower}.{name}"
            assert torch.allclose(models(rounds)[kind][path], before[kind][path] + step, atol=1e-6)
            assert not torch.equal(models(rounds)[kind][path], before[kind][path])

    def test_a_site_with_pairs_adds_the_mean_of_its_towers(self) -> None:
        rounds, apart = (
            Rounds(tiny(algorithm__shared_over=over, algorithm__aggregation="collaborative"))
            for over in ("all", "modality")
        )
        for one in (rounds, apart):
            for kind in KINDS:
                one.contributions(1, f"own-{kind}")
        added = rounds.contributions(1, "attention-all")
        of = {tower: apart.contributions(1, f"attention-{tower}") for tower in ("image", "text")}
        name = "blocks.1.attn.proj.bias"
        image, text = (of[tower]["pairs-1"][f"update/{tower}.{name}"] for tower in ("image", "text"))
        assert torch.allclose(added["pairs-1"][f"update/{name}"], (image + text) / 2, atol=1e-7)
        assert torch.equal(added["text-1"][f"update/{name}"], of["text"]["text-1"][f"update/text.{name}"])

    def test_with_compensation_every_update_is_divided_by_all_sites(self) -> None:
        rounds = Rounds(tiny(algorithm__shared_over="all", algorithm__aggregation="compensated"))
        before = models(rounds)
        rounds.round(1, everybody_adds(0.25))
        counts = dict(COUNTED)
        for kind in KINDS:
            for name, value in models(rounds)[kind].items():
                share = 1.0 if is_shared(name, "attention") else counts[kind] / sum(counts.values())
                wanted = torch.full_like(value, 0.25 * share)
                assert torch.allclose(value - before[kind][name], wanted, atol=1e-6), (kind, name)

    def test_without_it_studies_are_what_they_were_and_without_sharing_it_is_refused(self) -> None:
        assert study().digest() == study(algorithm__shared_over="modality").digest()
        with pytest.raises(ConfigError, match="shared_over: has no effect"):
            tiny(algorithm__shared_over="all", algorithm__aggregation="fedavg")


ADDED = {"image": 0.1, "text": 0.2, "pairs": 0.5}


class TestFedIot:
    def change(self, got):
        return everybody_adds(ADDED[next(iter(got)).split("-")[0]])(got)

    def test_in_blocks_a_site_with_pairs_counts_a_hundredfold(self) -> None:
        rounds = Rounds(tiny(algorithm__aggregation="fediot", algorithm__co_layers="none"))
        before, counts = models(rounds), dict(COUNTED)
        rounds.round(1, self.change)
        for kind in KINDS:
            for name, value in models(rounds)[kind].items():
                step = ADDED[kind]
                if ".blocks." in name:
                    one = name.split(".")[0]
                    top = counts[one] * ADDED[one] + 100 * counts["pairs"] * ADDED["pairs"]
                    step = top / (counts[one] + 100 * counts["pairs"])
                wanted = before[kind][name] + step
                assert torch.allclose(value, wanted, atol=1e-6), (kind, name)

    def test_it_needs_no_sums_but_the_groups_own(self) -> None:
        algorithm = tiny(algorithm__aggregation="fediot", algorithm__co_layers="none")
        assert [one.name for one in algorithm.exchanges(1)] == [f"own-{kind}" for kind in KINDS]

    def test_a_group_may_be_absent(self) -> None:
        absent = {"data__text_sites": 0, "algorithm__co_layers": "none"}
        rounds = Rounds(tiny(algorithm__aggregation="fediot", **absent))
        before = rounds.server.model()
        rounds.round(1, self.change)
        name = "pairs/text.blocks.0.mlp.fc1.bias"
        assert torch.allclose(rounds.server.model()[name], before[name] + ADDED["pairs"], atol=1e-6)

    def test_layers_that_it_does_not_have_are_refused(self) -> None:
        with pytest.raises(ConfigError, match='shared_layers: has no effect with aggregation = "fediot"'):
            tiny(algorithm__shared_layers="mlp", algorithm__aggregation="fediot")
