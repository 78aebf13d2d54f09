"""Logistic regression on the words (tf-idf) of all hospitals' notes in one place, to compare an encoder with.

python benchmarks/words_of_notes.py examples/notes-abstracts.toml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secfed.algorithms.data.tokens import RESERVED
from secfed.study.build import build_data
from secfed.study.study import Study

STEPS, RATE, DECAYS = 60, 0.05, (1e-5, 1e-4, 5e-4)


def main() -> None:
    """Accuracy and balanced accuracy on the held-out notes, for each weight decay."""
    data: Any = build_data(Study.load(Path(sys.argv[1])))
    sites = [data.site(site) for site in data.sites]
    train_y, test_y = torch.cat([one.train_y for one in sites]), torch.cat([one.test_y for one in sites])
    ids = torch.cat([one.train_x for one in sites]).long(), torch.cat([one.test_x for one in sites]).long()
    words = int(max(part.max() for part in ids)) + 1
    counts = [torch.zeros(len(part), words).scatter_add_(1, part, torch.ones(part.shape)) for part in ids]
    for part in counts:
        part[:, :RESERVED] = 0
    rarity = torch.log(len(train_y) / (1 + (counts[0] > 0).sum(dim=0)))
    train_x, test_x = (nn.functional.normalize(torch.log1p(part) * rarity) for part in counts)
    for decay in DECAYS:
        torch.manual_seed(0)
        model = nn.Linear(words, data.classes)
        optimiser = torch.optim.Adam(model.parameters(), RATE, weight_decay=decay)
        for _ in range(STEPS):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(train_x), train_y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        right = (model(test_x).argmax(dim=1) == test_y).float()
        recalls = [float(right[test_y == one].mean()) for one in range(data.classes)]
        print(
            f"weight decay {decay:g}: accuracy {float(right.mean()):.3f}, "
            f"balanced {sum(recalls) / len(recalls):.3f}"
        )


if __name__ == "__main__":
    main()
