"""COCO's captions in the files that are published: which image has which captions, and on which side it is.

A folder with ``annotations/captions_train2017.json`` and ``.._val2017.json``, and the images in ``train2017``
and ``val2017``; the validation part is held out.

Source: Lin et al., "Microsoft COCO", ECCV 2014; Chen et al., "Microsoft COCO captions", arXiv 1504.00325.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from secfed.algorithms.data.folders import existing_file
from secfed.algorithms.data.tokens import words_of
from secfed.errors import DataError

PARTS: Final = ("train2017", "val2017")

Captioned = tuple[str, str, tuple[str, ...]]  # an image's file, where that stands, and its captions


def captioned(root: Path, part: str, least: int) -> list[Captioned]:
    """The images of a part with the first ``least`` captions of each; those with fewer are left out."""
    path = existing_file("flickr-transfer", root / "annotations" / f"captions_{part}.json")
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        names = {int(one["id"]): str(one["file_name"]) for one in content["images"]}
        captions: dict[int, list[str]] = defaultdict(list)
        for one in content["annotations"]:
            text = str(one["caption"]).strip()
            if words_of(text):
                captions[int(one["image_id"])].append(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"{path.name}: is not COCO's table of captions"
        raise DataError(message, remedy="use the published file") from None
    return [
        (f"{part}/{name}", f"{path.name}, image {number}", tuple(captions[number][:least]))
        for number, name in sorted(names.items())
        if len(captions[number]) >= least
    ]
