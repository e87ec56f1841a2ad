"""Write the SQL that separates three kinds of PostgreSQL logins: to submit jobs, to work on them, to read."""

import re
from collections.abc import Iterable, Mapping

from baton.core.job import FATE
from baton.registry.sql import COLUMNS

Rights = Mapping[str, Mapping[str, str]]
"""For each table, what a role may do beyond reading."""

_ROLES = ("submit", "work", "read")
# What `baton cancel`, `baton retry` and the registration of a follower change.
_SUBMIT = (
    "status", "updated_at", "finished_at", "lease_expires_at", "lease_mark",
    "reason", "ended_by", "seen_at", "retried_by", "activity", "change", "waits_for", "look_at", "followed_at",
)  # fmt: skip
# Not what the job is: a login that could change its prompt or its validation could make workers run other commands.
_PROGRESS = tuple(
    name
    for name in COLUMNS
    if name in FATE - {"idempotency_key"} | {"status", "updated_at", "auth_token", "other_fields"}
)
REGISTRY_RIGHTS: Rights = {
    "meta": {},
    "jobs": {"submit": f"INSERT, UPDATE ({', '.join(_SUBMIT)})", "work": f"UPDATE ({', '.join(_PROGRESS)})"},
    "events": {"work": "INSERT, UPDATE (sent)"},
    "results": {"work": "INSERT, UPDATE (result)"},
    "requests": {"work": "INSERT, UPDATE (state, content)"},
    "changes": {},
    "followers": {"submit": "INSERT, DELETE", "work": "DELETE"},
}


def write_grants(schema: str, parts: Iterable[tuple[str, str, Rights]]) -> str:
    """Return a script that can be run again. Each part is a schema, the statements that made its tables, and the rights
    in it. To migrate, upgrade or prune stays with the owner of the tables."""
    roles = {role: f"{schema}_{role}" for role in _ROLES}
    everyone = ", ".join(roles.values())
    lines = [
        f"-- Logins for the jobs in the schema {schema}. Run it as the owner of the tables, who needs CREATEROLE:",
        "--     baton registry grants | psql DATABASE",
        f"-- Then give roles to each login, such as: GRANT {roles['work']} TO alice;",
        "BEGIN;",
    ]
    for name in roles.values():
        exists = f"IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}')"
        lines.append(f"DO $$ BEGIN {exists} THEN CREATE ROLE {name} NOLOGIN; END IF; END $$;")
    for place, statements, rights in parts:
        everything = (f"SCHEMA {place}", f"ALL TABLES IN SCHEMA {place}", f"ALL SEQUENCES IN SCHEMA {place}")
        lines += [f"REVOKE ALL ON {what} FROM PUBLIC, {everyone};" for what in everything]
        lines.append(f"GRANT USAGE ON SCHEMA {place} TO {everyone};")
        for table in re.findall(r"CREATE TABLE (\w+)", statements):
            lines.append(f"GRANT SELECT ON {place}.{table} TO {everyone};")
            lines += [f"GRANT {right} ON {place}.{table} TO {roles[role]};" for role, right in rights[table].items()]
        lines.append(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {place} TO {roles['work']};")
    return "\n".join([*lines, "COMMIT;"])
