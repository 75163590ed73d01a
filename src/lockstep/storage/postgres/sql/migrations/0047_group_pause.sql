-- Since when nothing is delivered to a group on a queue, because an operator said so. What is leased stays leased.
alter table lockstep.consumer_group add column paused_at timestamptz;
