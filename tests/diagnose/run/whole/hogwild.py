"""Processes that train one shared model, each with a DataLoader of its own."""

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def train(rank, model):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    rows = TensorDataset(torch.randn(3_200, 64), torch.randn(3_200, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(10_000):
        loader = DataLoader(rows, batch_size=32, shuffle=True)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(rank, epoch, loss.item(), flush=True)


if __name__ == "__main__":
    mp.set_start_method("spawn")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model.share_memory()
    processes = [mp.Process(target=train, args=(rank, model)) for rank in range(2)]
    print("start", flush=True)
    for process in processes:
        process.start()
    for process in processes:
        process.join()
