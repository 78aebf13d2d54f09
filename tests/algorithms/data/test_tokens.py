from __future__ import annotations

import pytest
import torch

from secfed.algorithms.data.image_text.medpix import MedpixOptions
from secfed.algorithms.data.tokens import (
    CLS,
    PAD,
    RESERVED,
    UNKNOWN,
    FolderTokenizer,
    HashTokenizer,
    WordTokenizer,
    read_words,
    words_of,
)
from secfed.config.schema import checked
from secfed.errors import ConfigError


def test_words_are_lower_case_without_punctuation():
    assert words_of("No acute Findings; LEFT-sided, 3.5 cm (stable)...") == (
        ["no", "acute", "findings", "left", "sided", "3", "5", "cm", "stable"]
    )
    assert words_of("  \n—“”") == []
    assert words_of("Ödem, \ufb01brosis, œdème") == ["ödem", "fibrosis", "œdème"]


def test_equal_letters_in_other_codes_are_equal_words():
    assert words_of("A\u0308rztin") == words_of("Ärztin")


def test_rows_start_with_cls_and_end_with_padding():
    rows = WordTokenizer(("clear", "lung"), 5).encode(["Clear lung lung", "", "heart clear"])
    assert rows.dtype == torch.int64
    assert rows.tolist() == [
        [CLS, RESERVED, RESERVED + 1, RESERVED + 1, PAD],
        [CLS, PAD, PAD, PAD, PAD],
        [CLS, UNKNOWN, RESERVED, PAD, PAD],
    ]


def test_long_reports_are_cut_at_the_end():
    rows = WordTokenizer(("a", "b"), 3).encode(["a b b b"])
    assert rows.tolist() == [[CLS, RESERVED, RESERVED + 1]]


def test_hashes_are_these_in_every_version():
    rows = HashTokenizer(4096, 6).encode(["Pleural effusion, right"])
    assert rows.tolist() == [[CLS, 2185, 1495, 1044, PAD, PAD]]


def test_hash_ids_stay_inside_the_vocabulary_and_spread():
    tokenizer = HashTokenizer(50, 1001)
    ids = tokenizer.encode([" ".join(f"word{at}" for at in range(1000))])[0, 1:]
    assert RESERVED <= int(ids.min()) <= int(ids.max()) < tokenizer.vocabulary == 53
    assert len(ids.unique()) == 50


def test_a_length_without_room_for_a_word_is_refused():
    with pytest.raises(ConfigError, match=r"data\.text_length"):
        checked(MedpixOptions, {"name": "medpix", "text_length": 1}, "data")


def test_a_list_of_words_is_read_from_a_file(tmp_path):
    (tmp_path / "words.txt").write_text("lung\n\nheart\n", encoding="utf-8")
    assert read_words(tmp_path / "words.txt") == ("lung", "heart")
    with pytest.raises(ConfigError, match="cannot read"):
        read_words(tmp_path / "absent.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="0 words"):
        read_words(tmp_path / "empty.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("bert")
    (place / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nlung\nclear\n##s\n")
    transformers.BertTokenizerFast(vocab=str(place / "vocab.txt")).save_pretrained(place)
    return place


def test_a_local_folder_with_a_published_tokenizer(folder):
    tokenizer = FolderTokenizer(folder, 6)
    rows = tokenizer.encode(["clear lungs", "lung " * 20])
    assert tokenizer.vocabulary == 8
    assert rows.tolist() == [[2, 6, 5, 7, 3, 0], [2, 5, 5, 5, 5, 3]]
    assert tokenizer.encode([]).shape == (0, 6)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        FolderTokenizer(tmp_path / "absent", 6)
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        FolderTokenizer(tmp_path, 6)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        FolderTokenizer(tmp_path, 6)


@pytest.mark.parametrize("text", ["lung\n\nJane Miller 83\n", "lung\n\nlung\n", "lung\n\nA\n"])
def test_a_wrong_line_of_a_file_is_named_by_its_number_and_never_quoted(tmp_path, text):
    (tmp_path / "words.txt").write_text(text)
    with pytest.raises(ConfigError, match=r"data\.words_file: words\.txt, line 3") as caught:
        read_words(tmp_path / "words.txt")
    assert "Miller" not in str(caught.value)
