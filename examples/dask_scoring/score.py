"""Scores a directory of .npy inputs with Dask's scheduler. Each worker process loads the model once.

python score.py MODEL INPUTS OUTPUT.npz [--workers 2] [--threads 2] [--scheduler ADDRESS]

MODEL takes one input, INPUTS/*.npy hold one each, and OUTPUT.npz gets the first output of each by its name.
Without --scheduler the workers are processes of this machine. Elsewhere MODEL and INPUTS have to be readable
at the same paths, as on a shared file system; load_program(bytes) instead of a path sends the model along.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy
from distributed import Client, LocalCluster, Worker, WorkerPlugin, get_worker

import et_cffi


class Model(WorkerPlugin):
    """What a worker process keeps between tasks: a method for each of its threads."""

    name = "model"

    def __init__(self, program: et_cffi.Program) -> None:
        self.program = program  # pickles, where a method would not
        self.loaded = 0

    def setup(self, worker: Worker) -> None:
        et_cffi.set_num_threads(1)  # the workers share the cores already
        self.pool = et_cffi.MethodPool(self.program, "forward", worker.state.nthreads)
        self.loaded += 1

    def teardown(self, worker: Worker) -> None:
        self.pool.close()


def score(path: str) -> tuple[numpy.ndarray, int]:
    """One task: the scores, and which process computed them."""
    (result, *_) = get_worker().plugins["model"].pool.execute([numpy.load(path)])
    return numpy.array(result), os.getpid()  # a result is memory of its process; an array of it travels


def times_loaded(dask_worker: Worker) -> int:
    return dask_worker.plugins["model"].loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of each worker")
    parser.add_argument("--scheduler", help="of a running cluster, such as tcp://host:8786")
    options = parser.parse_args()

    cluster = options.scheduler or LocalCluster(
        n_workers=options.workers, threads_per_worker=options.threads, dashboard_address=None
    )
    with Client(cluster) as client:
        client.register_plugin(Model(et_cffi.Runtime.get().load_program(options.model)))
        paths = sorted(options.inputs.glob("*.npy"))
        scored = client.gather(client.map(score, [str(path.resolve()) for path in paths], pure=False))
        loaded = sum(client.run(times_loaded).values())
    if not options.scheduler:
        cluster.close()

    numpy.savez(options.output, **{path.stem: scores for path, (scores, _) in zip(paths, scored)})
    processes = len({process for _, process in scored})
    print(f"{len(paths)} inputs scored in {processes} processes, which loaded the model {loaded} times")


if __name__ == "__main__":
    main()
