import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, duration } from "../../design/format";
import { Ago, Badge, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useMore } from "../../design/useMore";

type Row = Schemas["GroupPartition"];

const PAGE = 200;
const column = createColumnHelper<Row>();
const COLUMNS = [
  column.accessor("partition", {
    header: "Partition",
    cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
  }),
  column.display({ id: "state", header: "State", cell: ({ row }) => <State row={row.original} /> }),
  column.accessor("offsetLag", {
    header: "Lag",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("timeLagSeconds", {
    header: "Oldest",
    sortDescFirst: true,
    cell: (one) => (one.getValue() === 0 ? "–" : duration(one.getValue())),
    meta: { right: true },
  }),
  column.accessor("inFlight", {
    header: "In flight",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("totalConsumed", {
    header: "Done",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("lastConsumedAt", {
    header: "Last done",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true, wide: true },
  }),
];

function State({ row }: { row: Row }) {
  if (row.leaseActive) return <Badge tone="healthy">Leased</Badge>;
  return <Badge tone={row.offsetLag > 0 ? "lagging" : "idle"}>{row.offsetLag > 0 ? "Waiting" : "Drained"}</Badge>;
}

export function GroupPartitions({ group, queue }: { group: string; queue: string }) {
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/consumer-groups/{group}",
    asked: (after) => ({
      params: { group },
      query: { limit: PAGE, after: after === undefined ? undefined : Number(after) },
    }),
    rowsOf: (page) => page[queue]?.partitions ?? [],
    nextOf: lastOf,
  });
  return (
    <Panel flush>
      <Failure error={error} />
      {rows === undefined && error === null && <Loading rows={8} />}
      {rows !== undefined && (
        <DataTable
          rows={rows}
          columns={COLUMNS}
          rowId={(row) => row.partitionId}
          label="Partitions of the group"
          height={620}
          onEnd={onEnd}
          empty={<Empty title="No partitions yet" />}
        />
      )}
    </Panel>
  );
}

/** Pages go over the partitions of all queues that the group reads, by id. */
function lastOf(page: Record<string, { partitions: Row[] }>): string | undefined {
  const all = Object.values(page).flatMap((queue) => queue.partitions);
  if (all.length < PAGE) return undefined;
  return String(Math.max(...all.map((row) => Number(row.partitionId))));
}
