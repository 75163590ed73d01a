-- Locks the name of a stream for as long as the session lasts.
select pg_advisory_lock(hashtextextended($1, 7017281906))
