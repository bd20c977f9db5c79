"""Arguments override environment variables, secrets may be in files, and wrong values are named with their source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.core.process_tree import readable_name
from leakline.errors import BadArgument
from leakline.settings import SECRET_FILE_LIMIT_BYTES, read_secret, resolve

AUTHORITY = Path(__file__).parent / "tls" / "authority.pem"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("project", ""), ("project", 7), ("project", "x" * 200), ("project", "two\nlines"),
        ("name", "  "), ("unit", "generatoin"), ("unit", 3), ("total", 0), ("total", "25"), ("total", True),
        ("watch", "Agent"), ("watch", [7]), ("watch", ["not a name"]), ("watch", dict), ("phases", "evaluate"),
        ("phases", [1]), ("tags", "tag"), ("tags", [""]), ("config", 5), ("server", "localhost:8765"),
        ("server", "ftp://host"), ("server", "http://"), ("server", "http://host:0"), ("server", 8765),
        ("server", "http://host:notaport"), ("mode", "onlin"), ("quiet", "yes"), ("exact_peaks", 1),
        ("directory", ""), ("directory", 1), ("server", "http://ann:secret@host"), ("total", 2**53 + 1),
        ("total", 10**300), ("tags", ["t" * 65]), ("tags", [f"{i}" for i in range(65)]),
        ("phases", [f"{i}" for i in range(257)]), ("watch", ["a." + "W" * 400]),
        ("log_every", -1), ("log_every", 1.5), ("log_every", "often"), ("log_every", True),
        ("id", "../../etc"), ("id", ""), ("id", 7), ("id", "x" * 65), ("id", "a:b"), ("resume", "maybe"), ("resume", 1),
        # Without an id, there is nothing to resume.
        ("resume", "must"), ("resume", "auto"), ("resume", True),
    ],
)  # fmt: skip
def test_a_wrong_argument_raises_with_its_name_and_value(argument: str, value: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        leakline.init(**{argument: value})
    assert caught.value.name == argument
    assert argument in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert leakline.current().id == ""


def test_the_recorded_configuration_is_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"deeper": deep, "wider": deep}
    wide = [[["\N{GRINNING FACE}" * 5000] * 300] * 300] * 300
    for config in (deep, {"wide": wide}, {f"{i}": "x" * 900 for i in range(500)}, {"n": 10**5000}):
        assert len(json.dumps(resolve({}, config=config).config)) < 80 * 1024
    small = {"lr": 1e-3, "layers": [64, 64], "nested": {"a": None, "b": [True, "x"]}}
    assert resolve({}, config=small).config == small


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LEAKLINE_SERVER", "here"), ("LEAKLINE_MODE", "on"), ("LEAKLINE_QUIET", "maybe"),
        ("LEAKLINE_MAX_OVERHEAD", "1 %"), ("LEAKLINE_MAX_OVERHEAD", "2"), ("LEAKLINE_MAX_OVERHEAD", "nan"),
        ("LEAKLINE_MAX_PAUSE", "0"), ("LEAKLINE_MAX_PAUSE", "50 ms"), ("LEAKLINE_MAX_PAUSE", "61"),
        ("LEAKLINE_SAMPLE_SECONDS", "-1"), ("LEAKLINE_SAMPLE_SECONDS", "0.001"), ("LEAKLINE_SAMPLE_SECONDS", "inf"),
        ("LEAKLINE_EXACT_PEAKS", "please"), ("LEAKLINE_REQUESTS", "ask"), ("LEAKLINE_RUN_ID", "../../etc"),
        ("LEAKLINE_SPOOL_LIMIT", "lots"), ("LEAKLINE_SPOOL_LIMIT", "0"), ("LEAKLINE_SPOOL_LIMIT", "255 KiB"),
        ("LEAKLINE_SPOOL_LIMIT", "9" * 400), ("LEAKLINE_PROJECT", "x" * 200), ("RANK", "first"), ("WORLD_SIZE", "-1"),
        ("LEAKLINE_LARGE_OBJECTS", "65"), ("LEAKLINE_LARGE_OBJECTS", "-1"), ("LEAKLINE_LARGE_FROM", "1000"),
        ("LEAKLINE_LARGE_FROM", "large"),
    ],
)  # fmt: skip
def test_a_wrong_variable_raises_with_its_name(variable: str, value: str) -> None:
    with pytest.raises(BadArgument, match=variable):
        resolve({variable: value})


def test_the_defaults_apply_without_settings() -> None:
    settings = resolve({})
    assert (settings.project, settings.unit, settings.mode) == ("", "generation", "online")
    assert settings.server == "http://127.0.0.1:8765"
    assert settings.max_overhead == 0.01
    assert (settings.max_pause_seconds, settings.sample_seconds) == (0.05, 1.0)
    assert settings.exact_peaks is False
    assert settings.spool_limit_bytes == 256 * 2**20
    assert settings.directory == Path(".leakline").absolute()


def test_variables_apply_without_an_argument_and_empty_ones_are_unset() -> None:
    settings = resolve(
        {"LEAKLINE_MAX_PAUSE": "0.2", "LEAKLINE_SAMPLE_SECONDS": "0", "LEAKLINE_EXACT_PEAKS": "1"}
    )
    assert (settings.max_pause_seconds, settings.sample_seconds) == (0.2, 0.0)
    assert settings.exact_peaks
    assert resolve({"LEAKLINE_PROJECT": "", "LEAKLINE_QUIET": " "}).project == ""
    assert resolve({"LEAKLINE_RUN_ID": "my-run.1"}).run_id == "my-run.1"
    assert resolve({}).requests and not resolve({"LEAKLINE_REQUESTS": "0"}).requests


def test_an_argument_overrides_its_variable() -> None:
    environ = {
        "LEAKLINE_PROJECT": "theirs", "LEAKLINE_SERVER": "http://theirs", "LEAKLINE_MODE": "disabled",
        "LEAKLINE_RUN_NAME": "theirs", "LEAKLINE_DIR": "/theirs", "LEAKLINE_QUIET": "1",
        "LEAKLINE_EXACT_PEAKS": "1",
    }  # fmt: skip
    theirs = resolve(environ)
    assert (theirs.project, theirs.mode, theirs.name) == ("theirs", "disabled", "theirs")
    assert theirs.quiet
    ours = resolve(
        environ, project="ours", server="http://ours/", mode="offline", name="ours", quiet=False, directory="/ours",
        exact_peaks=False,
    )  # fmt: skip
    assert (ours.project, ours.mode, ours.name, ours.quiet) == ("ours", "offline", "ours", False)
    assert (ours.server, ours.directory) == ("http://ours", Path("/ours"))
    assert (theirs.exact_peaks, ours.exact_peaks) == (True, False)


def test_the_id_of_a_run_is_an_argument_or_a_variable() -> None:
    environ = {"LEAKLINE_RUN_ID": "theirs"}
    assert resolve(environ, id="ours").run_id == "ours"
    assert resolve(environ, resume="must").run_id == "theirs"
    # A rank of a launch has the id of the launch.
    assert resolve({"WORLD_SIZE": "2", "SLURM_JOB_ID": "7"}, resume="must").run_id


@pytest.mark.parametrize(
    ("given", "resume"),
    [
        (None, "allow"), (False, "allow"), (True, "allow"), ("auto", "allow"), ("allow", "allow"),
        ("must", "must"), ("never", "never"),
    ],
)  # fmt: skip
def test_resume_has_the_values_of_wandb(given: str | bool | None, resume: str) -> None:
    assert resolve({}, id="ours", resume=given).resume == resume
    if given in (None, False, "allow", "never"):
        # These values start a new run, and programs pass them with an id of None.
        assert resolve({}, id=None, resume=given).resume == resume


def test_a_config_is_stored_as_plain_values() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "password"

    nested = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    settings = resolve({}, config={"lr": 0.1, "nan": float("nan"), "x": Secret(), "deep": nested})
    assert settings.config["lr"] == 0.1
    assert settings.config["nan"] == "nan"
    assert settings.config["x"] == "<Secret>"
    assert "password" not in str(settings.config)
    assert resolve({}, config=Namespace(lr=1)).config == {"lr": 1}


def test_all_ranks_of_a_launch_join_one_run_and_the_next_launch_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    ranks = [resolve({"RANK": str(rank), **launch}) for rank in range(4)]
    assert len({settings.run_id for settings in ranks}) == 1
    assert [settings.rank for settings in ranks] == [0, 1, 2, 3]
    monkeypatch.setattr("os.getppid", lambda: 1)
    assert resolve({"RANK": "0", **launch}).run_id != ranks[0].run_id


def test_ranks_whose_launcher_has_exited_join_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Init adopts orphans of every launch, and a parent without a start time could be any process."""
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for parent in (0, 1, 2**22 + 1):
        monkeypatch.setattr("os.getppid", lambda parent=parent: parent)
        assert resolve(ranks).run_id != resolve(ranks).run_id
        assert not resolve(ranks).run_id.startswith("ranks-")


@pytest.mark.parametrize(
    "launch",
    [
        {"TORCHELASTIC_RUN_ID": "one"},
        {"TORCHELASTIC_RUN_ID": "one", "LOCAL_WORLD_SIZE": "1"},
        {"SLURM_JOB_ID": "7"},
        {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"},
    ],
)
def test_the_id_of_a_launch_joins_ranks_of_different_parents(
    monkeypatch: pytest.MonkeyPatch, launch: dict[str, str]
) -> None:
    """For several machines, a wrapper script per rank, or an environment without the number of local ranks."""
    ids = set()
    for parent in (1, os.getpid()):
        monkeypatch.setattr("os.getppid", lambda parent=parent: parent)
        ids.add(resolve({"WORLD_SIZE": "2", **launch}).run_id)
    assert len(ids) == 1
    name, value = next(iter(launch.items()))
    assert resolve({"WORLD_SIZE": "2", **launch, name: f"{value}0"}).run_id not in ids


def test_two_launches_on_one_machine_are_different_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torchrun = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip
    first = resolve(torchrun).run_id
    assert first == resolve(torchrun).run_id
    monkeypatch.setattr("os.getppid", os.getpid)
    assert resolve(torchrun).run_id != first


def test_jobs_of_one_shell_are_different_runs_if_their_names_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline.settings._name_of", lambda pid: "bash")
    ranks = [{"RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]

    def run_id(called: dict[str, str]) -> str:
        (found,) = {resolve(rank, **called).run_id for rank in ranks}
        return found

    jobs: tuple[dict[str, str], ...] = (
        {}, {"name": "lr1"}, {"name": "lr2"}, {"name": "lr2", "project": "b"}, {"project": "lr2"},
    )  # fmt: skip
    assert len({run_id(job) for job in jobs}) == len(jobs)
    assert resolve({**ranks[0], "LEAKLINE_RUN_NAME": "lr1"}).run_id == run_id({"name": "lr1"})


def test_ranks_of_a_launcher_join_one_run_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may compute its name, for example from the time."""
    monkeypatch.setattr("leakline.settings._name_of", lambda pid: "python3")
    for launch in ({}, {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}):
        job = {"RANK": "0", "WORLD_SIZE": "2", **launch}
        assert resolve(job, name="12:00:01").run_id == resolve(job, name="12:00:02").run_id


def test_two_jobs_of_one_shell_record_two_runs(tmp_path: Path) -> None:
    program = "import leakline, sys; leakline.init(project='ranks', name=sys.argv[1]).finish()"
    environment = {"LEAKLINE_MODE": "offline", "LEAKLINE_DIR": str(tmp_path), "WORLD_SIZE": "2"}
    job = 'for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank "$0" -c "$1" $name || exit 1; done'
    subprocess.run(
        ["sh", "-c", f"for name in lr1 lr2; do {job}; done; true", sys.executable, program],
        env={**os.environ, **environment}, check=True, timeout=120,
    )  # fmt: skip
    spools = [len(list(run.glob("*.spool"))) for run in tmp_path.glob("ranks-*")]
    assert spools == [2, 2]


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LEAKLINE_RUN_ID"])
def test_the_id_of_a_job_identifies_it_whatever_its_ranks_are_called(variable: str) -> None:
    job = {"WORLD_SIZE": "2", variable: "7"}
    assert resolve(job, name="a").run_id == resolve(job, name="b").run_id


def test_run_ids_are_unique_and_determine_the_name() -> None:
    ids = [resolve({}).run_id for _ in range(200)]
    assert len(set(ids)) == 200
    assert ids == sorted(ids, key=lambda run_id: run_id[:11])
    assert readable_name(ids[0]) == readable_name(ids[0])


def test_unreadable_certificates_prevent_the_start_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    for content in (None, "no certificate", ""):
        if content is not None:
            path.write_text(content)
        with pytest.raises(BadArgument, match=r"LEAKLINE_CA_FILE=.*ca\.pem"):
            resolve({"LEAKLINE_CA_FILE": str(path)})
    assert resolve({"LEAKLINE_CA_FILE": str(AUTHORITY)}).ca_file == AUTHORITY


@pytest.mark.parametrize("token", ["a\nb", "geheim\u00fc", "a\x00b"])
def test_a_token_invalid_in_a_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(BadArgument, match="LEAKLINE_TOKEN") as caught:
        resolve({"LEAKLINE_TOKEN": token})
    assert token not in str(caught.value)
    assert resolve({"LEAKLINE_TOKEN": "llk_abc-123"}).token == "llk_abc-123"


def test_the_token_is_read_from_a_file_without_the_newline(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" leakline_ingest_abc\r\n")
    assert resolve({"LEAKLINE_TOKEN_FILE": str(file)}).token == "leakline_ingest_abc"
    # Kubernetes mounts secrets as links.
    link = tmp_path / "link"
    link.symlink_to(file)
    assert resolve({"LEAKLINE_TOKEN_FILE": f" {link} "}).token == "leakline_ingest_abc"
    assert resolve({"LEAKLINE_TOKEN_FILE": "", "LEAKLINE_TOKEN": "x"}).token == "x"
    assert resolve({"LEAKLINE_TOKEN": " "}).token is None


def test_a_variable_and_its_file_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("SECRET-1")
    with pytest.raises(BadArgument) as caught:
        resolve({"LEAKLINE_TOKEN": "SECRET-2", "LEAKLINE_TOKEN_FILE": str(file)})
    said = str(caught.value)
    assert said.endswith("LEAKLINE_TOKEN is also set; set only one of the two")
    assert str(file) in said and "SECRET" not in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"), (b" \n\t\n", "is empty"),
        (b"SECRET\nSECRET", "one line"), (b"SECRET\x00", "one line"), (b"SECRET\x1b[2J", "one line"),
        ("SECRET\u202e".encode(), "one line"), (b"SECRET\xff\xfe", "UTF-8"),
        (b"S" * (SECRET_FILE_LIMIT_BYTES + 1), "64 KiB"), ("SECRET\u00e9".encode(), "ASCII"),
    ],
)  # fmt: skip
def test_a_file_without_a_token_is_named_but_not_its_content(
    tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(BadArgument, match="environment LEAKLINE_TOKEN_FILE=") as caught:
        resolve({"LEAKLINE_TOKEN_FILE": str(file)})
    said = str(caught.value)
    assert why in said and "\n" not in said and "SECRET" not in said and len(said) < 400


def test_a_token_path_that_is_not_a_file_is_refused_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in (
        (pipe, "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path / ("n" * 300), "File name too long"),
        (pipe / "below", "Not a directory"),
    ):
        with pytest.raises(BadArgument) as caught:
            read_secret({"LEAKLINE_TOKEN_FILE": str(path)}, "LEAKLINE_TOKEN")
        assert why in str(caught.value)


def test_an_unreadable_token_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("SECRET")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    # Simulated because root can read everything, and tests may run as root.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadArgument, match=r"cannot be read \(Permission denied\)"):
        resolve({"LEAKLINE_TOKEN_FILE": str(file)})
