/** Partitions whose first message some group has not done for a while. */
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, duration } from "../../design/format";
import { Ago, Empty, Failure, Loading, Panel, Toned } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { groupName } from "../groups/words";

type LaggingRow = Schemas["LaggingRow"];

const STUCK_SECONDS = 60;
const column = createColumnHelper<LaggingRow>();
const COLUMNS = [
  column.accessor("partition_name", {
    header: "Partition",
    cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
  }),
  column.accessor("consumer_group", { header: "Group", cell: (one) => groupName(one.getValue()) }),
  column.accessor("time_lag_seconds", {
    header: "Oldest",
    cell: (one) => <Toned tone="lagging">{duration(one.getValue())}</Toned>,
    meta: { right: true },
  }),
  column.accessor("offset_lag", { header: "Lag", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("in_flight", {
    header: "In flight",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("last_consumed_at", {
    header: "Last done",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true, wide: true },
  }),
];

interface StuckProps {
  queue?: string;
  group?: string;
}

export function StuckPartitions({ queue, group }: StuckProps) {
  const { data, error } = useLive("/api/v1/consumer-groups/lagging", {
    query: { queue, consumerGroup: group, minLagSeconds: STUCK_SECONDS, limit: 500 },
  });
  return (
    <Panel title="Waiting for more than a minute" flush>
      <Failure error={error} />
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <DataTable
          rows={data}
          columns={COLUMNS}
          rowId={(row) => `${row.consumer_group} ${row.partition_id}`}
          label="Stuck partitions"
          empty={
            <Empty title="Nothing is stuck">
              <p>No group leaves a message waiting for more than a minute.</p>
            </Empty>
          }
        />
      )}
    </Panel>
  );
}
