"""Logs of common tools, each with memory that doubles, stays flat, settles after a warm-up and swings as a saw does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from leakline.analysis import examine
from leakline.analysis.history import history_from_batches
from leakline.analysis.results import Verdict
from leakline.importing import ImportRefused, Log, Wishes, read_log, recorded

READINGS = 60
SHAPES: dict[str, Callable[[int], float]] = {
    "doubles": lambda i: 2000 + 35 * i,
    "flat": lambda i: 2000 + 3 * (i * 7 % 5),
    "settles": lambda i: 1500 + 500 * min(1.0, i / 8) + 2 * (i * 7 % 5),
    "saw": lambda i: 2000 + 60 * (i % 6) + (i * 7 % 5),
}
HEALTHY = ("flat", "settles", "saw")
EXPORTED = "sunny-dust-12 - system/proc.memory.rssMB"


def of_wandb(sizes: Sequence[float]) -> str:
    head = f'"Step","{EXPORTED}","{EXPORTED}__MIN","{EXPORTED}__MAX"\n'
    return head + "".join(
        f'"{100 * i}","{s:.2f}","{s - 1:.2f}","{s + 1:.2f}"\n' for i, s in enumerate(sizes)
    )


def of_wandb_by_time(sizes: Sequence[float]) -> str:
    head = f'"Relative Time (Process)","{EXPORTED}"\n'
    return head + "".join(f'"{60.0 * i + 0.37}","{s:.2f}"\n' for i, s in enumerate(sizes))


def of_tensorboard(sizes: Sequence[float]) -> str:
    return "Wall time,Step,Value\n" + "".join(
        f"{1764150000 + 30 * i},{50 * i},{s}\n" for i, s in enumerate(sizes)
    )


def of_mlflow(sizes: Sequence[float]) -> str:
    return "run_id,key,value,timestamp,step\n" + "".join(
        f"ab12,{key},{value},{1764150000000 + 30000 * i},{10 * i}\n"
        for i, s in enumerate(sizes)
        for key, value in (("loss", 0.5), ("train/rss_mb", s))
    )


def of_lines(write: Callable[[int, float], str]) -> Callable[[Sequence[float]], str]:
    return lambda sizes: "".join(f"{write(i, s)}\n" for i, s in enumerate(sizes))


def psutil_line(i: int, size: float) -> str:
    rss = round(size * 1e6)
    return f"batch done\npmem(rss={rss}, vms={3 * rss}, shared=4096, text=1, lib=0, data={rss}, dirty=0)"


def of_lightning(sizes: Sequence[float]) -> str:
    rows = "".join(
        f"{i // 6},{50 * i + 49},0.1,{s},\n"
        + (f"{i // 6},{50 * i + 49},,,0.5\n" if i % 6 == 5 else "")
        for i, s in enumerate(sizes)
    )
    return f"epoch,step,train_loss,rss_mb,val_loss\n{rows}"


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
FORMS: dict[str, tuple[str, Callable[[Sequence[float]], str], str]] = {
    "W&B export": ("wandb_export.csv", of_wandb, "step"),
    "W&B export by time": ("wandb_export.csv", of_wandb_by_time, "minute"),
    "TensorBoard": ("run-a-tag-memory_rss_mb.csv", of_tensorboard, "step"),
    "MLflow": ("metrics.csv", of_mlflow, "step"),
    "fractions of an epoch": (
        "m.csv", lambda s: "epoch,rss_mb\n" + "".join(f"{i / 100},{v}\n" for i, v in enumerate(s)), "step",
    ),
    "Unix seconds called epoch": (
        "m.csv",
        lambda s: "epoch,rss_mb\n" + "".join(f"{1764150000 + 60 * i},{v}\n" for i, v in enumerate(s)),
        "minute",
    ),
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
    "JSON lines": ("train.jsonl", of_lines(
        lambda i, s: f'{{"step": {50 * i}, "loss": 0.1, "rss_mb": {s}}}'
    ), "step"),
    "Prometheus": ("scrapes.txt", of_lines(
        lambda i, s: f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {s * 1e6:.6e}"
    ), "step"),
    "a letter as unit": ("train.log", of_lines(
        lambda i, s: f"iter {i} RSS: {s / 1000:.4f}G, params 35M"
    ), "step"),
    "progress bar in one line": ("train.log", lambda s: "".join(
        f"\r {i}%|##   | {i}/60 [00:{i:02d}<00:14,  3.81it/s, rss={v:.0f}MB]" for i, v in enumerate(s)
    ), "step"),
    "memory of a GPU between bars": ("train.log", of_lines(
        lambda i, s: f"epoch {i} | GPU mem {s / 1000:.3f} GB | loss 0.1"
    ), "epoch"),
    "Markdown": ("train.md", lambda s: "| epoch | loss | rss_mb |\n|---|---|---|\n" + "".join(
        f"| {i} | 0.1 | {v:.0f} |\n" for i, v in enumerate(s)
    ), "epoch"),
    "Lightning": ("metrics.csv", of_lightning, "step"),
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
    "nvidia-smi": ("gpu.csv", lambda s: "timestamp, memory.used [MiB], memory.total [MiB]\n" + "".join(
        f"2026/11/26 10:{i:02d}:00.000, {round(v)} MiB, 24576 MiB\n" for i, v in enumerate(s)
    ), "minute"),
}  # fmt: skip


def verdict_of(log: Log) -> Verdict:
    run = recorded(log, "0" * 64, "import-x", "p", None, None, 1764150000.0)
    return examine(history_from_batches(run.header, run.batches(), ended=True))


def imported(folder: Path, form: str, shape: str) -> Verdict:
    name, write, _ = FORMS[form]
    path = folder / name
    path.write_text(write([SHAPES[shape](i) for i in range(READINGS)]))
    return verdict_of(read_log(path, Wishes()))


@pytest.mark.parametrize("form", FORMS)
def test_memory_that_doubles_is_a_leak(tmp_path: Path, form: str) -> None:
    verdict = imported(tmp_path, form, "doubles")
    assert verdict.status in ("suspected", "confirmed")
    assert verdict.unit == FORMS[form][2]
    assert verdict.settled_at_generation is None


@pytest.mark.parametrize("form", FORMS)
def test_healthy_memory_is_no_leak(tmp_path: Path, form: str) -> None:
    for shape in HEALTHY:
        verdict = imported(tmp_path, form, shape)
        assert verdict.status == "ok", shape
        assert not verdict.findings


def test_an_export_is_read_by_the_unit_in_its_name_or_by_that_of_the_person(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(of_wandb([2000.0] * 9))
    log = read_log(path, Wishes())
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 2**20}
    assert log.name == "sunny-dust-12"
    log = read_log(path, Wishes(memory=EXPORTED, size_unit=10**6))
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 10**6}


def test_of_several_runs_in_an_export_one_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    other = "calm - sea - system/proc.memory.rssMB"
    rows = "".join(f"{i},{2000 + i},\n{i}5,,{3000 + i}\n" for i in range(10, 30))
    path.write_text(f"Step,{EXPORTED},{other}\n{rows}")
    with pytest.raises(ImportRefused) as refused:
        read_log(path, Wishes())
    assert str(refused.value).endswith(
        "holds 2 runs (sunny-dust-12, calm - sea); choose one with --run sunny-dust-12"
    )
    log = read_log(path, Wishes(run="calm - sea"))
    assert [r.samples for r in log.readings[:2]] == [
        {"process.rss_bytes": 3010 * 2**20}, {"process.rss_bytes": 3011 * 2**20},
    ]  # fmt: skip
    assert log.name == "calm - sea"
    with pytest.raises(ImportRefused, match=r"has no run 'calm'; it has sunny-dust-12, calm - sea"):
        read_log(path, Wishes(run="calm"))


def test_of_several_runs_in_rows_one_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = "".join(f"{run},{i},{1000 + i}\n" for run in ("a", "b") for i in range(9))
    path.write_text(f"run,step,rss_mb\n{rows}")
    with pytest.raises(ImportRefused, match=r"holds 2 runs \(a, b\); choose one with --run a"):
        read_log(path, Wishes())
    assert len(read_log(path, Wishes(run="b")).readings) == 9


def test_an_error_names_each_column_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(of_wandb([2000.0] * 9).replace("rssMB", "readBytes"))
    with pytest.raises(ImportRefused) as refused:
        read_log(path, Wishes())
    assert (
        "(Step, sunny-dust-12 - system/proc.memory.readBytes); name it with --memory COLUMN"
        in str(refused.value)
    )
    path.write_text(of_wandb([2000.0] * 9))
    with pytest.raises(ImportRefused, match=rf"has no column 'rss'; it has Step, {EXPORTED}$"):
        read_log(path, Wishes(memory="rss"))


@pytest.mark.parametrize("line", [
    "params: 35M | lr 0.1", "total memory: 64 GB, free memory: 12 GB", "replay memory_mb: 500",
    "available_mb=1200 | step_mb=3", "batch 12 | 3.4 GB/s",
])  # fmt: skip
def test_other_figures_of_a_line_are_not_the_memory_of_the_process(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"epoch {i}: {line}; rss: {2000 + i} MB\n" for i in range(9)))
    log = read_log(path, Wishes())
    assert [r.samples["process.rss_bytes"] for r in log.readings] == [
        (2000 + i) * 10**6 for i in range(9)
    ]


def test_of_several_processes_one_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "ps.log"
    other = "me          4800  1.0  0.1 9000 8000 ?        S    10:00   0:01 bash -c sleep"
    path.write_text("".join(f"{ps_lines(i, 2000 + 35 * i)}\n{other}\n" for i in range(30)))
    with pytest.raises(ImportRefused) as refused:
        read_log(path, Wishes())
    assert str(refused.value).endswith(
        "has rows of 2 processes or containers (4711 python train.py, 4800 bash -c sleep); choose one with --run 4711"
    )
    assert verdict_of(read_log(path, Wishes(run="4711"))).status == "confirmed"
    assert verdict_of(read_log(path, Wishes(run="4800"))).status == "ok"
    with pytest.raises(ImportRefused, match=r"has no rows of '12'; it has 4711 python train\.py"):
        read_log(path, Wishes(run="12"))


def test_each_gpu_has_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "smi.log"
    second = "|   1  NVIDIA A100-SXM4-40GB          On  |   00000000:00:05.0 Off |                    0 |\n"
    used = "| N/A   34C    P0             58W /  400W |     900MiB /  40960MiB |     37%      Default |\n"
    path.write_text("".join(f"{smi_lines(i, 2000 + i)}\n{second}{used}" for i in range(9)))
    readings = read_log(path, Wishes()).readings
    assert len(readings) == 9
    assert readings[3].samples == {
        "gpu.0.used_bytes": 2003 * 2**20,
        "gpu.1.used_bytes": 900 * 2**20,
    }


def test_free_without_a_unit_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "free.log"
    path.write_text("".join(free_lines(i, 2000 + i).replace("Mi ", "   ") + "\n" for i in range(9)))
    with pytest.raises(ImportRefused, match="does not say its unit; give it with --size-unit MiB"):
        read_log(path, Wishes())
    log = read_log(path, Wishes(size_unit=2**20))
    assert log.readings[1].samples == {"process.rss_bytes": 2001 * 2**20}
    assert any("the whole machine" in note for note in log.notes)


def test_numbers_alone_are_read_once_it_is_said_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rss.txt"
    path.write_text("".join(f"{2_000_000 + 35_000 * i}\n" for i in range(30)))
    with pytest.raises(
        ImportRefused, match="say what they are, as in --columns rss --size-unit KiB"
    ):
        read_log(path, Wishes())
    assert (
        verdict_of(read_log(path, Wishes(columns=("rss",), size_unit=1024))).status == "confirmed"
    )


@pytest.mark.parametrize("line", [
    "virtual memory: 12.1 GB", "pmem(vms=12100000000, shared=4096)",
    "CPU Virtual Memory:  used = 2.0 GB, percent = 3.1%",
])  # fmt: skip
def test_memory_that_tells_of_no_leak_is_no_verdict(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"epoch {i}\n{line}\n" for i in range(30)))
    with pytest.raises(ImportRefused):
        read_log(path, Wishes())
