import { Button, Select } from "@mantine/core";
import { send, type Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { FilterText } from "../../design/FilterText";
import { count, exact } from "../../design/format";
import { Ago, Badge, Empty, Failure, Filters, Loading, Panel, type Tone } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useMore } from "../../design/useMore";
import { useMayOn } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";

type OperationRow = Schemas["OperationAnswer"];
type Status = OperationRow["status"];

const PAGE = 100;
const STATUSES: { value: Status; label: string; tone: Tone }[] = [
  { value: "pending", label: "Waiting", tone: "lagging" },
  { value: "failed", label: "Failed", tone: "dead" },
  { value: "done", label: "Done", tone: "healthy" },
];
const column = createColumnHelper<OperationRow>();
const COLUMNS = [
  column.accessor("createdAt", { header: "Came", cell: (one) => <Ago at={one.getValue()} />, enableSorting: false }),
  column.accessor("kind", { header: "Kind", enableSorting: false }),
  column.accessor("status", {
    header: "State",
    cell: (one) => {
      const known = STATUSES.find((status) => status.value === one.getValue());
      return <Badge tone={known?.tone ?? "idle"}>{known?.label ?? one.getValue()}</Badge>;
    },
    enableSorting: false,
  }),
  column.accessor((operation) => operation.queues.join(", "), { id: "queues", header: "Queues", enableSorting: false }),
  column.accessor("partition", {
    header: "Partition",
    cell: ({ row: { original: operation } }) => operation.partition ?? `${count(operation.partitions)} partitions`,
    enableSorting: false,
    meta: { wide: true },
  }),
  column.accessor("messages", {
    header: "Messages",
    cell: (one) => exact(one.getValue()),
    meta: { right: true },
    enableSorting: false,
  }),
  column.accessor("retries", { header: "Retries", meta: { right: true, wide: true }, enableSorting: false }),
  column.accessor("error", { header: "Error", cell: (one) => one.getValue() ?? "–", enableSorting: false }),
  column.display({ id: "retry", header: "", cell: ({ row }) => <Retry operation={row.original} /> }),
];

function Retry({ operation }: { operation: OperationRow }) {
  const { run, busy, error } = useAct();
  const may = useMayOn();
  if (operation.status !== "failed" || !operation.queues.every((queue) => may("push", queue))) return null;
  async function act(): Promise<string> {
    const params = { operationId: operation.operationId };
    await send("post", "/api/v1/operations/{operationId}/retry", { params });
    return "The operation waits again, in its old place.";
  }
  return (
    <>
      <Button size="compact-xs" variant="default" loading={busy} onClick={() => run(act)}>
        Retry
      </Button>
      <Failure error={error} />
    </>
  );
}

export function Operations() {
  const { queue, status } = routes.load.useSearch();
  const navigate = routes.load.useNavigate();
  const shown = one<Status>(status, ["pending", "failed", "done"], "pending");
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/operations",
    asked: (cursor) => ({ query: { status: shown, queue, cursor, limit: PAGE } }),
    rowsOf: (page) => page.operations,
    nextOf: (page) => page.nextCursor,
  });
  return (
    <>
      <Filters>
        <Select
          label="State"
          size="sm"
          allowDeselect={false}
          data={STATUSES}
          value={shown}
          onChange={(value) => void navigate({ search: (before) => ({ ...before, status: value ?? undefined }) })}
          w={150}
        />
        <FilterText
          label="Queue"
          value={queue}
          onType={(typed) => void navigate({ search: (before) => ({ ...before, queue: typed }), replace: true })}
          w={220}
        />
      </Filters>
      <Panel flush>
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={4} />}
        {rows !== undefined && (
          <DataTable
            rows={rows}
            columns={COLUMNS}
            rowId={(operation) => operation.operationId}
            label="Operations"
            height={620}
            onEnd={onEnd}
            empty={
              <Empty title="Nothing waits">
                <p>
                  A busy server queues requests instead of failing them, and applies them in order. Here one sees them.
                </p>
              </Empty>
            }
          />
        )}
      </Panel>
    </>
  );
}
