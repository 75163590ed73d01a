import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count } from "../../design/format";
import { Empty, Failure, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { Age } from "../queues/QueueTable";
import { groupName, GroupState } from "../groups/words";

type GroupRow = Schemas["GroupRow"];

const column = createColumnHelper<GroupRow>();
const COLUMNS = [
  column.accessor("name", {
    header: "Group",
    cell: ({ row: { original: group } }) => (
      <Link to="/groups/$group" params={{ group: group.name }} search={{ queue: group.queueName }}>
        <strong>{groupName(group.name)}</strong>
      </Link>
    ),
  }),
  column.display({ id: "state", header: "State", cell: ({ row }) => <GroupState group={row.original} /> }),
  column.accessor("totalLag", { header: "Lag", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("maxTimeLag", {
    header: "Oldest",
    cell: (one) => <Age seconds={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("inFlight", {
    header: "In flight",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("members", {
    header: "Leases",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("partitionsWithLag", {
    header: "Partitions with lag",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
];

export function QueueGroups({ queue }: { queue: string }) {
  const { data, error } = useLive("/api/v1/consumer-groups", { query: { queue } });
  return (
    <Panel title="Groups" flush>
      <Failure error={error} />
      {data !== undefined && (
        <DataTable
          rows={data}
          columns={COLUMNS}
          rowId={(group) => group.name}
          label="Groups of this queue"
          height={320}
          empty={
            <Empty title="Nobody has read from this queue yet">
              <p>A group is there from its first pop on. Until then every message waits.</p>
            </Empty>
          }
        />
      )}
    </Panel>
  );
}
