"""A search over trials that sets up its logger for each one: the handlers of old trials keep their records."""

from __future__ import annotations

import logging

from _training import Network, normal, parse, start

PHASES = ("set_up_trial", "train", "report")
RECORDS = 1_600
# A record has its own dict, a message and its arguments.
RECORD_BYTES = 2_400
HANDLERS_KEPT = 10
LOGGER = logging.getLogger("search")


class TrialHandler(logging.Handler):
    """Collects the lines of one trial for its report."""

    def __init__(self, trial: int) -> None:
        super().__init__()
        self.trial = trial
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "trial", None) == self.trial:
            record.message = record.getMessage()
            self.records.append(record)


def set_up_logging(trial: int, kept: int | None) -> TrialHandler:
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    handler = TrialHandler(trial)
    LOGGER.addHandler(handler)
    if kept is not None and len(LOGGER.handlers) > kept:
        LOGGER.removeHandler(LOGGER.handlers[0])
    return handler


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    for trial in range(options.generations):
        run.generation(trial)
        with run.phase("set_up_trial"):
            handler = set_up_logging(trial, None if options.leaking else HANDLERS_KEPT)
            model = Network(random)
        with run.phase("train"):
            for step in range(RECORDS):
                loss = model.fit(random, steps=1, batch=32)
                LOGGER.info(
                    "step %d of trial %d: loss %.4f, rate %g", step, trial, loss, 1e-3,
                    extra={"trial": trial, "weights": str(model.second[:8].round(3).tolist())},
                )  # fmt: skip
        with run.phase("report"):
            run.gauge("lines", len(handler.records))
            run.gauge("score", float(model.predict(normal(random, 256, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
