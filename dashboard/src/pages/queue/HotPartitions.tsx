/** Where the newest messages went: the partitions that get the most. */
import { useMemo } from "react";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count } from "../../design/format";
import { Ago, Bar, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { hottest, type Hot } from "./hottest";

const LOOKED_AT = 500;

const column = createColumnHelper<Hot>();
const COLUMNS = [
  column.accessor("partition", {
    header: "Partition",
    cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
  }),
  column.accessor("share", {
    header: "Share",
    cell: (one) => <Bar part={one.getValue()} label={`${Math.round(one.getValue() * 100)} per cent`} />,
    meta: { width: "40%" },
  }),
  column.accessor("messages", {
    header: "Of the newest messages",
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("newest", { header: "Newest", cell: (one) => <Ago at={one.getValue()} />, meta: { right: true } }),
];

export function HotPartitions({ queue }: { queue: string }) {
  const { data, error } = useLive("/api/v1/status/queues/{queue}/messages", {
    params: { queue },
    query: { newestFirst: true, limit: LOOKED_AT },
  });
  const rows = useMemo(() => hottest(data?.messages ?? []), [data]);
  return (
    <Panel title={`Where the newest ${count(data?.messages.length ?? LOOKED_AT)} messages went`} flush>
      <Failure error={error} />
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <DataTable
          rows={rows}
          columns={COLUMNS}
          rowId={(hot) => hot.partition}
          label="Hot partitions"
          empty={<Empty title="Nothing is stored" />}
        />
      )}
    </Panel>
  );
}
