-- What was removed before streams had read it is looked up by transaction, so that what other streams have still to read is
-- not walked over with every batch.
create index spark_removal_txid on lockstep.spark_removal (queue_id, txid);
