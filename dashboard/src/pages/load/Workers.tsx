import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, duration, exact } from "../../design/format";
import { Failure, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";

const column = createColumnHelper<Schemas["WorkerRow"]>();
const COLUMNS = [
  column.accessor("workerId", { header: "Process", cell: (one) => <span className="ls-mono">{one.getValue()}</span> }),
  column.accessor("uptimeSeconds", { header: "Up", cell: (one) => duration(one.getValue()), meta: { right: true } }),
  column.accessor("requests", { header: "Requests", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("requestsInFlight", {
    header: "In flight",
    cell: (one) => exact(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("pollsWaiting", { header: "Polls", cell: (one) => exact(one.getValue()), meta: { right: true } }),
  column.accessor("messagesPushed", { header: "Pushed", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("messagesPopped", {
    header: "Popped",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("messagesAcked", {
    header: "Acked",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("serverErrors", { header: "Errors", cell: (one) => exact(one.getValue()), meta: { right: true } }),
];

/** The processes behind this port. */
export function Workers() {
  const { data, error } = useLive("/api/v1/analytics/worker-metrics");
  return (
    <Panel title="Server processes" flush>
      <Failure error={error} />
      {data !== undefined && (
        <DataTable rows={data.workers} columns={COLUMNS} rowId={(row) => row.workerId} label="Server processes" />
      )}
    </Panel>
  );
}
