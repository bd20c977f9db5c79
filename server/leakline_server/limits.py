"""All limits on requests and responses. They are always active.

`docs/settings.md` documents the limits, and a test compares the document with this module. All other modules import the
numbers from here. The limits of chat services are defined with their message formats, because the services set them.
"""

from __future__ import annotations

from typing import Final

# -- a request
# Limits the encoded size of a compressed batch, and both the encoded and the inflated size of other JSON.
MAX_BODY_BYTES: Final = 256 * 1024
# The size of a batch after decompression, or as sent if it is not compressed.
MAX_INFLATED_BYTES: Final = 2 * 2**20
# The largest window of a zstd frame; `zstd -19` needs this size.
MAX_WINDOW_BYTES: Final = 8 * 2**20
# Bodies that take longer to arrive are refused.
BODY_SECONDS: Final = 15.0
# All bodies in transit together, plus the decoded values of requests waiting for a thread. Beyond this, requests get
# 429 with Retry-After.
MAX_BODIES_BYTES: Final = 64 * 2**20
MAX_DEPTH: Final = 8
MAX_JSON_DEPTH: Final = 16
# Each value is checked on the event loop. Our client sends at most two thirds of this number.
MAX_JSON_VALUES: Final = 20_000
MAX_FORM_BYTES: Final = 64 * 1024
MAX_FORM_FIELDS: Final = 50
# Room for the longest password, with each character encoded as twelve bytes, and for the address to return to.
MAX_SIGN_IN_BYTES: Final = 16 * 1024
# The checkboxes on one page of the run list, which may show a run under each of its tags.
MAX_FORM_BOXES: Final = 1_000

# -- a connection
# Each connection uses a file descriptor.
MAX_CONNECTIONS: Final = 60_000
# The request line and headers, and the framing and trailers of a chunked body. Our pages send a hundredth of this.
MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 15.0
# Requests received while an earlier request on the connection is still unanswered.
MAX_PIPELINED: Final = 64
# The time allowed to drain the rest of a body after an early response; an earlier close would discard the response.
UNREAD_SECONDS: Final = 5.0
# A client that reads less than MIN_READ_BYTES of a response in this time is disconnected.
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
# Sums and squares of values below this limit still fit into a double with digits to spare.
MAX_FLOAT: Final = 1e15
MAX_RSS_BYTES: Final = 64 * 2**40
# This limit applies to ranks and attempts.
MAX_RANK: Final = 2**31 - 1
# The id of a webhook, a delivery, a rule or a token; fits both databases.
MAX_ROW_ID: Final = 2**62
# The year 3000: a later time must be in the wrong unit.
MAX_TIME_SECONDS: Final = 32_503_680_000.0
# If a client's clock differs from the server's by more than this, its times are corrected, and the correction is
# reported.
MAX_SKEW_SECONDS: Final = 300.0

# -- strings, in characters
MAX_NAME_LENGTH: Final = 512
MAX_LABEL_LENGTH: Final = 256
MAX_PATH_LENGTH: Final = 1_024
MAX_INSTANCE_LENGTH: Final = 128
MAX_RUN_ID_LENGTH: Final = 128
MAX_TAG_LENGTH: Final = 64
# The fingerprint of a finding, stable across runs.
MAX_FINGERPRINT_LENGTH: Final = 128
# Text that people write: a note, a link, the reason why a run ended or a leak is ignored, a webhook's or token's name.
MAX_NOTE_LENGTH: Final = 4_000
MAX_LINK_LENGTH: Final = 2_000
MAX_REASON_LENGTH: Final = 1_000
MAX_TITLE_LENGTH: Final = 80
MAX_ADVICE_LENGTH: Final = 1_000
MAX_WEBHOOK_LENGTH: Final = 2_048
# A keyword, for example a webhook format, or a number with its unit.
MAX_WORD_LENGTH: Final = 64
# A search text, or the cursor of a list.
MAX_QUERY_LENGTH: Final = 2_000
# More search terms would nest the SQL expression too deeply.
MAX_SEARCH_WORDS: Final = 30
# A typed password or token, and the address to return to after sign-in.
MAX_SECRET_LENGTH: Final = 4_000
# One printed line of a process. Our client truncates lines at 400 characters.
MAX_LINE_LENGTH: Final = 1_000

# -- a run; anything beyond these limits becomes "other" or is dropped, and is counted
MAX_RUN_SERIES: Final = 6_000
MAX_RUN_TYPES: Final = 2_000
MAX_RUN_PHASES: Final = 64
MAX_RUN_PROCESSES: Final = 10_000
MAX_RUN_TAGS: Final = 64
MAX_DECLARED_PHASES: Final = 256
MAX_RUN_ATTEMPTS: Final = 1_000
# Encoded sizes. Our client truncates the configuration at half of this limit, and the environment before it reaches its
# limit.
MAX_CONFIG_BYTES: Final = 128 * 1024
MAX_ENVIRONMENT_BYTES: Final = 64 * 1024
# Top-level keys of the configuration or of the environment.
MAX_NAMES_LISTED: Final = 1_000
MAX_NOTES: Final = 1_000
MAX_NOTES_AT_ONCE: Final = 100
MAX_NOTES_BYTES: Final = 2**20

# -- a day (UTC); per project and configurable: runs that begin, and bytes that are stored
RUNS_PER_DAY: Final = 10_000
BYTES_PER_DAY: Final = 64 * 2**30
# Projects in which runs may begin: without this limit, the quotas per project would not bound the total.
PROJECTS_PER_DAY: Final = 1_000
# The part of a project's quota for its browser tokens, which anybody can read from the page that contains them. It is
# at most half, so that the project's training runs always have room (`share_of_browsers`).
BROWSER_RUNS_PER_DAY: Final = 1_000
BROWSER_BYTES_PER_DAY: Final = 4 * 2**30

# -- queued batches
# This is the total; a single project gets at most half of it and a single run a third, so that others have room
# (`fair_queue.py`). If a thousand processes of a run send at the same moment, for example after a restart, all are
# accepted; the last one waits a tenth of a second.
MAX_WAITING_BATCHES: Final = 3_072
# This many snapshots with 65 series each take at most 30 MB as arrays.
MAX_WAITING_SNAPSHOTS: Final = 60_000
# The inflated bodies, or their decoded numbers if those are larger.
MAX_WAITING_BYTES: Final = 96 * 2**20
MAX_LIVE_STREAMS: Final = 4_096

# -- what people may set
MAX_RULES: Final = 500
# The most generations in a row that a rule may require: an examination of a long run does not read more generations.
MAX_IN_A_ROW: Final = 128
# The longest acknowledgement: ten years.
MAX_SNOOZE_SECONDS: Final = 320_000_000.0
# Usable tokens, and the longest lifetime of a token.
MAX_TOKENS: Final = 1_000
MAX_TOKEN_DAYS: Final = 3_650.0
# Unanswered requests to a run, from people and from the examiner.
MAX_REQUESTS: Final = 16
# This limit applies per project. Withdrawn accepted counts are kept, but do not count toward the limit.
MAX_ACCEPTED_COUNTS: Final = 200
# Together with the webhooks from the environment, there are at most as many webhooks as delivery threads, so no webhook
# waits for another.
MAX_WEBHOOKS: Final = 31

# -- rows that requests add one by one; the oldest are deleted
# Sign-in sessions. The limit per token or password is above the number of browsers in a team, and keeps one credential
# from evicting the sessions of another.
MAX_SESSIONS: Final = 10_000
MAX_SESSIONS_OF_ONE: Final = 100
# Inactive rows: tokens, a project's accepted counts, a leak's acknowledgements, a run's requests.
MAX_PAST: Final = 1_000
# Resolved incidents of a run.
MAX_RUN_INCIDENTS: Final = 1_000
MAX_RUN_ALERTS: Final = 5_000
# Damaged values that were quarantined; each is logged.
MAX_DAMAGED: Final = 10_000

# -- a response
# Series names in one request; each name may contain wildcards.
MAX_NAMES_ASKED: Final = 200
# Runs in an overlay, and in a comparison.
MAX_RUNS_OVERLAID: Final = 10
MAX_RUNS_PICKED: Final = 2
MAX_PAGE: Final = 200
MAX_POINTS: Final = 20_000
MAX_ITEMS: Final = 1_000
MAX_LISTED: Final = 5_000
# Each listed attempt includes its package list.
MAX_ATTEMPTS_LISTED: Final = 50
# Processes of a run that are analyzed, accounted by phase and compared; the largest ones are chosen. Each process takes
# a millisecond or two, and a page waits for all of them.
MAX_PROCESSES_STUDIED: Final = 1_024
# Processes read for a response that already contains the maximum number of series, and for a list of snapshots.
MAX_PROCESSES_READ: Final = 1_024
# Processes listed for a run; the run's page shows them in three tables.
MAX_PROCESSES_LISTED: Final = 1_000
# The encoded size without printed lines; each process may have long names and many loss reasons.
MAX_PROCESSES_LISTED_BYTES: Final = 2 * 2**20
# The encoded size: enough for 64 processes that print lines of 300 characters.
MAX_LINES_LISTED_BYTES: Final = 2**20

# -- an OTLP request
MAX_OTLP_RESOURCES: Final = 64
MAX_OTLP_POINTS: Final = 20_000
MAX_OTLP_SERIES: Final = 1_000
# Phase ends and exports occur once every few seconds, and each snapshot is numbered and stored separately.
MAX_OTLP_SNAPSHOTS: Final = 2_000
MAX_OTLP_DEPTH: Final = 64


def share_of_browsers(most: int, of_project: float | None) -> int:
    """Return a project's quota for its browser tokens. ``of_project`` is the project's quota; None means unlimited."""
    return most if of_project is None else max(1, min(most, int(of_project) // 2))
