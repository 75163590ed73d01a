-- What every run of an archive keeps: the table format that its files are published in, the schema of its payloads, and
-- where the table is found. An archive without a row consists of Parquet files alone.
create table lockstep.archive (
    location text collate "C" primary key,
    format text not null check (format in ('parquet', 'delta', 'iceberg')),
    payload_schema text,
    table_name text,
    catalog text
);

-- A file that was merged with others, or is too old, is no part of its archive from then on. It stays where it is for a
-- while, for those who read an older list.
alter table lockstep.archive_file add column removed_at timestamptz;
create index archive_file_removed on lockstep.archive_file (removed_at) where removed_at is not null;
