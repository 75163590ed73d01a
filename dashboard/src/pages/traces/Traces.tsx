import { Link } from "@tanstack/react-router";
import { FilterText } from "../../design/FilterText";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { exact } from "../../design/format";
import { Ago, Empty, Failure, Filters, Loading, Page, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { router, routes } from "../../router";
import { NamedEvents } from "./NamedEvents";
import { Trace } from "./Trace";

type NameRow = Schemas["TraceNameRow"];

export function Traces() {
  const { trace, name } = routes.traces.useSearch();
  const navigate = routes.traces.useNavigate();
  return (
    <Page title="Traces" note="The way of a message through queues.">
      <Filters>
        <FilterText
          label="Trace id"
          placeholder="Its whole id"
          value={trace}
          onType={(typed) => void navigate({ search: { trace: typed } })}
          w={360}
        />
      </Filters>
      {trace !== undefined ? <Trace id={trace} /> : name !== undefined ? <NamedEvents name={name} /> : <Names />}
    </Page>
  );
}

const column = createColumnHelper<NameRow>();
const COLUMNS = [
  column.accessor("trace_name", {
    header: "Name",
    cell: (one) => (
      <Link to="/traces" search={{ name: one.getValue() }}>
        <strong>{one.getValue()}</strong>
      </Link>
    ),
  }),
  column.accessor("trace_count", { header: "Events", cell: (one) => exact(one.getValue()), meta: { right: true } }),
  column.accessor("message_count", { header: "Messages", cell: (one) => exact(one.getValue()), meta: { right: true } }),
  column.accessor("last_seen", {
    header: "Last event",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
];

function Names() {
  const { data, error } = useLive("/api/v1/traces/names", { query: { limit: 200 } });
  return (
    <Panel title="Events by name" flush>
      <Failure error={error} />
      {data === undefined && error === null && <Loading />}
      {data !== undefined && (
        <DataTable
          rows={data.trace_names}
          columns={COLUMNS}
          rowId={(row) => row.trace_name}
          label="Names of trace events"
          onOpen={(row) => void router.navigate({ to: "/traces", search: { name: row.trace_name } })}
          empty={
            <Empty title="No named events yet">
              <p>
                Give messages of one business case the same trace id when you push them, and look for it above;
                consumers may tell what they did with trace events.
              </p>
            </Empty>
          }
        />
      )}
    </Panel>
  );
}
