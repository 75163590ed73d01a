-- What roles of the database may do on which queues (procedures/role_rule.sql). A rule of a role holds for its members.
create table lockstep.role_rule (
    role name not null,
    right_name text not null check (right_name in ('push', 'pop', 'browse', 'manage', 'configure', 'admin')),
    pattern text not null,
    queue_like text not null generated always as (
        replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')) stored,
    created_at timestamptz not null default clock_timestamp(),
    primary key (role, right_name, pattern)
);
insert into lockstep.role_rule (role, right_name, pattern) values
    ('lockstep_producer', 'push', '*'), ('lockstep_consumer', 'pop', '*'), ('lockstep_admin', 'admin', '*');
