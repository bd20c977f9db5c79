"""`leakline import` of logs of common tools, each with memory that doubles, stays flat, settles and swings as a saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from leakline.analysis import examine
from leakline.analysis.results import Verdict
from leakline.analysis.run_history import history_from_batches
from leakline.importing import ImportRefused, Log, Wishes, read_log, recorded

READINGS = 60
SHAPES: dict[str, Callable[[int], float]] = {
    "doubles": lambda i: 2000 + 35 * i,
    "flat": lambda i: 2000 + 3 * (i * 7 % 5),
    "settles": lambda i: 1500 + 500 * min(1.0, i / 8) + 2 * (i * 7 % 5),
    "saw": lambda i: 2000 + 60 * (i % 6) + (i * 7 % 5),
}
EXPORTED = "sunny-dust-12 - system/proc.memory.rssMB"


Sizes = Sequence[float]


def of_lines(write: Callable[[int, float], str], head: str = "") -> Callable[[Sizes], str]:
    return lambda sizes: head + "".join(f"{write(i, s)}\n" for i, s in enumerate(sizes))


of_wandb = of_lines(
    lambda i, s: f'"{100 * i}","{s:.2f}","{s - 1:.2f}","{s + 1:.2f}"',
    f'"Step","{EXPORTED}","{EXPORTED}__MIN","{EXPORTED}__MAX"\n',
)
of_tensorboard = of_lines(
    lambda i, s: f"{1764150000 + 30 * i},{50 * i},{s}", "Wall time,Step,Value\n"
)


def mlflow_lines(i: int, size: float) -> str:
    at = f"{1764150000000 + 30000 * i},{10 * i}"
    return f"ab12,loss,0.5,{at}\nab12,train/rss_mb,{size},{at}"


def lightning_lines(i: int, size: float) -> str:
    step = f"{i // 6},{50 * i + 49}"
    return f"{step},0.1,{size}," + (f"\n{step},,,0.5" if i % 6 == 5 else "")


def psutil_line(i: int, size: float) -> str:
    rss = round(size * 1e6)
    return f"batch done\npmem(rss={rss}, vms={3 * rss}, shared=4096, text=1, lib=0, data={rss}, dirty=0)"


def ps_lines(i: int, size: float) -> str:
    head = "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND"
    sizes = f"{3000 * size:.0f} {1000 * size:.0f}"
    return f"{head}\nme          4711 99.0  3.1 {sizes} pts/0    Rl+  10:00   1:02 python train.py"


def top_lines(i: int, size: float) -> str:
    return (
        f"top - 10:{i:02d}:00 up 1 day,  2:03,  1 user,  load average: 1.00, 1.00, 1.00\n"
        f"MiB Mem :  64000.0 total,  {60000 - size:.1f} free,   {size:.1f} used,   4000.0 buff/cache\n\n"
        "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND\n"
        f"   4711 me        20   0    9.1g {size / 1000:.3f}g  100m R  99.9   3.1   1:00.00 python\n"
    )


def docker_lines(i: int, size: float) -> str:
    head = "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O   BLOCK I/O   PIDS"
    used = f"{size / 1000:.3f}GiB / 62.8GiB"
    return f"{head}\n0123456789ab   trainer   99.50%    {used}   3.10%     1kB / 0B  0B / 0B     12"


def free_lines(i: int, size: float) -> str:
    head = "               total        used        free      shared  buff/cache   available"
    return (
        f"2026-11-26 10:{i:02d}:00\n{head}\n"
        f"Mem:           64000Mi     {size:.0f}Mi    4000Mi        12Mi       4000Mi        55000Mi\n"
        "Swap:             0B          0B          0B"
    )


def smi_lines(i: int, size: float) -> str:
    return (
        f"Thu Nov 26 10:{i:02d}:00 2026\n"
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "|=========================================+========================+======================|\n"
        "|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:00:04.0 Off |                    0 |\n"
        f"| N/A   34C    P0             58W /  400W |    {size:5.0f}MiB /  40960MiB |     37%      Default |\n"
        f"|    0   N/A  N/A      4711      C   python                                     {size - 8:5.0f}MiB |"
    )


STAMP = "2026-11-26 10:{:02d}:00"
# Form -> (name of the file, its text, what it counts)
FORMS: dict[str, tuple[str, Callable[[Sizes], str], str]] = {
    "W&B export": ("wandb_export.csv", of_wandb, "step"),
    "W&B export by time": ("wandb_export.csv", of_lines(
        lambda i, s: f'"{60.0 * i + 0.37}","{s:.2f}"', f'"Relative Time (Process)","{EXPORTED}"\n'
    ), "minute"),
    "TensorBoard": ("run-a-tag-memory_rss_mb.csv", of_tensorboard, "step"),
    "MLflow": ("metrics.csv", of_lines(mlflow_lines, "run_id,key,value,timestamp,step\n"), "step"),
    "fractions of an epoch": ("m.csv", of_lines(lambda i, s: f"{i / 100},{s}", "epoch,rss_mb\n"), "step"),
    "Unix seconds called epoch": ("m.csv", of_lines(
        lambda i, s: f"{1764150000 + 60 * i},{s}", "epoch,rss_mb\n"
    ), "minute"),
    "psutil": ("train.log", of_lines(psutil_line), "step"),
    "psutil by epoch": ("train.log", of_lines(lambda i, s: f"Epoch {i}/60\n{psutil_line(i, s)}"), "epoch"),
    "bars": ("train.log", of_lines(lambda i, s: f"epoch {i} | loss 0.1 | rss {s / 1000:.4f} GB"), "epoch"),
    "loguru": ("train.log", of_lines(
        lambda i, s: f"{STAMP.format(i)}.123 | INFO     | __main__:train:12 - epoch {i} | rss {s / 1000:.4f} GB"
    ), "epoch"),
    "rich": ("train.log", of_lines(
        lambda i, s: f"[10:{i:02d}:00] INFO     epoch {i} rss {s / 1000:.4f} GB loss 0.1      train.py:12"
    ), "epoch"),
    "logging": ("train.log", of_lines(
        lambda i, s: f"{STAMP.format(i)},123 - train - INFO - step {100 * i}: loss=0.1, mem={s / 1000:.4f}GB"
    ), "step"),
    "tqdm": ("train.log", of_lines(
        lambda i, s: f"Epoch {i}:  45%|####5     | 45/100 [00:12<00:14,  3.81it/s, loss=0.1, rss={s:.0f}MB]"
    ), "epoch"),
    "JSON lines": ("train.jsonl", of_lines(lambda i, s: f'{{"step": {50 * i}, "loss": 0.1, "rss_mb": {s}}}'), "step"),
    "Prometheus": ("scrapes.txt", of_lines(
        lambda i, s: f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {s * 1e6:.6e}"
    ), "step"),
    "a letter as unit": ("train.log", of_lines(lambda i, s: f"iter {i} RSS: {s / 1000:.4f}G, params 35M"), "step"),
    "progress bar in one line": ("train.log", lambda s: "".join(
        f"\r {i}%|##   | {i}/60 [00:{i:02d}<00:14,  3.81it/s, rss={v:.0f}MB]" for i, v in enumerate(s)
    ), "step"),
    "memory of a GPU between bars": ("train.log", of_lines(
        lambda i, s: f"epoch {i} | GPU mem {s / 1000:.3f} GB | loss 0.1"
    ), "epoch"),
    "Markdown": ("train.md", of_lines(
        lambda i, s: f"| {i} | 0.1 | {s:.0f} |", "| epoch | loss | rss_mb |\n|---|---|---|\n"
    ), "epoch"),
    "Lightning": ("metrics.csv", of_lines(lightning_lines, "epoch,step,train_loss,rss_mb,val_loss\n"), "step"),
    "TensorBoard, rss of a system": ("run_x-tag-system_rss_mb.csv", of_tensorboard, "step"),
    "/proc/PID/status": ("status.log", of_lines(
        lambda i, s: f"VmPeak:\t {3100 * s:.0f} kB\nVmSize:\t {3000 * s:.0f} kB\nVmRSS:\t {1000 * s:.0f} kB"
    ), "step"),
    "ps aux": ("ps.log", of_lines(ps_lines), "step"),
    "ps aux without heads": ("ps.log", of_lines(lambda i, s: ps_lines(i, s).splitlines()[1]), "step"),
    "top -b": ("top.log", of_lines(top_lines), "step"),
    "docker stats": ("docker.log", of_lines(docker_lines), "step"),
    "docker stats as JSON": ("docker.jsonl", of_lines(
        lambda i, s: f'{{"CPUPerc":"99.5%","MemPerc":"3.1%","MemUsage":"{s / 1000:.3f}GiB / 62.8GiB","Name":"trainer"}}'
    ), "step"),
    "free": ("free.log", of_lines(free_lines), "minute"),
    "nvidia-smi as it is": ("smi.log", of_lines(smi_lines), "minute"),
    "nvidia-smi": ("gpu.csv", of_lines(
        lambda i, s: f"2026/11/26 10:{i:02d}:00.000, {round(s)} MiB, 24576 MiB",
        "timestamp, memory.used [MiB], memory.total [MiB]\n",
    ), "minute"),
}  # fmt: skip


def verdict_of(log: Log) -> Verdict:
    run = recorded(log, "0" * 64, "import-x", "p", None, None, 1764150000.0)
    return examine(history_from_batches(run.header, run.batches(), ended=True))


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """A file with a text in it."""

    def write(text: str, name: str = "train.log") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def rss_of(log: Log) -> list[float]:
    return [reading.samples["process.rss_bytes"] for reading in log.readings]


def refusal(path: Path, **wishes: Any) -> str:
    with pytest.raises(ImportRefused) as refused:
        read_log(path, Wishes(**wishes))
    return str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_memory_that_doubles_is_a_leak_and_healthy_memory_is_none(file: Any, form: str) -> None:
    name, write, unit = FORMS[form]
    for shape, size in SHAPES.items():
        path = file(write([size(i) for i in range(READINGS)]), name)
        verdict = verdict_of(read_log(path, Wishes()))
        if shape == "doubles":
            assert verdict.status in ("suspected", "confirmed")
            assert (verdict.unit, verdict.settled_at_generation) == (unit, None)
        else:
            assert (verdict.status, len(verdict.findings)) == ("ok", 0), shape


def test_an_export_is_read_by_the_unit_in_its_name_or_by_that_of_the_person(file: Any) -> None:
    path = file(of_wandb([2000.0] * 9), "export.csv")
    log = read_log(path, Wishes())
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 2**20}
    assert log.name == "sunny-dust-12"
    log = read_log(path, Wishes(memory=EXPORTED, size_unit=10**6))
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 10**6}


def test_of_several_runs_in_an_export_one_is_chosen(file: Any) -> None:
    other = "calm - sea - system/proc.memory.rssMB"
    rows = "".join(f"{i},{2000 + i},\n{i}5,,{3000 + i}\n" for i in range(10, 30))
    path = file(f"Step,{EXPORTED},{other}\n{rows}", "export.csv")
    expected = "holds 2 runs (sunny-dust-12, calm - sea); choose one with --run sunny-dust-12"
    assert refusal(path).endswith(expected)
    log = read_log(path, Wishes(run="calm - sea"))
    assert rss_of(log)[:2] == [3010 * 2**20, 3011 * 2**20]
    assert log.name == "calm - sea"
    assert "has no run 'calm'; it has sunny-dust-12, calm - sea" in refusal(path, run="calm")


def test_of_several_runs_in_rows_one_is_chosen(file: Any) -> None:
    rows = "".join(f"{run},{i},{1000 + i}\n" for run in ("a", "b") for i in range(9))
    path = file(f"run,step,rss_mb\n{rows}", "metrics.csv")
    assert "holds 2 runs (a, b); choose one with --run a" in refusal(path)
    assert len(read_log(path, Wishes(run="b")).readings) == 9


def test_an_error_names_each_column_once_and_whole(file: Any) -> None:
    text = of_wandb([2000.0] * 9)
    said = refusal(file(text.replace("rssMB", "readBytes"), "export.csv"))
    columns = "Step, sunny-dust-12 - system/proc.memory.readBytes"
    assert f"({columns}); name it with --memory COLUMN" in said
    said = refusal(file(text, "export.csv"), memory="rss")
    assert said.endswith(f"has no column 'rss'; it has Step, {EXPORTED}")


@pytest.mark.parametrize("line", [
    "params: 35M | lr 0.1", "total memory: 64 GB, free memory: 12 GB", "replay memory_mb: 500",
    "available_mb=1200 | step_mb=3", "batch 12 | 3.4 GB/s",
])  # fmt: skip
def test_other_figures_of_a_line_are_not_the_memory_of_the_process(file: Any, line: str) -> None:
    path = file("".join(f"epoch {i}: {line}; rss: {2000 + i} MB\n" for i in range(9)))
    assert rss_of(read_log(path, Wishes())) == [(2000 + i) * 10**6 for i in range(9)]


def test_of_several_processes_one_is_chosen(file: Any) -> None:
    other = "me          4800  1.0  0.1 9000 8000 ?        S    10:00   0:01 bash -c sleep"
    path = file("".join(f"{ps_lines(i, 2000 + 35 * i)}\n{other}\n" for i in range(30)))
    assert refusal(path).endswith(
        "has rows of 2 processes or containers (4711 python train.py, 4800 bash -c sleep); choose one with --run 4711"
    )
    assert verdict_of(read_log(path, Wishes(run="4711"))).status == "confirmed"
    assert verdict_of(read_log(path, Wishes(run="4800"))).status == "ok"
    assert "has no rows of '12'; it has 4711 python train.py" in refusal(path, run="12")


def test_each_gpu_has_its_memory(file: Any) -> None:
    second = "|   1  NVIDIA A100-SXM4-40GB          On  |   00000000:00:05.0 Off |                    0 |\n"
    used = "| N/A   34C    P0             58W /  400W |     900MiB /  40960MiB |     37%      Default |\n"
    path = file("".join(f"{smi_lines(i, 2000 + i)}\n{second}{used}" for i in range(9)))
    readings = read_log(path, Wishes()).readings
    assert len(readings) == 9
    expected = {"gpu.0.used_bytes": 2003 * 2**20, "gpu.1.used_bytes": 900 * 2**20}
    assert readings[3].samples == expected


def test_free_without_a_unit_asks_for_it(file: Any) -> None:
    path = file("".join(free_lines(i, 2000 + i).replace("Mi ", "   ") + "\n" for i in range(9)))
    assert "does not say its unit; give it with --size-unit MiB" in refusal(path)
    log = read_log(path, Wishes(size_unit=2**20))
    assert rss_of(log)[1] == 2001 * 2**20
    assert any("the whole machine" in note for note in log.notes)


def test_numbers_alone_are_read_once_it_is_said_what_they_are(file: Any) -> None:
    path = file("".join(f"{2_000_000 + 35_000 * i}\n" for i in range(30)))
    assert "say what they are, as in --columns rss --size-unit KiB" in refusal(path)
    log = read_log(path, Wishes(columns=("rss",), size_unit=1024))
    assert verdict_of(log).status == "confirmed"


@pytest.mark.parametrize("line", [
    "virtual memory: 12.1 GB", "pmem(vms=12100000000, shared=4096)",
    "CPU Virtual Memory:  used = 2.0 GB, percent = 3.1%",
])  # fmt: skip
def test_memory_that_tells_of_no_leak_is_no_verdict(file: Any, line: str) -> None:
    refusal(file("".join(f"epoch {i}\n{line}\n" for i in range(30))))
