"""SCAFFOLD in Flower, which has no strategy for it: ``python flower_scaffold.py``."""

from collections.abc import Iterable

import torch
from common import EPOCHS, RATE, ROUNDS, SITES, accuracy, net, records
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

client, server = ClientApp(), ServerApp()


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in net().state_dict().items()}


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model, received = net(), message.content["arrays"].to_torch_state_dict()
    model.load_state_dict(received)
    whole = message.content["control"].to_torch_state_dict()
    kept = context.state.array_records.get("control")
    own = zeros() if kept is None else kept.to_torch_state_dict()
    x, y = records(int(context.node_config["partition-id"]))
    optimiser, steps = torch.optim.SGD(model.parameters(), lr=RATE), 0
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(x)), 32):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            for name, parameter in model.named_parameters():
                parameter.grad += whole[name] - own[name]
            optimiser.step()
            steps += 1
    moved = model.state_dict()
    new = {n: own[n] - whole[n] + (received[n] - moved[n]) / (steps * RATE) for n in own}
    context.state["control"] = ArrayRecord(new)
    content = {
        "arrays": ArrayRecord(moved),
        "change": ArrayRecord({name: new[name] - own[name] for name in own}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)


class Scaffold(FedAvg):
    def __init__(self, **common: float) -> None:
        super().__init__(**common)
        self.control = zeros()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["control"] = ArrayRecord(self.control)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        valid = [reply for reply in replies if reply.has_content()]
        for reply in valid:
            for name, change in reply.content["change"].to_torch_state_dict().items():
                self.control[name] = self.control[name] + change / SITES
            del reply.content["change"]
        return super().aggregate_train(server_round, valid)


@server.main()
def main(grid: Grid, _context: Context) -> None:
    strategy = Scaffold(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    torch.manual_seed(0)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=ROUNDS)
    print("accuracy", accuracy(result.arrays.to_torch_state_dict()))


run_simulation(server, client, SITES, backend_config={"client_resources": {"num_cpus": 1}})
