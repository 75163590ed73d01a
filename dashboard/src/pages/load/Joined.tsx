import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, exact } from "../../design/format";
import { Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";

const column = createColumnHelper<Schemas["BufferRow"]>();
const COLUMNS = [
  column.accessor("verb", { header: "Requests", cell: (one) => <strong>{one.getValue()}</strong> }),
  column.accessor("requests", { header: "Came", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("calls", { header: "Calls made", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("roundTripsSaved", {
    header: "Round trips saved",
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("requestsMax", {
    header: "Most in one call",
    cell: (one) => exact(one.getValue()),
    meta: { right: true, wide: true },
  }),
];

/** Requests that came together became one call of the database. */
export function Joined() {
  const { data } = useLive("/api/v1/status/buffers");
  if (data === undefined) return null;
  return (
    <Panel title="Requests that were joined" flush>
      <DataTable rows={data.buffers} columns={COLUMNS} rowId={(row) => row.verb} label="Requests that were joined" />
    </Panel>
  );
}
