"""Every bound on what is sent to a server and on what it answers, in one place and on without being asked for.

`docs/limits.md` documents them, and a test compares both. Rooms import the numbers from here; nothing else
names one. What a chat service takes stands with its format, because it is the service's number.
"""

from __future__ import annotations

from typing import Final

# -- a request
# As it comes, of a compressed batch; of every other JSON body as it comes and inflated.
MAX_BODY_BYTES: Final = 256 * 1024
# Of a batch: inflated, or sent without compression.
MAX_INFLATED_BYTES: Final = 2 * 2**20
# What a zstd frame may ask a reader to keep; `zstd -19` asks for as much.
MAX_WINDOW_BYTES: Final = 8 * 2**20
# A body that trickles is cut.
BODY_SECONDS: Final = 15.0
# Of all bodies that are on their way at a time, and of the values of those that wait for a thread: past it, a request
# is asked to come again.
MAX_BODIES_BYTES: Final = 64 * 2**20
MAX_DEPTH: Final = 8
MAX_JSON_DEPTH: Final = 16
# Each is looked at on the event loop. A client of ours sends two thirds of them at most.
MAX_JSON_VALUES: Final = 20_000
MAX_FORM_BYTES: Final = 64 * 1024
MAX_FORM_FIELDS: Final = 50
# The longest password, each character as twelve bytes, and where to go then.
MAX_SIGN_IN_BYTES: Final = 16 * 1024
# A page of the list of runs, where a run may stand under each of its tags.
MAX_FORM_BOXES: Final = 1_000

# -- a connection
# Each is a file that is open.
MAX_CONNECTIONS: Final = 60_000
# The address and the headers, and what follows a body in pieces. Pages of ours ask with a hundredth of it.
MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 15.0
# Requests behind one that is not answered yet.
MAX_PIPELINED: Final = 64
# For the rest of a body that was answered before it was there: it is read, so that the client can read the answer.
UNREAD_SECONDS: Final = 5.0
# A client that reads less of an answer than these bytes in this time is disconnected.
ANSWER_SECONDS: Final = 60.0
MIN_READ_BYTES: Final = 16 * 1024

# -- a batch
MAX_SNAPSHOTS: Final = 200
MAX_BATCH_SERIES: Final = 4_000
MAX_BATCH_EVENTS: Final = 2_000
MAX_LARGE_OBJECTS: Final = 64 * MAX_SNAPSHOTS
MAX_HOLDERS: Final = 64 * MAX_SNAPSHOTS
MAX_CENSUS_TYPES: Final = 5_000
MAX_LOST_REASONS: Final = 32

# -- numbers
# Beyond this, JSON numbers are no longer exact in JavaScript.
MAX_INTEGER: Final = 2**53
# Sums and squares of what is below this still fit a double with digits to spare.
MAX_FLOAT: Final = 1e15
MAX_RSS_BYTES: Final = 64 * 2**40
# Ranks and attempts.
MAX_RANK: Final = 2**31 - 1
# The number of a webhook, a delivery, a rule or a token, as both databases hold it.
MAX_ROW_ID: Final = 2**62
# The year 3000: a clock that says more is in the wrong unit.
MAX_TIME_SECONDS: Final = 32_503_680_000.0
# A clock that is further ahead of the server's, or behind it, is believed no more: its times are put right, and that
# is reported.
MAX_SKEW_SECONDS: Final = 300.0

# -- texts, in characters
MAX_NAME_LENGTH: Final = 512
MAX_LABEL_LENGTH: Final = 256
MAX_PATH_LENGTH: Final = 1_024
MAX_INSTANCE_LENGTH: Final = 128
MAX_RUN_ID_LENGTH: Final = 128
MAX_TAG_LENGTH: Final = 64
# Of a finding, across runs.
MAX_FINGERPRINT_LENGTH: Final = 128
# What people write: a note, a link, why a run ended or a leak is ignored, the name of a webhook or a token.
MAX_NOTE_LENGTH: Final = 4_000
MAX_LINK_LENGTH: Final = 2_000
MAX_REASON_LENGTH: Final = 1_000
MAX_TITLE_LENGTH: Final = 80
MAX_ADVICE_LENGTH: Final = 1_000
MAX_WEBHOOK_LENGTH: Final = 2_048
# A word that says which of a few: the format of a webhook, and a number with its unit.
MAX_WORD_LENGTH: Final = 64
# What is searched for, and where a list goes on.
MAX_QUERY_LENGTH: Final = 2_000
# More of them would be too deep a question for a database.
MAX_SEARCH_WORDS: Final = 30
# A password or a token as it is typed, and where to go then.
MAX_SECRET_LENGTH: Final = 4_000
# What a process printed: one line. A client of ours cuts at 400.
MAX_LINE_LENGTH: Final = 1_000

# -- a run; what is more becomes "other", or is left out, and is counted
MAX_RUN_SERIES: Final = 6_000
MAX_RUN_TYPES: Final = 2_000
MAX_RUN_PHASES: Final = 64
MAX_RUN_PROCESSES: Final = 10_000
MAX_RUN_TAGS: Final = 64
MAX_DECLARED_PHASES: Final = 256
MAX_RUN_ATTEMPTS: Final = 1_000
# Encoded: a client of ours cuts the first at half of it, and the second at less.
MAX_CONFIG_BYTES: Final = 128 * 1024
MAX_ENVIRONMENT_BYTES: Final = 64 * 1024
# Names at the top of either.
MAX_NAMES_LISTED: Final = 1_000
MAX_NOTES: Final = 1_000
MAX_NOTES_AT_ONCE: Final = 100
MAX_NOTES_BYTES: Final = 2**20

# -- a day (UTC); of a project, and settings change them: runs that begin, and bytes that are stored
RUNS_PER_DAY: Final = 10_000
BYTES_PER_DAY: Final = 64 * 2**30
# In which runs begin: else nothing would bound the others.
PROJECTS_PER_DAY: Final = 1_000
# Of those of a project, what its browser tokens may take together: everybody has one who opens the page it is in. Never
# more than half, so that the trainings of the project have room whatever is set (`share_of_browsers`).
BROWSER_RUNS_PER_DAY: Final = 1_000
BROWSER_BYTES_PER_DAY: Final = 4 * 2**30

# -- what waits
# Of all; of a project at most half, and of a run a third, so that others have room (`fair_queue.py`). A thousand
# processes of a run that send in the same moment, as after a restart, are taken; the last waits a tenth of a second.
MAX_WAITING_BATCHES: Final = 3_072
# Snapshots of 65 series as arrays take at most 30 MB then.
MAX_WAITING_SNAPSHOTS: Final = 60_000
# Of bodies, inflated, or of their numbers where those are more.
MAX_WAITING_BYTES: Final = 96 * 2**20
MAX_LIVE_STREAMS: Final = 4_096

# -- what people may set
MAX_RULES: Final = 500
# Generations in a row: an examination of a long run reads no more.
MAX_IN_A_ROW: Final = 128
# Of an acknowledgement: ten years.
MAX_SNOOZE_SECONDS: Final = 320_000_000.0
# That may be used, and until they expire.
MAX_TOKENS: Final = 1_000
MAX_TOKEN_DAYS: Final = 3_650.0
# What people and rules ask of a run, until it has answered.
MAX_REQUESTS: Final = 16
# Of a project; those of the past, which are kept, not counted.
MAX_ACCEPTED_COUNTS: Final = 200
# With those of the environment not more than can be sent to at once, so that none ever waits for another.
MAX_WEBHOOKS: Final = 31

# -- rows that requests add, one by one; the oldest go
# Of people who are signed in; with one token, or the password, more than a team has browsers, and nobody pushes out
# those with another.
MAX_SESSIONS: Final = 10_000
MAX_SESSIONS_OF_ONE: Final = 100
# What is over: tokens, accepted counts of a project, what people said of a leak, requests of a run.
MAX_PAST: Final = 1_000
# Resolved, of a run.
MAX_RUN_INCIDENTS: Final = 1_000
MAX_RUN_ALERTS: Final = 5_000
# Values that are damaged and set aside; each is named in the log.
MAX_DAMAGED: Final = 10_000

# -- an answer
# Names of series that are asked for at a time, where each may stand for many.
MAX_NAMES_ASKED: Final = 200
# Laid over each other, and compared.
MAX_RUNS_OVERLAID: Final = 10
MAX_RUNS_PICKED: Final = 2
MAX_PAGE: Final = 200
MAX_POINTS: Final = 20_000
MAX_ITEMS: Final = 1_000
MAX_LISTED: Final = 5_000
# Each has its packages.
MAX_ATTEMPTS_LISTED: Final = 50
# Of a run: the largest are examined, booked and compared. Each costs a millisecond or two, and a page waits for all.
MAX_PROCESSES_STUDIED: Final = 1_024
# Of an answer that has no room for more series, and of a list of snapshots.
MAX_PROCESSES_READ: Final = 1_024
# The page of a run has three tables of them.
MAX_PROCESSES_LISTED: Final = 1_000
# Encoded, without their lines: each may have long names and many reasons of losses.
MAX_PROCESSES_LISTED_BYTES: Final = 2 * 2**20
# Encoded: whole for 64 processes that print lines of 300 characters.
MAX_LINES_LISTED_BYTES: Final = 2**20

# -- a request of OpenTelemetry
MAX_OTLP_RESOURCES: Final = 64
MAX_OTLP_POINTS: Final = 20_000
MAX_OTLP_SERIES: Final = 1_000
# A phase ends and a collection comes once in seconds; each snapshot is numbered and stored by itself.
MAX_OTLP_SNAPSHOTS: Final = 2_000
MAX_OTLP_DEPTH: Final = 64


def share_of_browsers(most: int, of_project: float | None) -> int:
    """How much of what a project may in a day its browser tokens may; None: the project may without end."""
    return most if of_project is None else max(1, min(most, int(of_project) // 2))
