"""Flower's simulation of the study in :mod:`secfed.bench.engines`: Ray, FedAvg, no protection.

    python -m secfed.bench.engines_flower ROUNDS EPOCHS SITES WORKERS

Prints a time at the start, after every round and at the end.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from secfed.algorithms.framework.setting import Setting
from secfed.bench.engines import STUDY
from secfed.study.build import build
from secfed.study.study import Study


def main() -> None:
    """Run it."""
    rounds, epochs, sites, workers = map(int, sys.argv[1:])
    text = STUDY.format(rounds=rounds, epochs=epochs, sites=sites)
    setting: Setting = build(Study.parse(text)).setting  # type: ignore[attr-defined]
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        """The local epochs of one site."""
        torch.set_num_threads(1)
        here: Setting = build(Study.parse(text)).setting  # type: ignore[attr-defined]
        data = here.labelled().site(f"hospital-{int(context.node_config['partition-id']) + 1}")
        model = here.model()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        inputs, labels = torch.as_tensor(data.train_x), torch.as_tensor(data.train_y)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(inputs)), 32):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        content: dict[str, Any] = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(inputs)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def run(grid: Grid, _context: Context) -> None:
        """FedAvg over all sites."""

        def told(_number: int, _arrays: ArrayRecord) -> None:
            print("at", time.perf_counter(), flush=True)

        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        start = ArrayRecord(setting.model().state_dict())
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=told)

    print("at", time.perf_counter(), flush=True)
    backend: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers}}
    run_simulation(server, client, sites, backend_config=backend)
    print("at", time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
