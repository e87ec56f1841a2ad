"""The tables of a registry in SQL, by version, and the statements that upgrade version 1.

Version 1 is that of baton 0.1.0. Version 2 is version 1 with `UPGRADE`, also in a new database: an upgraded registry
and a new one have the same schema. `extra` is renamed, so that every claim and every event of a 0.1.0 process that has
the database open fails; one that opens it reads the version and stops. In files, version 2 is a note: see `files`.
"""

from __future__ import annotations

from baton.core.errors import RegistryUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 2
_SHOWN = 10

_TABLES_1 = """
CREATE TABLE jobs (
    job_id {id} PRIMARY KEY NOT NULL, schema_version {number} NOT NULL, status text NOT NULL,
    created_at {number} NOT NULL, updated_at {number} NOT NULL, prompt text NOT NULL, agent text NOT NULL,
    agent_session text NOT NULL, broker text NOT NULL, topic_prefix text NOT NULL,
    timeout_sec {number} NOT NULL, idle_timeout_sec {number} NOT NULL, expected_artifacts text NOT NULL,
    last_seq {number} NOT NULL, auth_token text, workdir text, attempt {number} NOT NULL,
    max_attempts {number} NOT NULL, priority {number} NOT NULL, claimed_by text, lease_expires_at {number},
    lease_mark text, deadline_at {number}, last_event_at {number}, finished_at {number}, detail text,
    validate text, labels text NOT NULL, extra text
);
CREATE INDEX jobs_pending ON jobs (agent_session, priority DESC, created_at, job_id) WHERE status = 'pending';
CREATE INDEX jobs_leased ON jobs ({leased_by}) WHERE status = 'running' AND lease_expires_at IS NOT NULL;
CREATE INDEX jobs_created ON jobs (created_at, job_id);
CREATE INDEX jobs_status ON jobs (status, created_at, job_id);
CREATE INDEX jobs_session ON jobs (agent_session, created_at, job_id);
CREATE INDEX jobs_agent ON jobs (agent, created_at, job_id);
CREATE INDEX jobs_updated ON jobs (updated_at);
CREATE TABLE events (
    id {serial} PRIMARY KEY, job_id {id} NOT NULL, seq {number} NOT NULL, attempt {number} NOT NULL,
    event text NOT NULL, payload {bytes} NOT NULL, sent {number} NOT NULL, UNIQUE (job_id, seq)
);
CREATE INDEX events_unsent ON events (id) WHERE sent = 0;
"""
# The columns that version 2 adds. Other fields that 0.1.0 does not know, and those that no version knows, are in
# `other_fields`.
NEW_COLUMNS = (
    "submitter", "disputed", "reason", "ended_by", "seen_at", "idempotency_key", "retried_by", "start_options",
    "notify_due", "activity", "change", "after", "waits_for", "not_before", "look_at", "followed_at",
)  # fmt: skip
UPGRADE = """
ALTER TABLE jobs RENAME COLUMN extra TO other_fields;
ALTER TABLE jobs ADD COLUMN submitter text;
ALTER TABLE jobs ADD COLUMN disputed text;
ALTER TABLE jobs ADD COLUMN reason text;
ALTER TABLE jobs ADD COLUMN ended_by text;
ALTER TABLE jobs ADD COLUMN seen_at bigint;
ALTER TABLE jobs ADD COLUMN idempotency_key text;
ALTER TABLE jobs ADD COLUMN retried_by text;
ALTER TABLE jobs ADD COLUMN start_options text;
ALTER TABLE jobs ADD COLUMN notify_due text;
ALTER TABLE jobs ADD COLUMN activity text;
ALTER TABLE jobs ADD COLUMN change bigint NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN after text;
ALTER TABLE jobs ADD COLUMN waits_for text;
ALTER TABLE jobs ADD COLUMN not_before bigint;
ALTER TABLE jobs ADD COLUMN look_at bigint;
ALTER TABLE jobs ADD COLUMN followed_at bigint;
CREATE TABLE results (job_id text PRIMARY KEY NOT NULL, result text NOT NULL);
CREATE TABLE requests (
    request_id text PRIMARY KEY NOT NULL, job_id text NOT NULL, attempt bigint NOT NULL, state text NOT NULL,
    asked_at bigint NOT NULL, expires_at bigint, expires_mark text, content text NOT NULL, call text NOT NULL
);
CREATE INDEX requests_job ON requests (job_id);
CREATE INDEX requests_open ON requests (job_id) WHERE state = 'open';
CREATE TABLE changes (floor bigint NOT NULL);
INSERT INTO changes VALUES (0);
CREATE INDEX jobs_change ON jobs (change);
UPDATE jobs SET seen_at = COALESCE(finished_at, updated_at) WHERE status IN ('completed', 'error', 'cancelled');
DROP INDEX jobs_pending;
DROP INDEX jobs_updated;
CREATE INDEX jobs_pending ON jobs (agent_session, priority DESC, created_at, job_id)
    WHERE status = 'pending' AND submitter IS NULL AND disputed IS NULL AND waits_for IS NULL AND look_at IS NULL;
CREATE INDEX jobs_look ON jobs (look_at) WHERE look_at IS NOT NULL;
CREATE TABLE followers (job_id text NOT NULL, follower text NOT NULL, PRIMARY KEY (job_id, follower));
CREATE INDEX followers_follower ON followers (follower);
CREATE INDEX jobs_left ON jobs (updated_at) WHERE status <> 'running' AND last_seq > 0;
CREATE INDEX jobs_unseen ON jobs (created_at, job_id) WHERE status IN ('completed', 'error') AND seen_at IS NULL;
CREATE UNIQUE INDEX jobs_idempotency ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_notify ON jobs (created_at, job_id) WHERE notify_due IS NOT NULL;
CREATE INDEX jobs_submitted ON jobs (status, created_at, job_id)
    WHERE status = 'pending' AND submitter IS NOT NULL AND waits_for IS NULL AND look_at IS NULL;
"""
_META_1 = "CREATE TABLE meta (schema_version integer NOT NULL); INSERT INTO meta VALUES (1);"
SQLITE_UPGRADE = UPGRADE + "PRAGMA user_version = 2;"
POSTGRES_UPGRADE = (
    UPGRADE + "ALTER TABLE meta ADD COLUMN draining_until timestamptz; UPDATE meta SET schema_version = 2;"
)

SQLITE_1 = _TABLES_1.format(id="text", number="integer", serial="integer", bytes="blob", leased_by="job_id")
POSTGRES_1 = _META_1 + _TABLES_1.format(
    id='text COLLATE "C"', number="bigint", serial="bigserial", bytes="bytea", leased_by="lease_expires_at"
)
SQLITE_2 = SQLITE_1 + SQLITE_UPGRADE
# Of the statements that SQLite stores for each version, so that a database is checked without creating the tables.
SQLITE_DIGESTS = {
    1: "46f1939e6bdc0efaf66e4a5c157876650dcfe1f16e9f1b1be01e5d3a10db05c6",
    2: "19cfc241c26e63841111b8d936094d6043a74bd9185e6e900b44a30616c7926b",
}
POSTGRES_2 = POSTGRES_1 + POSTGRES_UPGRADE


def refuse_upgrade(where: str, running: Sequence[str], home: str | None = None) -> None:
    """Raise when jobs run in a registry of version 1, or sessions in the home that it belongs to: their 0.1.0 processes
    could not report to version 2."""
    if running:  # guard: upgrade-with-running-jobs
        raise RegistryUnavailable(
            f"{where} was written by baton 0.1.0 and has running jobs ({name_jobs(running)}); let them end there, or "
            "run `baton registry upgrade --force`, after which 0.1.0 processes can no longer report to it"
        )

    if home is None:
        return
    from baton.storage.home_users import how_to_end, runners_of_0_1_0

    if runners := runners_of_0_1_0(home):  # guard: upgrade-with-living-runners
        raise RegistryUnavailable(
            f"{where} was written by baton 0.1.0, which still serves it: {how_to_end(runners)}; or run `baton registry "
            "upgrade --force`, after which 0.1.0 processes can no longer report to it"
        )


def name_jobs(job_ids: Sequence[str]) -> str:
    more = f" and {len(job_ids) - _SHOWN} more" if len(job_ids) > _SHOWN else ""
    return ", ".join(job_ids[:_SHOWN]) + more


def submitter_of_queue(queue: str) -> str | None:
    """Return the submitter of a job in a private queue of 0.1.0 (submit:HOST:PID:START:RANDOM); None of others."""
    if not queue.startswith("submit:"):
        return None
    submitter = queue.removeprefix("submit:").rpartition(":")[0]
    return submitter if submitter.count(":") >= 2 else None
