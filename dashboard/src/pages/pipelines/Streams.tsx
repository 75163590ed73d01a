import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, duration } from "../../design/format";
import { Ago, Failure, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";

type StreamRow = Schemas["SparkStreamRow"];

const column = createColumnHelper<StreamRow>();
const COLUMNS = [
  column.accessor("name", { header: "Stream", cell: (one) => <strong>{one.getValue()}</strong> }),
  column.accessor("queueName", {
    header: "Queue",
    cell: (one) => (
      <Link to="/queues/$queue" params={{ queue: one.getValue() }}>
        {one.getValue()}
      </Link>
    ),
  }),
  column.accessor("totalLag", { header: "Lag", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("maxTimeLag", { header: "Oldest", cell: (one) => duration(one.getValue()), meta: { right: true } }),
  column.accessor("updatedAt", {
    header: "Last read",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("heldUntil", {
    header: "Keeps messages until",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true, wide: true },
  }),
];

/** Spark's streams, those of steps among them: retention keeps what they have still to read. */
export function Streams() {
  const { data, error } = useLive("/api/v1/spark-streams");
  if (data?.length === 0) return null;
  return (
    <Panel title="Streams" flush>
      <Failure error={error} />
      {data !== undefined && (
        <DataTable
          rows={data}
          columns={COLUMNS}
          rowId={(stream) => `${stream.id} ${stream.queueName}`}
          label="Spark streams"
        />
      )}
    </Panel>
  );
}
