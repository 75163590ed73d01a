import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { Ago, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";

type EventRow = Schemas["NamedTraceRow"];

const column = createColumnHelper<EventRow>();
const COLUMNS = [
  column.accessor("created_at", { header: "When", cell: (one) => <Ago at={one.getValue()} /> }),
  column.accessor("event_type", { header: "Event" }),
  column.accessor("queue_name", { header: "Queue" }),
  column.accessor("worker_id", { header: "Worker", cell: (one) => one.getValue() ?? "–", meta: { wide: true } }),
  column.accessor("data", {
    header: "What it says",
    cell: (one) => <span className="ls-mono">{JSON.stringify(one.getValue())}</span>,
    enableSorting: false,
  }),
  column.accessor("transaction_id", {
    header: "Message",
    cell: ({ row: { original: event } }) => (
      <Link
        to="/messages/$partitionId/$transactionId"
        params={{ partitionId: event.partition_id, transactionId: event.transaction_id }}
        className="ls-mono"
      >
        {event.transaction_id}
      </Link>
    ),
    enableSorting: false,
  }),
];

export function NamedEvents({ name }: { name: string }) {
  const { data, error } = useLive("/api/v1/traces/by-name/{name}", { params: { name }, query: { limit: 500 } });
  return (
    <Panel title={`Events named ${name}`} flush actions={<Link to="/traces">All names</Link>}>
      <Failure error={error} />
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <DataTable
          rows={data.traces}
          columns={COLUMNS}
          rowId={(event) => event.id}
          label="Trace events"
          height={620}
          empty={<Empty title="No event has this name" />}
        />
      )}
    </Panel>
  );
}
