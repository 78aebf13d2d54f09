"""benchmarks/flickr_topics.py: topics are whole words of any caption, and images stay as they are."""

from __future__ import annotations

import json
from zipfile import ZipFile

import flickr_topics

CAPTIONS = {
    "1.jpg": ["A Woman with two dogs .", "Someone on a beach"],
    "2.jpg": ["A mandolin in a doghouse"],  # "man" and "dog" are parts of words
}


def test_topics_are_added_to_every_caption_and_images_are_copied(tmp_path, monkeypatch):
    lines = [json.dumps({"image": f"images/{name}", "captions": told}) for name, told in CAPTIONS.items()]
    with ZipFile(tmp_path / "flickr.zip", "w") as archive:
        archive.writestr("captions.jsonl", "\n".join(lines))
        archive.writestr("images/1.jpg", b"one")
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "flickr.zip"), str(tmp_path / "new" / "topics.zip")])
    assert flickr_topics.main() == 0
    with ZipFile(tmp_path / "new" / "topics.zip") as archive:
        assert archive.read("images/1.jpg") == b"one"
        first, second = map(json.loads, archive.read("captions.jsonl").splitlines())
    assert first == {
        "image": "images/1.jpg",
        "captions": CAPTIONS["1.jpg"],
        "dog": 1,
        "child": 0,
        "man": 0,
        "woman": 1,
        "water": 1,
    }
    assert sum(second[topic] for topic in flickr_topics.TOPICS) == 0
