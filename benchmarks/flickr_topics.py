"""Flickr8k's captions with a column for each of five topics, so that hospitals' places can differ by them.

    python benchmarks/flickr_topics.py ../shared/data/flickr8k_2500_96.zip runs/flickr-topics.zip

A photograph has a topic if one of its captions has one of the topic's words. Images are copied as they are.
``examples/vlp-flickr-towers.toml`` divides the result by combinations of topics.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Final
from zipfile import ZipFile

TABLE: Final = "captions.jsonl"
TOPICS: Final = {
    "dog": {"dog", "dogs", "puppy", "puppies"},
    "child": {"child", "children", "boy", "boys", "girl", "girls", "kid", "kids", "baby", "toddler"},
    "man": {"man", "men", "guy", "guys"},
    "woman": {"woman", "women", "lady", "ladies"},
    "water": {"water", "beach", "ocean", "pool", "river", "lake", "wave", "waves", "sea", "surfer"},
}


def with_topics(line: str) -> str:
    """One line of the table with a 0 or 1 for each topic."""
    entry = json.loads(line)
    words = set(re.findall(r"[a-z]+", " ".join(entry["captions"]).lower()))
    return json.dumps(entry | {topic: int(not words.isdisjoint(of)) for topic, of in TOPICS.items()})


def main() -> int:
    parser = argparse.ArgumentParser(description="Add columns of topics to the captions of an archive.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(options.archive) as source, ZipFile(options.out, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            if Path(member.filename).name == TABLE:
                lines = content.decode().splitlines()
                content = "".join(f"{with_topics(line)}\n" for line in lines).encode()
            target.writestr(member, content)
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
