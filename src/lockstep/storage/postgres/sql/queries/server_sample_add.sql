-- Stores what a server process did. A process has one sample for each instant.
insert into lockstep.server_sample (at, server, seconds, requests, client_errors, server_errors, queued, rejected, load)
values (coalesce($1::timestamptz, clock_timestamp()), $2::text, $3::float8, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::float8)
on conflict (at, server) do nothing
