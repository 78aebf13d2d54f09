"""FedAvg and FedYogi in Flower: ``python flower_means.py fedavg``."""

import sys

import torch
from common import EPOCHS, RATE, ROUNDS, SITES, accuracy, net, records
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedYogi
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records(int(context.node_config["partition-id"]))
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(x)), 32):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, _context: Context) -> None:
    common = {"fraction_evaluate": 0.0, "min_train_nodes": SITES, "min_available_nodes": SITES}
    strategy = FedAvg(**common) if sys.argv[1] == "fedavg" else FedYogi(**common, eta=0.03)
    torch.manual_seed(0)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=ROUNDS)
    print("accuracy", accuracy(result.arrays.to_torch_state_dict()))


run_simulation(server, client, SITES, backend_config={"client_resources": {"num_cpus": 1}})
