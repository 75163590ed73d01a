-- Locks the name of a stream for the session.
select pg_advisory_lock(hashtextextended($1, 7017281906))
