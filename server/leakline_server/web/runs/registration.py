"""Registration of runs: processes create or join runs within the project's quota."""

from __future__ import annotations

from leakline.snapshot import ProcessIdentity, RunHeader

from ...errors import (
    not_as_resumed,
    too_many_attempts,
    too_many_bytes,
    too_many_processes,
    too_many_projects,
    too_many_runs,
)
from ...limits import MAX_RUN_ATTEMPTS, MAX_RUN_PROCESSES, PROJECTS_PER_DAY
from ...store.ingest.project_quota import (
    Allowance,
    TooManyProjects,
    TooManyRuns,
    TooMuchStored,
    patience_seconds,
)
from ...store.maintenance import disk_space
from ...store.runs import run_registration
from ..auth.authenticator import calling
from ..auth.permissions import refusal_of_process
from ..services import Services


def join(
    use: Services,
    header: RunHeader,
    now: float,
    process: ProcessIdentity | None,
    sent_at: float | None = None,
) -> run_registration.Joined:
    """Create or join a run, and return the result.

    ``sent_at`` is the time of the request according to the process's clock. Raises RequestRefused,
    and OtherProject, because each caller words that error differently.
    """
    project = header.project
    allowed = Allowance(
        use.config.runs_per_day.of(project),
        use.config.bytes_per_day.of(project),
        calling.get().browser,
    )
    try:
        joined = run_registration.join_run(use.engine, header, now, process, allowed, sent_at)
    except run_registration.OtherProcess as error:
        raise refusal_of_process(error, calling.get().project) from error
    except run_registration.NotAsResumed as error:
        raise not_as_resumed(header.id, header.resume) from error
    except run_registration.TooManyProcesses as error:
        raise too_many_processes(header.id, MAX_RUN_PROCESSES) from error
    except run_registration.TooManyAttempts as error:
        raise too_many_attempts(header.id, MAX_RUN_ATTEMPTS) from error
    except TooManyRuns as error:
        raise too_many_runs(
            error.project, error.limit, patience_seconds(now), error.browser
        ) from error
    except TooMuchStored as error:
        raise too_many_bytes(
            error.project, error.limit, patience_seconds(now), error.browser
        ) from error
    except TooManyProjects as error:
        raise too_many_projects(PROJECTS_PER_DAY, patience_seconds(now)) from error
    if joined.created:
        disk_space.mark_recovered(use.engine)
    use.live.wake(header.id)
    return joined
