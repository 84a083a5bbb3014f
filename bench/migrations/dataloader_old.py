"""DataLoader with two workers."""

from torch.utils.data import DataLoader, Dataset

from bench.migrations.work import BATCHES, loop, work


class Batches(Dataset):
    """Batches by index."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> object:
        return work(index)


if __name__ == "__main__":
    loop(DataLoader(Batches(), batch_size=None, num_workers=2, prefetch_factor=4))
