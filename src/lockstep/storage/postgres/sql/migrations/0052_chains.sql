-- A body may be a chain of frames (core/layouts.py), which servers of the version before cannot read: they refuse this database.
comment on column lockstep.segment.body is 'The packed layout: one zstd frame, or a chain of them; encrypted where codec says so.';
