"""A page of results and its figures, from the JSON files of the runs."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sections
from comparison import mean_and_spread
from vlp_runs import (
    ABLATION,
    ALL,
    AT_ONCE,
    COUNTING,
    EXCESS,
    GUIDES,
    METHODS,
    ON_TOP,
    OTHERS,
    PRETRAINED,
    PRIVATE,
    ROUNDS,
    SETS,
    STEPS,
    TRACES,
    UNITS,
    WARM,
)

from secfed.runs import figure_style as style

Run = dict[str, Any]
Runs = Mapping[str, Sequence[Run]]  # by method, in the order of the seeds

_HEAD = """# Federated vision-language pre-training: methods compared

    python benchmarks/results_vlp.py --jobs 2

Text-to-image recall in percent (R@1, R@5) of one model trained at five sites by masked sums: mean over the
sites, and the worst site; mean and standard deviation over seeds. Synthetic chest images, and real images
of MedPix. Your own run: `runs/vlp/SET/METHOD-seed-N.json`, key `scores`; a row below is the mean over N.
"""
_SETTINGS = f"""## Columns and settings

Masked protection, five sites, the CPU size of the model (`tiny`, 0.3 million parameters), ConVIRT objective,
temperature 0.1. Unless a heading says otherwise, every method takes {ROUNDS * STEPS} local steps per site,
over all its stages; "centralised" takes as many steps as all sites together, on pooled pairs. Where the keys
say `learning_rate_warmup`, the learning rate rises over the first steps of every stage.
A seed decides records, division, initial model and batches. The sizes are far below the papers', so only
comparisons inside one table mean anything.

* **R@1, R@5**: text-to-image recall inside batches, on held-out pairs, mean over sites. **Worst**: the
  lowest site. **Disparity**: population standard deviation of R@1 over sites; **max-min** its range.
  Per-site numbers are `oracle`: a simulation can know them, a study cannot.
* **R@1 / ceiling**: R@1 divided by what repeated reports leave possible: of several images with one report
  only one can come first. Its worst site and disparity compare methods; those of R@1 mostly compare records.
* **One mixture**: pairs in each site's style whose findings are as frequent at every site; **distinct
  reports**: each site's own pairs, one of every report. There sites differ by the model, and hardly by their
  records.
* **Decentralised**: each site alone; every site's model is measured at *all* sites, and the mean over the
  models is shown. "At home" is each model at its own site.
* **Few shots**: one linear layer on frozen image features, 1 % or 10 % of the labels, five draws.
  **Pneumonia**: accuracy on PneumoniaMNIST. **Findings**: balanced accuracy, mean of five binary probes.
  **Dice**: a small decoder on frozen features, 1 % or 10 % of the masks.
* **mu, guidance, beta** multiply the *mean* over pairs and the 64 dimensions of an embedding, as in the
  authors' code, unless a row says "squared norm": in the papers' formulas, sums over dimensions, mu = 5 is
  0.08 and beta = 2 is 0.03.
* **Unseen**: R@1 in a style that no site has. **Distortion**: mean drop of paired cosine similarity after
  one more round of plain training at a single site; **own loss**: of the method's own training. In tables
  from pretrained encoders, without a rising rate and on MedPix it is after another round of each method's
  own number of steps (FedRGB 35, the others 40).
"""
# What the first table shows: title, data set, which runs, score.
_SUMMARY = (
    ("from pretrained encoders: R@1", "chest-synthetic", "-pretrained", "recall_at_1"),
    ("worst R@1", "chest-synthetic", "-pretrained", "worst_at_1"),
    ("from scratch: R@1", "chest-synthetic", "-warm", "recall_at_1"),
    ("worst R@1", "chest-synthetic", "-warm", "worst_at_1"),
    ("MedPix, from scratch: R@5", "medpix", "", "recall_at_5"),
)
_RECALL = {
    "R@1": "recall_at_1",
    "R@5": "recall_at_5",
    "worst R@1": "worst_at_1",
    "worst R@5": "worst_at_5",
    "disparity": "disparity",
    "max-min": "max_min",
    "R@1 / ceiling": "relative_at_1",
    "worst": "worst_relative_at_1",
    "its disparity": "relative_disparity",
}
_FAIR = {
    "R@1, one mixture": "common_at_1",
    "worst, one mixture": "worst_common_at_1",
    "disparity, one mixture": "common_disparity",
    "R@1 / ceiling, one mixture": "common_relative_at_1",
    "worst / ceiling": "worst_common_relative_at_1",
    "its disparity": "common_relative_disparity",
    "R@1, distinct reports": "distinct_at_1",
    "worst, distinct": "worst_distinct_at_1",
    "disparity, distinct": "distinct_disparity",
}
_OTHER = {
    "pneumonia 1 %": "pneumonia_1",
    "pneumonia 10 %": "pneumonia_10",
    "findings 1 %": "findings_1",
    "findings 10 %": "findings_10",
    "Dice 1 %": "dice_1",
    "Dice 10 %": "dice_10",
    "unseen R@1": "unseen_at_1",
}


def write(runs: Path, page: Path, figures: Path, seeds: Sequence[int]) -> Path:
    loaded = {name: _load(runs / name, seeds) for name in SETS}
    parts = [_SETTINGS]
    first: list[str] = []
    for name, dataset in SETS.items():
        found = loaded[name]
        if not found:
            continue
        chance = " and ".join(f"{100 * k / dataset.batch:.1f} % (R@{k})" for k in (1, 5))
        facts = f"Retrieval inside batches of {dataset.batch}: chance is {chance}."
        main = {"untrained": METHODS["untrained"], **WARM} if any(m in found for m in WARM) else METHODS
        parts += [f"## {name}: {dataset.title}", facts]
        if any(method in found for method in PRETRAINED):
            parts += _from_pretrained(found)
        parts += ["### From scratch", _data_of(found, main), _tables(found, main)]
        if main is not METHODS:
            parts += _beside_fedavg(found, WARM, "fedavg-warm")
            parts += [
                "### The whole learning rate from every stage's first step on",
                "The same without `learning_rate_warmup`. The distortion in this table is after another "
                "round of each method's own number of steps.",
                _tables(found, METHODS),
            ]
        if any(method in found for method in ON_TOP):
            parts += [
                "### Stages of their own on top, as the papers count, without a rising rate",
                "Every round has as many steps of the encoders as FedAvg's; what FedDRA and FedRGB train "
                "beside them is added. FedAvg with as many steps in all as this FedDRA tells what steps "
                "alone bring.",
                _tables(_same_seeds(found, ON_TOP), {"fedavg": ALL["fedavg"], **ON_TOP}),
            ]
        parts += _beside_fedavg(found, {**METHODS, **ON_TOP})
        drawn = _figures(name, found, main, runs / name, figures)
        if not first:
            first, drawn = drawn[:1], drawn[1:]
        parts += drawn
        done = {(method, run["seed"]) for method, several in found.items() for run in several}
        missing = [f"{method} seed {seed}" for method in main for seed in seeds if (method, seed) not in done]
        if missing:
            parts.append("Missing: " + ", ".join(missing) + ".")
        every = [run for several in found.values() for run in several]
        wall, cpu = (sum(run[key] for run in every) / 60 for key in ("wall_s", "cpu_s"))
        parts.append(
            f"{len(every)} runs of one thread: {wall:.0f} minutes of wall time in all, {cpu:.0f} of CPU time."
        )
    head = [_HEAD, "## Methods", _summary(loaded), sections.machine(), *first]
    return sections.write_page(page, [*head, *parts])


def _summary(loaded: Mapping[str, Runs]) -> str:
    lines = []
    for method in METHODS:
        cells = []
        for _, name, suffix, key in _SUMMARY:
            own = method if method == "untrained" and suffix != "-pretrained" else f"{method}{suffix}"
            cells.append(mean_and_spread(run["scores"].get(key) for run in loaded[name].get(own, ())))
        lines.append([METHODS[method].title, *cells])
    return sections.table(["method", *(title for title, *_ in _SUMMARY)], lines)


def _from_pretrained(found: Runs) -> list[str]:
    """The papers' own setting: the methods, others they compare with, the parts of FedDRA, and privacy."""
    parts = [
        "### From pretrained encoders",
        "As the papers fine-tune: both encoders were trained before, for 600 steps on 4,000 other "
        "synthetic pairs, made with another seed for hospitals of the same five kinds in milder "
        "styles; alignment modules are new.",
        _data_of(found, {**PRETRAINED, **OTHERS}),
        _tables(found, PRETRAINED),
        *_beside_fedavg(found, PRETRAINED, "fedavg-pretrained"),
    ]
    base = {name: ALL[name] for name in ("fedavg-pretrained", "feddra-pretrained")}
    for rows, text in (
        (OTHERS, "#### Other methods that secure sums allow"),
        (ABLATION, "#### FedDRA without one of its parts, and with the paper's radius"),
        (EXCESS, "#### Robust weights from the excess over a local reference"),
        (GUIDES, "#### FedRGB's teacher and guidance"),
        (UNITS, "#### Anchor and guidance as squared norms, as in the papers' formulas"),
        (COUNTING, "#### The papers' counting, a tenth of each stage rising, and FedAvg with as many steps"),
        (AT_ONCE, "#### The same, at the full rate from the first step"),
    ):
        if any(method in found for method in rows):
            parts += [
                text,
                _tables(_same_seeds(found, rows), {**base, **rows}),
                *_beside_fedavg(found, rows, "fedavg-pretrained"),
            ]
    if any(method in found for method in PRIVATE):
        parts += [
            "#### FedDRA under differential privacy",
            "Epsilon bounds what the models of all rounds say, with delta 1e-4; the pretrained encoders are "
            "public and stay as they are: only alignment modules train, in 60 steps of 480 pairs. Recall "
            "leaves without noise, for this table only; it is not part of epsilon.",
            _data_of(found, PRIVATE).partition("\n\n")[2],
            _tables(_same_seeds(found, PRIVATE), PRIVATE),
        ]
    return parts


def _load(folder: Path, seeds: Sequence[int]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for method in ALL:
        files = [folder / f"{method}-seed-{seed}.json" for seed in seeds]
        several = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        if several:
            found[method] = several
    return found


def _same_seeds(found: Runs, variants: Mapping[str, Any]) -> Runs:
    """Every method with the seeds that some variant has, so that rows of a table can be compared."""
    seeds = {run["seed"] for variant in variants for run in found.get(variant, ())}
    return {method: [run for run in several if run["seed"] in seeds] for method, several in found.items()}


def _data_of(found: Runs, methods: Mapping[str, Any]) -> str:
    """The [data] table and the keys of each method, as they ran."""
    lines = []
    for method in methods:
        if method in found and methods[method].kind == "federated":
            text = found[method][0]["study"].split("[algorithm]\n")[1].split("[model]")[0]
            lines.append(" ".join(line.replace(" = ", "=") for line in text.splitlines()))
    study = found[next(iter(found))][0]["study"]
    data = ", ".join(study.split("[data]\n")[1].split("[protection]")[0].splitlines()[1:])
    keys = "\n".join(f"    {line}" for line in lines)
    return f"`{data}`\n\n{keys}"


def _tables(found: Runs, methods: Mapping[str, Any]) -> str:
    rows = {method: found[method] for method in methods if method in found}
    tables = []
    for columns in (_RECALL, _FAIR, _OTHER):
        shown = {
            title: key for title, key in columns.items() if any(key in r[0]["scores"] for r in rows.values())
        }
        if not shown:
            continue
        own = ["distortion, own loss"] if any("distortion_own" in r[0] for r in rows.values()) else []
        last = {id(_RECALL): ["seeds", "CPU min"], id(_OTHER): ["distortion", *own]}.get(id(columns), [])
        lines = []
        for method, several in rows.items():
            scores = (mean_and_spread(run["scores"].get(key) for run in several) for key in shown.values())
            minutes = statistics.fmean(run["training_cpu_s"] for run in several) / 60
            extra = [str(len(several)), f"{minutes:.1f}"][: len(last)]
            if columns is _OTHER:
                extra = [
                    mean_and_spread((run.get(key) for run in several), digits=3, scale=1.0)
                    for key in ("distortion", "distortion_own")[: 1 + len(own)]
                ]
            lines.append([methods[method].title, *scores, *extra])
        tables.append(sections.table(["method", *shown, *last], lines))
    at_home = [run["at_home"]["recall_at_1"] for run in rows.get("decentralised", ())]
    if at_home:
        tables.append(f"Decentralised at home: R@1 {mean_and_spread(at_home)}.")
    return "\n\n".join(tables)


def _beside_fedavg(found: Runs, methods: Mapping[str, Any], base_method: str = "fedavg") -> list[str]:
    """Differences to FedAvg of the same seed, with its records and its division: the sharper look."""
    base = {run["seed"]: run["scores"] for run in found.get(base_method, ())}
    lines = []
    for method, several in found.items():
        pairs = [
            (run["scores"], base[run["seed"]]) for run in several if "scores" in run and run["seed"] in base
        ]
        if method not in methods or method in (base_method, "untrained") or not pairs:
            continue
        line = [ALL[method].title]
        for key, better in (("recall_at_1", 1), ("worst_at_1", 1), ("disparity", -1)):
            gaps = [100 * (mine[key] - its[key]) for mine, its in pairs]
            line.append(
                f"{statistics.fmean(gaps):+.1f} ({sum(better * gap > 0 for gap in gaps)} of {len(gaps)})"
            )
        lines.append(line)
    if not lines:
        return []
    return [
        "Differences to FedAvg with the same seed, in points (and in how many seeds it is better):",
        sections.table(["method", "R@1", "worst R@1", "disparity"], lines),
    ]


def _figures(name: str, found: Runs, main: Mapping[str, Any], folder: Path, figures: Path) -> list[str]:
    figures.mkdir(parents=True, exist_ok=True)
    shown = []
    convergence = figures / f"vlp-{name}-convergence.svg"
    # From scratch R@1 of MedPix is noise about chance, which a curve would dress up.
    if name != "medpix" and _convergence(found, main, convergence):
        shown.append((convergence, "R@1 by local steps, from scratch"))
    for method in TRACES:
        for run in found.get(method, ()):
            drawn = folder / f"{method}-seed-{run['seed']}" / "dro.svg"
            if drawn.exists():
                kept = figures / f"vlp-{method.removesuffix('-trace')}-dro.svg"
                shutil.copyfile(drawn, kept)
                shown.append(
                    (kept, f"{ALL[method].title}: robust weights and losses (oracle), seed {run['seed']}")
                )
    return [f"![{what}](figures/{path.name})" for path, what in shown]


def _convergence(found: Runs, main: Mapping[str, Any], path: Path) -> bool:
    """Mean over seeds of the published R@1 after each round, against local steps per site."""
    federated = [m for m in main if main[m].kind == "federated" and m in found]
    with style.styled():
        figure, (axes,) = style.new_figure(1, height_in=3.2)
        for method, colour in zip(federated, style.CYCLE, strict=False):
            histories = [run["history"] for run in found[method]]
            versions = range(min(len(history) for history in histories))
            recalls = [[h[v].get("recall_at_1") for h in histories] for v in versions]
            known = [(v, [r for r in at if r is not None]) for v, at in zip(versions, recalls, strict=True)]
            keys = ALL[method].keys
            first = float(keys.get("warmup_steps", 0))  # type: ignore[arg-type]
            later = sum(float(value) for key, value in keys.items() if key.endswith("_steps")) - first  # type: ignore[arg-type]
            at = [(0.0 if not v else first + later * (v - 1) if first else later * v) for v, _ in known]
            line = [100 * statistics.fmean(values) if values else float("nan") for _, values in known]
            axes.plot(at, line, color=colour, marker="o", label=ALL[method].title)
        axes.set_xlabel("local steps per site")
        axes.set_title("Recall@1 in percent, mean over sites and seeds")
        if federated:
            axes.legend()
            style.save_svg(figure, path)
    return bool(federated)
