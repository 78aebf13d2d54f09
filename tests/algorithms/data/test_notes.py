"""Tables of texts, and the encoder that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from secfed.algorithms.data.notes import NotesOptions, notes
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.algorithms.models.note_encoder import NoteEncoder, NoteEncoderOptions, note_encoder, write_start
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError
from secfed.study.study import Study
from tests.algorithms.whole import run

TEXTS = {"fever": ("fever and\nchills", "high fever again"), "bone": ("broken bone", "a bone, fractured")}
TABLE = {
    "name": "notes",
    "path": "notes.csv",
    "sites": ["a", "b", "c"],
    "site_column": "ward",
    "text_column": "note",
    "label_column": "about",
    "labels": ["fever", "bone"],
    "length": 6,
    "buckets": 64,
}


def write(folder: Path, extra: str = "") -> None:
    rows = [f'{site},"{text}",{label}' for site in "abc" for label in TEXTS for text in TEXTS[label] * 5]
    (folder / "notes.csv").write_text("ward,note,about\n" + "\n".join(rows) + "\n" + extra)


def options(**changes: object) -> NotesOptions:
    return checked(NotesOptions, {**TABLE, **changes}, "data")


def test_texts_become_rows_of_tokens(tmp_path: Path):
    write(tmp_path)
    data = notes(options(), 1, tmp_path)
    assert (data.input_shape, data.classes) == ((6,), 2)
    site = data.site("b")
    assert len(site.train_y) == 16
    assert site.train_x.dtype == torch.float32
    assert site.train_x[:, 0].unique().tolist() == [1.0]
    assert 3 <= float(site.train_x.max()) < 67
    private = notes(options(), 1, tmp_path).for_record_privacy()
    assert len(private.site("b").train_y) + len(private.site("b").test_y) == 20


def test_a_label_that_is_not_listed_is_never_shown(tmp_path: Path):
    write(tmp_path, "a,text of a patient,secret\n")
    with pytest.raises(DataError, match="column 'about' is not one of") as error:
        notes(options(), 1, tmp_path).site("a")
    assert "secret" not in str(error.value)
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        assert len(notes(options(), 1, tmp_path).site("a").train_y) == 17
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"partition": "iid"}, "data.sites: iid divides"),
        ({"site_column": None}, "data.site_column: is missing"),
        ({"labels": ["a", "a"]}, "data.labels"),
        ({"tokenizer_folder": "x"}, "data.buckets: has no effect"),
    ],
)
def test_keys_that_do_not_fit_together(changes: dict[str, object], what: str):
    with pytest.raises(ConfigError, match=what):
        options(**changes)


def test_an_encoder_learns_and_starts_from_weights(tmp_path: Path):
    pytest.importorskip("transformers")
    write(tmp_path)
    (tmp_path / "study.toml").write_text("""
        study = { name = "notes", rounds = 3, seed = 1 }
        protection = { name = "masked" }
        algorithm = { name = "fedavg", weighting = "equal", optimizer = "adam", learning_rate = 0.02 }
        model = { name = "note-encoder", width = 8, hidden = 8, heads = 2, vocabulary = 67 }
        [data]
        name = "notes"
        path = "notes.csv"
        sites = ["a", "b", "c"]
        site_column = "ward"
        text_column = "note"
        label_column = "about"
        labels = ["fever", "bone"]
        length = 6
        buckets = 64
    """)
    assert run(Study.load(tmp_path / "study.toml")).final["accuracy"] == 1.0
    sizes = NoteEncoderOptions(name="note-encoder", width=8, hidden=8, heads=2, vocabulary=67)
    first, second = (note_encoder((6,), 2, sizes) for _ in range(2))
    assert isinstance(first, NoteEncoder)
    published = {f"bert.{name}": value for name, value in first.text.state_dict().items()}
    save_file(published, tmp_path / "w.safetensors")
    write_start(second, tmp_path / "w.safetensors", tmp_path / "start.safetensors")
    assert isinstance(second, NoteEncoder)
    tokens = torch.tensor([[1.0, 5.0, 9.0, 0.0, 0.0, 0.0], [0.0] * 6])
    for name, value in first.text.state_dict().items():
        assert torch.equal(value, second.text.state_dict()[name])
    assert torch.isfinite(second(tokens)).all()
    with pytest.raises(ConfigError, match="rows of token ids"):
        note_encoder((1, 8, 8), 2, sizes)
