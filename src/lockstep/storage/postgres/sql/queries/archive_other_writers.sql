-- Whether a query whose name does not begin with a prefix ($2) has committed batches to an archive ($1). Merging files
-- writes nothing of its own.
select exists (
    select 1 from lockstep.archive_batch b
    where b.archive = $1 and b.committed_at is not null and not starts_with(b.query, $2) and not starts_with(b.query, 'merge ')
)
