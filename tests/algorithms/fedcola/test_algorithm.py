"""FedCola's arithmetic and programs, without a protocol: who is summed with whom, and what moves what."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.fedcola import site as fedcola_site
from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.fedcola.server import denominator
from secfed.algorithms.framework.server_state import MODEL, part_of
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.models.gated_linear import gates
from secfed.algorithms.models.transfer_options import is_shared
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Totals
from tests.algorithms.fedcola_case import COUNTED, TINY, everybody_adds, first_round, models, study, tiny
from tests.algorithms.loop import Rounds, add_in_ring
from tests.algorithms.loop import simulate as loop

COUNTS = {"image": 4.0, "text": 3.0, "pairs": 5.0}
SHARED = {"image": 9.0, "text": 8.0}


def denominators(own, shared, aggregation) -> list[float]:
    """Of attention layers, of image, text and pairs sites (images, then texts), then of all else."""
    attention = [("image", "image"), ("text", "text"), ("pairs", "image"), ("pairs", "text")]
    asked = [*attention, ("image", None), ("text", None), ("pairs", None)]
    return [denominator(kind, modality, own, shared, aggregation) for kind, modality in asked if kind in own]


class TestDenominators:
    @pytest.mark.parametrize(
        ("aggregation", "expected"),
        [
            ("fedavg", [4, 3, 5, 5, 4, 3, 5]),
            ("collaborative", [9, 8, 9, 8, 4, 3, 5]),
            ("compensated", [9, 8, 12, 12, 9, 8, 12]),
        ],
    )
    def test_what_totals_are_divided_by(self, aggregation, expected):
        shared = {} if aggregation == "fedavg" else SHARED
        assert denominators(COUNTS, shared, aggregation) == expected
        tenfold = [{name: 10 * n for name, n in counts.items()} for counts in (COUNTS, shared)]
        assert denominators(*tenfold, aggregation) == [10 * n for n in expected]

    def test_a_group_without_sites_counts_nothing(self):
        found = denominators({"image": 4.0, "pairs": 5.0}, {"image": 9.0, "text": 5.0}, "compensated")
        assert found == [9, 9, 9, 9, 9]


class TestServer:
    @pytest.mark.parametrize("aggregation", ["fedavg", "collaborative", "compensated"])
    @pytest.mark.parametrize("server_step", [1.0, 0.5])
    def test_equal_updates_move_every_layer_by_its_share(self, aggregation, server_step):
        rounds = Rounds(tiny(algorithm__aggregation=aggregation, algorithm__server_step=server_step))
        before = models(rounds)
        rounds.round(1, everybody_adds(0.25))
        after = models(rounds)
        counts = dict(COUNTED)
        image, text, pairs = counts["image"], counts["text"], counts["pairs"]
        total = image + text + pairs
        shares = dict.fromkeys(
            [(kind, attention) for kind in ("image", "text") for attention in (True, False)]
            + [("pairs", "image"), ("pairs", "text"), ("pairs", "")],
            1.0,
        )
        if aggregation == "compensated":
            shares["image", False] = image / (image + pairs)
            shares["text", False] = text / (text + pairs)
            shares["pairs", "image"] = (image + pairs) / total
            shares["pairs", "text"] = (text + pairs) / total
            shares["pairs", ""] = pairs / total
        for kind in KINDS:
            for name, value in after[kind].items():
                key = is_shared(name, "attention")
                if kind == "pairs":
                    key = name.split(".")[0] if is_shared(name, "attention") else ""
                moved = (value - before[kind][name]).double()
                wanted = torch.full_like(moved, server_step * 0.25 * shares[kind, key])
                assert torch.allclose(moved, wanted, atol=1e-6), (kind, name)

    def test_one_group_alone_is_replaced_by_what_it_trained(self):
        rounds = Rounds(tiny(algorithm__aggregation="fedavg"))
        before = models(rounds)
        found = rounds.round(1, lambda got: {site: next(iter(got.values())) for site in got})
        after = models(rounds)
        for kind in KINDS:
            update = next(iter(found[f"own-{kind}"].values()))
            for name, value in after[kind].items():
                assert torch.allclose(value, before[kind][name] + update[f"update/{name}"], atol=1e-6)

    def test_a_group_moves_no_other_but_in_attention_layers(self):
        def of(kind, value):
            def change(got):
                return everybody_adds(value)(got) if next(iter(got)).startswith(kind) else got

            return change

        changed, plain = (Rounds(tiny(algorithm__aggregation="compensated")) for _ in range(2))
        plain.round(1, everybody_adds(0.0))
        changed.round(1, lambda got: of("pairs", 0.5)(everybody_adds(0.0)(got)))
        for kind in ("image", "text"):
            for name, value in models(changed)[kind].items():
                assert torch.equal(value, models(plain)[kind][name])
        assert not torch.equal(models(changed)["pairs"]["norm.bias"], models(plain)["pairs"]["norm.bias"])

    def test_attention_sums_of_all_sites_equal_those_of_the_groups(self):
        rounds = Rounds(tiny(algorithm__aggregation="collaborative", algorithm__co_layers="none"))
        before = models(rounds)
        found = rounds.round(1)
        name = "image.blocks.0.attn.qkv.weight"
        both = found["attention-image"]
        groups = [
            sum(one[f"update/{name}"] for site, one in both.items() if site.startswith(kind))
            for kind in ("image", "pairs")
        ]
        step = (groups[0] + groups[1]) / 7
        for kind in ("image", "pairs"):
            assert torch.allclose(models(rounds)[kind][name], before[kind][name] + step, atol=1e-6)

    def test_co_layers_are_the_other_modality_s_newest_weights(self):
        rounds = first_round()
        state = rounds.server.broadcast(2, rounds.exchange(2, "own-image"))
        other = part_of(state, "other/")
        assert set(other) == set(rounds.algorithm.plan.co_layers)
        assert all(not name.endswith("bias") for name in other)
        for name, value in other.items():
            assert torch.equal(value, models(rounds)["text"][f"text.{name}"])
            assert not torch.equal(value, models(rounds)["image"][f"image.{name}"])

    @pytest.mark.parametrize("stop", [1, 2, 3, 4])
    def test_a_server_that_stops_between_sums_goes_on_as_it_was(self, stop):
        straight, stopped = first_round(), Rounds(tiny())
        for at, exchange in enumerate(stopped.algorithm.exchanges(1)):
            if at == stop:
                state = stopped.server.save()
                stopped.server = stopped.algorithm.server()
                stopped.server.load(state)
            got = stopped.contributions(1, exchange.name)
            stopped.server.absorb(1, exchange, add_like(exchange, got))
        wanted, found = straight.server.save(), stopped.server.save()
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[name], found[name]) for name in wanted)

    def test_the_ring_gives_the_sums_that_plain_addition_gives(self):
        exact, ring = (loop(study(study__rounds=1), adder=one) for one in (add_like, add_in_ring))
        for name, value in exact.model().items():
            assert torch.allclose(value, ring.model()[name], atol=1e-6)


def add_like(exchange, got) -> Totals:
    names = [field.name for field in exchange.layout.fields]
    sums = {n: sum(torch.as_tensor(one[n], dtype=torch.float64) for one in got.values()) for n in names}
    return Totals(sums, tuple(got))


class TestSite:
    def test_uploads_hold_the_layers_of_the_own_model_and_no_gate(self):
        rounds = Rounds(tiny())
        algorithm = rounds.algorithm
        for kind in KINDS:
            got = rounds.contributions(1, f"own-{kind}")
            names = {name.removeprefix("update/") for one in got.values() for name in one} - {"loss"}
            assert names == set(algorithm.plan.own(kind))
            assert not any("gate" in name or "aux" in name for name in names)
        got = rounds.contributions(1, "attention-image")
        assert all(name.startswith("update/image.blocks.") for one in got.values() for name in one)
        assert {site.split("-")[0] for site in got} == {"image", "pairs"}

    def test_an_update_is_what_training_with_fused_gates_gives(self):
        """At a learning rate of nearly 0 gates stay closed and nothing moves."""
        rounds = Rounds(tiny(algorithm__learning_rate=1e-12))
        got = rounds.contributions(1, "own-image")
        assert all(float(v.abs().max()) < 1e-6 for n, v in got["image-1"].items() if n.startswith("update/"))

    @pytest.mark.parametrize("co_layers", ["none", "attention", "mlp", "all"])
    def test_co_layers_change_what_a_site_learns(self, co_layers):
        got = Rounds(tiny(algorithm__co_layers=co_layers)).contributions(1, "own-image")["image-1"]
        plain = Rounds(tiny(algorithm__co_layers="none")).contributions(1, "own-image")["image-1"]
        equal = all(torch.equal(torch.as_tensor(got[n]), torch.as_tensor(plain[n])) for n in plain)
        assert equal == (co_layers == "none")

    def test_gates_move_in_training_by_no_more_than_the_steps_allow(self, monkeypatch):
        seen = []
        fuse = fedcola_site.fuse
        monkeypatch.setattr(
            fedcola_site, "fuse", lambda network: (seen.extend(gates(network)), fuse(network))
        )
        rounds = Rounds(tiny(algorithm__local_epochs=2))
        rounds.contributions(1, "own-text")
        steps = 2 * 4  # two passes of up to four batches
        assert 0 < max(float(gate.detach().abs()) for gate in seen) <= 1.5 * steps * 1e-3

    def test_words_stay_as_they_are_where_the_study_says_so(self):
        rounds = Rounds(tiny(algorithm__train_tokens=False))
        before = models(rounds)
        rounds.round(1)
        for kind in ("text", "pairs"):
            name = "text.embed.token.weight"
            assert torch.equal(models(rounds)[kind][name], before[kind][name])
            assert f"update/{name}" not in {f.name for f in rounds.exchange(1, f"own-{kind}").layout.fields}

    def test_a_site_that_missed_the_training_has_nothing_for_the_second_sum(self):
        rounds = Rounds(tiny())
        with pytest.raises(WrongState, match="'image-1' did not train in round 1"):
            rounds.contributions(1, "attention-image")

    def test_what_is_left_of_an_update_survives_a_restart_and_only_its_round(self):
        rounds = Rounds(tiny())
        rounds.contributions(1, "own-text")
        rounds.contributions(1, "own-pairs")
        wanted = rounds.contributions(1, "attention-text")
        for site in wanted:
            kept = rounds.programs[site].save()
            rounds.programs[site] = rounds.algorithm.site(site)
            rounds.programs[site].load(kept)
        found = rounds.contributions(1, "attention-text")
        assert all(torch.equal(wanted[s][n], found[s][n]) for s in wanted for n in wanted[s])
        with pytest.raises(WrongState):
            rounds.contributions(2, "attention-text")

    def test_what_another_study_kept_is_refused(self):
        rounds = Rounds(tiny())
        with pytest.raises(MalformedMessage, match="'image-1'"):
            rounds.programs["image-1"].load({"round": torch.tensor(1)})

    def test_records_weigh_as_published_where_the_study_says_so(self):
        changed = study().replace("algorithm.weighting", "records").replace("algorithm.weight_cap", 20)
        rounds = Rounds(build(changed))
        got = rounds.contributions(1, "own-image")
        for site, one in got.items():
            records = len(rounds.algorithm.site_data(site).train)
            assert one["weight"] == min(records, 20) / 20
        assert len({one["weight"] for one in got.values()}) > 1


class TestPlan:
    def test_sampled_sites_are_as_many_as_the_study_says_and_change(self):
        plan = tiny(
            data__image_sites=8, algorithm__participation=0.5, data__text_sites=6, data__pair_sites=6
        ).plan
        drawn = [plan.sampled("image", number) for number in range(1, 9)]
        assert {len(set(one)) for one in drawn} == {4}
        assert len(set(drawn)) > 1
        assert drawn == [plan.sampled("image", number) for number in range(1, 9)]

    def test_attention_is_summed_over_both_groups_that_train(self):
        algorithm = tiny(
            data__image_sites=8, data__text_sites=6, data__pair_sites=6, algorithm__participation=0.5
        )
        exchange = next(one for one in algorithm.exchanges(2) if one.name == "attention-image")
        asked = algorithm.members(2, exchange, algorithm.setting.sites)
        assert set(asked) == {*algorithm.plan.sampled("image", 2), *algorithm.plan.sampled("pairs", 2)}

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"algorithm__participation": 0.5, "data__image_sites": 8, "data__pair_sites": 8},
                "algorithm.participation: 1 of 3 text sites",
            ),
            ({"data__pair_sites": 0}, "data.*pair"),
            ({"data__text_sites": 0}, "algorithm.co_layers"),
        ],
    )
    def test_groups_that_cannot_be_are_refused(self, changes, said):
        with pytest.raises(ConfigError, match=said):
            tiny(**changes)

    @pytest.mark.parametrize("absent", ["image", "text"])
    def test_a_group_may_be_absent(self, absent):
        algorithm = tiny(**{f"data__{absent}_sites": 0, "algorithm__co_layers": "none"})
        rounds = Rounds(algorithm)
        for number in (1, 2, 3):
            rounds.round(number)
        assert absent not in {name.split("/")[0] for name in rounds.server.model()}
        assert "text_to_image_recall_at_1" in rounds.server.metrics()[2]

    def test_scores_close_every_round_on_request(self):
        rounds = Rounds(tiny(algorithm__evaluate="every"))
        for number in (1, 2, 3):
            rounds.round(number)
        metrics = rounds.server.metrics()
        assert all("image_accuracy" in metrics[version] for version in (1, 2))
        assert "pairs_loss" in metrics[0]

    @pytest.mark.parametrize(
        ("table", "instead"), [("data", 'name = "digits"\nsites = 10\n'), ("model", 'name = "mlp"\n')]
    )
    def test_what_fedcola_cannot_work_with_is_named(self, table, instead):
        before, rest = TINY.split(f"[{table}]\n")
        text = f"{before}[{table}]\n{instead}{rest[rest.index('[') :]}"
        with pytest.raises(ConfigError, match=rf"{table}\.name"):
            build(Study.parse(text))


class TestScores:
    def test_a_model_that_embeds_everything_alike_finds_nothing(self):
        ones = torch.ones(6, 4)
        assert transfer_scores.recall(ones, ones, torch.arange(6), 6) == (0.0, 0.0)

    def test_an_image_is_found_by_any_of_its_captions(self):
        image = torch.eye(2)
        text = torch.tensor([[0.1, 0.9], [0.95, 0.1], [0.0, 0.9], [0.2, 0.5]])
        sources = torch.tensor([0, 0, 1, 1])
        # Of image 0 one caption is nearest; its other caption and all of image 1's are nearer to image 1.
        assert transfer_scores.recall(image, text, sources, 2) == (0.5, 0.75)

    def test_galleries_are_whole_and_of_the_size_that_was_asked_for(self):
        image = torch.eye(7)
        wrong = torch.eye(7).roll(1, 0)
        assert transfer_scores.recall(image, image, torch.arange(7), 3) == (1.0, 1.0)
        assert transfer_scores.recall(image, wrong, torch.arange(7), 7) == (0.0, 0.0)

    def test_the_metric_is_the_mean_over_sites_with_held_out_records(self):
        rounds = Rounds(tiny())
        for number in (1, 2):
            rounds.round(number)
        got = rounds.round(3)["score-pairs"]
        metrics, name = rounds.server.metrics()[2], "text_to_image_recall_at_1"
        assert metrics[name] == pytest.approx(sum(one[f"score/{name}"] for one in got.values()) / 3)
        assert transfer_scores.finish("pairs", {transfer_scores.COUNTED: 0.0}) == {}
        assert rounds.algorithm.per_site(rounds.server.model()).keys() == set(rounds.algorithm.setting.sites)

    def test_a_broadcast_of_another_model_is_refused(self):
        rounds = Rounds(tiny())
        exchange = rounds.exchange(3, "score-image")
        with pytest.raises(MalformedMessage):
            rounds.programs["image-1"].contribute(3, exchange, {MODEL + "norm.bias": torch.zeros(8)})


def test_fedprox_holds_local_training_near_the_received_model() -> None:
    start = Rounds(tiny(algorithm__aggregation="fedavg")).server.model()

    def moved(mu: float) -> float:
        rounds = Rounds(tiny(algorithm__mu=mu, algorithm__aggregation="fedavg"))
        rounds.round(1)
        after = rounds.server.model()
        return sum(float((after[name] - value).square().sum()) for name, value in start.items())

    assert moved(0.0) > 1.05 * moved(50.0) > 0
    assert study().digest() == study(algorithm__mu=0.0).digest()


def test_every_group_may_have_a_share_of_its_own() -> None:
    sizes = {"data__image_sites": 8, "data__text_sites": 6, "data__pair_sites": 6}
    made = tiny(**sizes, algorithm__participation=0.5, algorithm__image_participation=0.75)
    assert [made.plan.sampled_count(kind) for kind in KINDS] == [6, 3, 3]
    assert study().digest() == study(algorithm__shared_layers="attention").digest()
