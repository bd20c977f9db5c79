"""Arrow tables are read as shards in each epoch and cached by epoch and shard."""

from __future__ import annotations

import pyarrow
from _training import Network, normal, parse, start

PHASES = ("read_shards", "train", "evaluate")
SHARDS, ROWS, COLUMNS = 3, 20_000, 24
EPOCHS_KEPT = 10


class ShardReader:
    """Keeps the tables of ``epochs`` epochs in its cache."""

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs
        self.tables: dict[tuple[int, int], pyarrow.Table] = {}

    def read(self, epoch: int, shard: int, columns: dict[str, pyarrow.Array]) -> pyarrow.Table:
        self.tables[epoch, shard] = table = pyarrow.table(columns)
        if self.epochs is not None:
            self.tables.pop((epoch - self.epochs, shard), None)
        return table


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    reader = ShardReader(None if options.leaking else EPOCHS_KEPT)
    for epoch in range(options.generations):
        run.generation(epoch)
        with run.phase("read_shards"):
            for shard in range(SHARDS):
                columns = {
                    f"c{i}": pyarrow.array(normal(random, ROWS).tolist(), pyarrow.float32())
                    for i in range(COLUMNS)
                }
                run.gauge("rows", reader.read(epoch, shard, columns).num_rows)
            del columns
        with run.phase("train"):
            model.fit(random, steps=200)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
