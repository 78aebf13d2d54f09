import math

import pytest
import torch

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.metrics.score_grid import LOSS_CAP
from secfed.errors import RangeError
from secfed.wire.layout import Exchange, Layout, Totals
from tests.algorithms.loop import add, add_in_ring
from tests.algorithms.toy_pairs import ToyDual, toy_pairs

CPU = torch.device("cpu")


def brute_force(image, text, batch):
    """Ranks with loops; incomplete batches left out, unless there is no other."""
    ranks, total = [], len(image)
    starts = [0] if total < batch else range(0, total - batch + 1, batch)
    for start in starts:
        rows = range(start, min(start + batch, total))
        for i in rows:
            own = sum(a * b for a, b in zip(text[i].tolist(), image[i].tolist(), strict=True))
            better = 0
            for j in rows:
                other = sum(a * b for a, b in zip(text[i].tolist(), image[j].tolist(), strict=True))
                better += other > own + 1e-12
            ranks.append(1 + better)
    return {f"recall_at_{k}": sum(r <= k for r in ranks) / len(ranks) for k in (1, 5)}


@pytest.mark.parametrize(("count", "batch"), [(20, 8), (7, 8), (8, 8), (9, 1), (1, 4)])
def test_recall_is_that_of_a_double_loop(count, batch):
    generator = torch.Generator().manual_seed(count)
    text = torch.randn(count, 4, generator=generator)
    image = text + torch.randn(count, 4, generator=generator)
    assert retrieval.recall(image, text, batch) == pytest.approx(brute_force(image, text, batch))


def test_the_query_is_the_report_and_not_the_image():
    # Report 0 prefers image 1; each image prefers its own report.
    image = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    text = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert retrieval.ranks(image, text).tolist() == [2, 1]
    assert retrieval.ranks(text, image).tolist() == [1, 1]


def test_a_tie_is_not_a_loss():
    same = torch.ones(4, 2)
    assert retrieval.ranks(same, same).tolist() == [1, 1, 1, 1]


def test_the_last_incomplete_batch_is_left_out():
    image, text = torch.eye(10), torch.eye(10)
    text[8:] = text[[9, 8]]  # wrong only beyond the complete batches
    assert retrieval.recall(image, text, 4)["recall_at_1"] == 1.0
    assert retrieval.recall(image, text, 5)["recall_at_1"] == 0.8


def test_embeddings_that_do_not_fit_are_refused():
    with pytest.raises(RangeError, match="shapes"):
        retrieval.ranks(torch.ones(3, 2), torch.ones(2, 2))


def test_one_sites_summands_are_recall_of_its_shuffled_batches():
    model, pairs = ToyDual(), toy_pairs(21)
    sums = retrieval.evaluate_site(model, pairs, 8, CPU)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        aligned = model(pairs.images[order], pairs.tokens[order])
        losses = [
            float(model.objective(model(pairs.images[rows], pairs.tokens[rows])).infonce)
            for rows in (order[:8], order[8:16])
        ]
    wanted = brute_force(aligned.image.double(), aligned.text.double(), 8)
    assert {name: sums[f"eval/{name}"] for name in wanted} == pytest.approx(wanted)
    assert sums["eval/infonce"] == pytest.approx(sum(losses) / 2)
    assert sums["eval/counted"] == 1.0


def test_a_smaller_site_makes_one_smaller_batch_and_an_empty_one_adds_nothing():
    model = ToyDual()
    small = retrieval.evaluate_site(model, toy_pairs(5), 64, CPU)
    assert small["eval/counted"] == 1.0
    assert small["eval/recall_at_5"] == 1.0
    empty = retrieval.evaluate_site(model, toy_pairs(0), 64, CPU)
    assert empty == dict.fromkeys([field.name for field in retrieval.fields()], 0.0)


@pytest.mark.parametrize("adder", [add, add_in_ring])
def test_the_sum_gives_the_mean_over_the_sites_that_have_pairs(adder):
    model = ToyDual()
    exchange = Exchange("evaluate", "all", Layout(retrieval.fields(), sites=3))
    sites = {
        f"site-{count}": retrieval.evaluate_site(model, toy_pairs(count, count), 8, CPU)
        for count in (24, 0, 11)
    }
    found = retrieval.finish(adder(exchange, sites))
    counted = [sites["site-24"], sites["site-11"]]
    wanted = {name: (counted[0][f"eval/{name}"] + counted[1][f"eval/{name}"]) / 2 for name in found}
    assert set(found) == {"recall_at_1", "recall_at_5", "infonce"}
    assert found == pytest.approx(wanted, abs=1e-6)


def test_without_fields_or_counted_sites_there_is_no_metric():
    nothing = {field.name: torch.zeros(()) for field in retrieval.fields()}
    assert retrieval.finish(Totals({}, ("a",))) == {}
    assert retrieval.finish(Totals(nothing, ("a",))) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_image_without_a_finite_embedding_is_not_found_and_found_before_others(bad):
    image, text = torch.eye(4), torch.eye(4)
    image[2] = bad
    assert (retrieval.ranks(image, text) > 5).tolist() == [False, False, True, False]
    found = retrieval.recall(image, text, 4)
    assert found == {"recall_at_1": 0.0, "recall_at_5": 0.75}


@pytest.mark.parametrize("value", [math.nan, 1e30])
def test_a_diverged_model_is_counted_as_a_bad_one(value):
    model = ToyDual()
    with torch.no_grad():
        model.image_align.weight.fill_(value)
        model.text_align.weight.fill_(math.nan)
    sums = retrieval.evaluate_site(model, toy_pairs(8), 8, CPU)
    assert sums["eval/recall_at_1"] == sums["eval/recall_at_5"] == 0.0
    assert sums["eval/infonce"] == LOSS_CAP
    assert sums["eval/counted"] == 1.0


def pairs_of(reports: list[int], images: list[int]) -> Pairs:
    """Pairs whose report and image are given by number."""
    count = len(reports)
    shown = torch.zeros(count, 1, 32, 32) + torch.tensor(images, dtype=torch.float32)[:, None, None, None]
    tokens = torch.ones(count, 6, dtype=torch.int64) + torch.tensor(reports)[:, None]
    return Pairs(shown, tokens, torch.zeros(count, 1, dtype=torch.int64))


def test_the_ceiling_is_what_the_best_model_reaches():
    pairs = pairs_of([0, 0, 0, 1, 2, 2], [0, 1, 1, 2, 3, 4])
    # Of report 0 the two equal images are found together; of report 2 one of two.
    assert retrieval.ceiling_at_1(pairs.images, pairs.tokens) == pytest.approx(4 / 6)
    image = torch.eye(6)[[0, 1, 1, 2, 3, 4]]
    best = 0.0
    for own in ([1, 0, 0], [0, 1, 1]):  # which image of report 0 the report points to
        text = torch.eye(6)[[0, 0, 0, 2, 3, 3]]
        text[:3] = text[:3] * 0 + torch.tensor([own[0], own[1], 0, 0, 0, 0.0])
        best = max(best, retrieval.recall(image, text, 6)["recall_at_1"])
    assert best == pytest.approx(4 / 6)


def test_a_study_may_measure_on_one_pair_of_every_report_and_by_the_ceiling():
    model, pairs = ToyDual(), pairs_of([n // 2 for n in range(12)], list(range(12)))
    sums = retrieval.evaluate_site(model, pairs, 12, CPU, ceiling=True)
    assert sums["eval/ceiling_at_1"] == 0.5
    assert sums["eval/relative_recall_at_1"] == 2 * sums["eval/recall_at_1"]
    assert set(sums) == {field.name for field in retrieval.fields(ceiling=True)}
    assert set(retrieval.finish(sums)) == {*retrieval.METRICS, *retrieval.CEILINGS}
    one_each = retrieval.evaluate_site(model, pairs, 6, CPU, ceiling=True, distinct=True)
    assert one_each["eval/ceiling_at_1"] == 1.0
    (rows,) = retrieval.drawn_batches(12, 6, pairs.tokens)
    assert sorted(pairs.tokens[rows, 0].tolist()) == [1, 2, 3, 4, 5, 6]
    assert (
        retrieval.evaluate_site(model, pairs_of([], []), 6, CPU, ceiling=True, distinct=True)[
            "eval/relative_recall_at_1"
        ]
        == 0.0
    )
