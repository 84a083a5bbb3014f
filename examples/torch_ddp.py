"""Synchronous data parallelism in PyTorch: DistributedDataParallel, each rank fed its shard.

    torchrun --nproc_per_node 2 examples/torch_ddp.py
    torchrun --nproc_per_node 2 examples/torch_ddp.py --die 1 --save ckpt   # killed in epoch 2
    torchrun --nproc_per_node 2 examples/torch_ddp.py --save ckpt --resume  # goes on after it

At the end of each epoch the first rank saves the model and the optimizer, and every rank the state
of its own feed. All ranks take equally many steps, so none waits for another at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from cluster_options import check_rank, parsed
from fault_injection import die
from torch.nn.parallel import DistributedDataParallel
from torch_checkpoints import load, save

from fastfeed import FeedRunner, OptionError, Shard, StateError
from fastfeed.benchmark import digits


def main() -> None:
    args = options()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # also the longest wait for a rank that never comes, or that has died
    limit = timedelta(seconds=args.timeout_s)
    torch.set_num_threads(1)  # the ranks share the cores
    try:
        dist.init_process_group("gloo", timeout=limit)
        train(rank, world, args)
    except (OptionError, StateError, dist.DistStoreError) as error:
        sys.exit(f"rank {rank}: {error}")
    except RuntimeError as error:  # of gloo, as any other of torch
        if "gloo" not in str(error):
            raise
        said = str(error).partition(". ")[0]
        print(f"rank {rank}: another rank died or is stuck: {said}", file=sys.stderr, flush=True)
        os._exit(1)  # a clean end would wait for it
    dist.destroy_process_group()


def train(rank: int, world: int, args: argparse.Namespace) -> None:
    data = digits.load(args.data)
    torch.manual_seed(args.seed)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
    )
    model = DistributedDataParallel(net)
    # k ranks average over k times the records: k times the rate (Goyal et al., 2017; the reason is
    # in large_minibatch.py), to which it rises in the first epoch
    optimizer = torch.optim.SGD(net.parameters(), args.learning_rate * world, momentum=0.9)
    runner = FeedRunner(
        (data.x_train[: args.records], data.y_train[: args.records]),
        batch_size=args.batch_size,
        shard=Shard(rank, world, remainder="drop"),
        last_batch="drop",
        shuffle=True,
        seed=args.seed,
    )
    with runner:
        batches = runner.torch()
        steps = len(batches)
        rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / world, total_iters=steps)
        parts = {"model": net, "optimizer": optimizer, "rise": rise}
        first = load(args.save, rank, world, parts={**parts, "feed": runner}) if args.resume else 0
        for epoch in range(first, args.epochs):
            start = time.perf_counter()
            for done, (images, labels) in enumerate(batches, start=1):
                loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
                optimizer.zero_grad()
                loss.backward()  # averages the gradients of all ranks
                optimizer.step()
                rise.step()
                if rank == args.die and epoch == 1 and done == 3:
                    die()
            if args.save:
                save(args.save, rank, world, parts={**parts, "feed": runner}, epoch=epoch + 1)
            if rank == 0:
                rate = steps * args.batch_size * world / (time.perf_counter() - start)
                with torch.no_grad():
                    found = net(torch.from_numpy(data.x_test).float() / 255).argmax(1).numpy()
                print(
                    f"epoch {epoch + 1}: {steps} steps on each of {world} ranks, {rate:.0f} "
                    f"records/s, test accuracy {(found == data.y_test).mean():.4f}",
                    flush=True,
                )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, {"type": int, "metavar": "N"}
    add("--epochs", default=5, help="passes over the data (5)", **number)
    add("--batch-size", default=64, help="records of a step on each rank (64)", **number)
    add("--records", help="train on the first N records only (all)", **number)
    add("--learning-rate", type=float, default=0.05, help="of one rank (0.05)")
    add("--seed", type=int, default=1, help="of the weights and the order, in all ranks (1)")
    add("--die", metavar="RANK", type=int, help="this rank is killed in the second epoch")
    add("--save", metavar="FOLDER", type=Path, help="save every epoch there")
    add("--resume", action="store_true", help="go on with what --save has saved")
    add("--timeout-s", type=float, default=30.0, help="longest wait for another rank (30)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--quick", action="store_true", help="three epochs of 1,280 records")
    least = {"epochs": 1, "batch_size": 1, "records": 1, "learning_rate": 0, "timeout_s": 1}
    args = parsed(parser, **least)
    if "RANK" not in os.environ:
        parser.error("torchrun starts the ranks: torchrun --nproc_per_node 2 torch_ddp.py ...")
    check_rank(parser, args, int(os.environ["WORLD_SIZE"]))
    if args.save is not None and args.save.exists() and not args.save.is_dir():
        parser.error(f"--save {args.save}: is not a folder")
    if args.resume and args.save is None:
        parser.error("--resume needs the folder: --save FOLDER")
    if args.quick:
        args.epochs, args.records = min(args.epochs, 3), args.records or 1280
    return args


if __name__ == "__main__":
    main()
