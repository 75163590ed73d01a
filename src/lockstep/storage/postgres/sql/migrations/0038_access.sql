-- API keys: who may do what over HTTP. Of a secret there is only its SHA-256. A key that is revoked stays, so that the
-- audit log can be read.
create table lockstep.api_key (
    id text collate "C" primary key,
    name text not null,
    digest bytea not null,
    role text,
    rules text[] not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Administrative acts, one row each. Ids are UUIDv7, so they rise with the time.
create table lockstep.audit_entry (
    id uuid primary key,
    at timestamptz not null,
    who text not null,
    act text not null,
    queues text[] not null,
    outcome text not null check (outcome in ('done', 'failed', 'denied')),
    detail text
);
create index audit_entry_at on lockstep.audit_entry (at);
