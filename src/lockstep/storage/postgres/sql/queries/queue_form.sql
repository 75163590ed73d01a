-- How a queue stores its messages, its number of numbered partitions if it is balanced, and its id.
select q.compression, q.encryption, q.partitions, q.id from lockstep.queue q where q.name = $1
