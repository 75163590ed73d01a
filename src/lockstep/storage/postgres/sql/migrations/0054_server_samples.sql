-- What each server process did, minute by minute, for the history of errors and load.
create table lockstep.server_sample (
    at timestamptz not null,
    server text not null,
    seconds double precision not null,
    requests bigint not null,
    client_errors bigint not null,
    server_errors bigint not null,
    queued bigint not null,
    rejected bigint not null,
    load double precision not null,
    primary key (at, server)
);
