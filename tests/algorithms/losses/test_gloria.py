from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from secfed.algorithms.losses import gloria
from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.gloria import Gloria, match_reports, merge_words, word_starts
from secfed.errors import ConfigError
from tests.algorithms.losses_case import dot, draws, looped_contrast, number, shares

LENGTHS = (3, 1, 4, 2)


def batch() -> Aligned:
    """Four pairs; reports of 3, 1, 4 and 2 words among 4 places; images of 5 patches."""
    return Aligned(
        image=normalize(draws(4, 6, seed=1), dim=1),
        text=normalize(draws(4, 6, seed=2), dim=1),
        patches=draws(4, 5, 6, seed=3),
        words=draws(4, 4, 6, seed=4),
        is_word=torch.arange(4) < torch.tensor(LENGTHS)[:, None],
    )


def looped_match(
    patches: list[list[float]], words: list[list[float]], t1: float = 4.0, t2: float = 5.0
) -> float:
    """One image against one report, element by element."""
    over_words = [shares([dot(patch, word) for word in words]) for patch in patches]
    total = 0.0
    for w, word in enumerate(words):
        attention = shares([t1 * over_words[p][w] for p in range(len(patches))])
        context = [sum(attention[p] * patches[p][k] for p in range(len(patches))) for k in range(len(word))]
        cosine = dot(word, context) / math.sqrt(dot(word, word) * dot(context, context))
        total += math.exp(t2 * cosine)
    return math.log(total)


def looped_gloria(aligned: Aligned, reports: list[list[list[float]]], pairs: list[int]) -> float:
    """The whole objective; ``reports`` are the words without padding, ``pairs`` those of the local term."""
    images, texts, patches = aligned.image.tolist(), aligned.text.tolist(), aligned.patches.tolist()
    whole = [[10.0 * dot(image, text) for text in texts] for image in images]
    local = [[10.0 * looped_match(patches[i], reports[k]) for k in pairs] for i in pairs]
    return looped_contrast(whole) + looped_contrast(local)


def spelled(aligned: Aligned) -> list[list[list[float]]]:
    return [words[:count] for words, count in zip(aligned.words.tolist(), LENGTHS, strict=True)]


def test_gloria_equals_a_brute_force_loop():
    aligned = batch()
    reports = spelled(aligned)
    assert number(Gloria(0.07)(aligned).total) == pytest.approx(
        looped_gloria(aligned, reports, [0, 1, 2, 3]), rel=1e-10
    )
    whole = [[7.0 * dot(image, text) for text in aligned.text.tolist()] for image in aligned.image.tolist()]
    local = [[3.0 * looped_match(i, k, t1=2.0, t2=6.0) for k in reports] for i in aligned.patches.tolist()]
    expected = 0.5 * looped_contrast(whole) + 2.0 * looped_contrast(local)
    made = Gloria(
        0.07, weights=(0.5, 2.0), global_scale=7.0, attention_scale=2.0, match_scale=6.0, local_scale=3.0
    )
    assert number(made(aligned).total) == pytest.approx(expected, rel=1e-10)


def test_the_studys_temperature_moves_the_infonce_and_not_the_total():
    warm, cold = Gloria(1.0)(batch()), Gloria(0.05)(batch())
    assert number(warm.total) == number(cold.total)
    assert number(warm.infonce) != pytest.approx(number(cold.infonce), rel=1e-2)


def test_a_match_is_between_the_right_image_and_the_right_report():
    aligned = batch()
    found = match_reports(
        aligned.patches[:3], aligned.words, aligned.is_word, attention_scale=4.0, match_scale=5.0
    )
    expected = [[looped_match(i, k) for k in spelled(aligned)] for i in aligned.patches[:3].tolist()]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10)


def test_reports_a_few_at_a_time_and_recomputed_give_the_same_loss_and_gradient(monkeypatch):
    def result() -> list[torch.Tensor]:
        aligned = batch()
        inputs = [aligned.patches.requires_grad_(), aligned.words.requires_grad_()]
        total = Gloria(0.07)(aligned).total
        return [total.detach(), *torch.autograd.grad(total, inputs)]

    kept = result()
    calls = []
    plain = gloria._match
    monkeypatch.setattr(gloria, "_match", lambda *args: calls.append(len(args[1])) or plain(*args))
    monkeypatch.setattr(gloria, "AT_ONCE", 3 * 4 * 4 * 6)
    monkeypatch.setattr(gloria, "KEPT", 0)
    again = result()
    assert sorted(calls) == [1, 1, 3, 3]  # two chunks, each forward and once more for the backward pass
    for one, two in zip(kept, again, strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-14)


def test_a_report_without_words_is_no_pair_and_no_negative_of_the_local_term():
    aligned = batch()
    is_word = aligned.is_word.clone()
    is_word[1] = False
    expected = looped_gloria(aligned, spelled(aligned), [0, 2, 3])
    assert number(Gloria(0.07)(replace(aligned, is_word=is_word)).total) == pytest.approx(expected, rel=1e-10)


def test_without_any_words_only_the_global_term_is_left():
    aligned = batch()
    empty = replace(aligned, is_word=torch.zeros_like(aligned.is_word))
    whole = [[10.0 * dot(i, t) for t in aligned.text.tolist()] for i in aligned.image.tolist()]
    assert number(Gloria(0.07)(empty).total) == pytest.approx(looped_contrast(whole))


def test_one_pair_costs_nothing():
    one = Aligned(**{key: value[:1] for key, value in vars(batch()).items() if value is not None})
    assert number(Gloria(0.07)(one).total) == 0.0


def test_parts_of_words_are_summed_before_they_are_matched():
    # Ids 7 and 9 continue a word: report 0 is "a+b c", 1 is "a", 2 is "a+b+c d", 3 is "a b".
    tokens = torch.tensor([[1, 3, 9, 4, 0], [1, 3, 0, 0, 0], [1, 5, 7, 9, 4], [1, 3, 4, 0, 0]])
    aligned = replace(batch(), tokens=tokens)
    w = aligned.words
    reports = [
        [(w[0, 0] + w[0, 1]).tolist(), w[0, 2].tolist()],
        [w[1, 0].tolist()],
        [(w[2, 0] + w[2, 1] + w[2, 2]).tolist(), w[2, 3].tolist()],
        [w[3, 0].tolist(), w[3, 1].tolist()],
    ]
    expected = looped_gloria(aligned, reports, [0, 1, 2, 3])
    assert number(Gloria(0.07, continuations=[9, 7])(aligned).total) == pytest.approx(expected, rel=1e-10)
    apart = looped_gloria(aligned, spelled(aligned), [0, 1, 2, 3])
    assert number(Gloria(0.07)(aligned).total) == pytest.approx(apart, rel=1e-10)


@pytest.mark.parametrize(
    ("words", "is_word", "starts", "merged"),
    [
        ([1, 2, 3, 4, 5], [1, 1, 1, 1, 0], [1, 0, 1, 0, 1], [3, 7, 0, 0, 0]),  # words come first
        ([1, 2, 3, 4], [1, 1, 1, 1], [0, 0, 1, 1], [3, 3, 4, 0]),  # the rest of a word is a word
        ([1, 1, 1], [1, 1, 0], [0, 0, 0], [2, 0, 0]),  # continuations alone
        ([1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ],
)
def test_parts_of_words_are_merged_and_marked(words, is_word, starts, merged):
    found, there = merge_words(
        torch.tensor(words, dtype=torch.float64).reshape(1, -1, 1),
        torch.tensor([is_word], dtype=torch.bool),
        torch.tensor([starts], dtype=torch.bool),
    )
    assert found.flatten().tolist() == merged
    assert there.flatten().tolist() == [value > 0 for value in merged]


def test_ids_beyond_the_continuations_begin_words():
    table = Gloria(0.07, continuations={2, 5}).continues
    found = word_starts(torch.tensor([[0, 1, 2, 5, 6, 30000]]), table)
    assert found.tolist() == [[True, True, False, False, True, True]]


def test_the_table_of_continuations_is_not_part_of_the_model():
    assert not Gloria(0.07, continuations=[3]).state_dict()


def test_padding_or_a_negative_number_is_not_a_continuation():
    for ids in ([0, 4], [-1]):
        with pytest.raises(ConfigError, match="continuation"):
            Gloria(0.07, continuations=ids)
