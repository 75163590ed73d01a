/** What servers do in the background, one at a time for all of them. */
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { exact } from "../../design/format";
import { Ago, Badge, Failure, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";

type DutyRow = Schemas["DutyRow"];

const column = createColumnHelper<DutyRow>();
const COLUMNS = [
  column.accessor("name", { header: "Duty", cell: (one) => one.getValue().replaceAll("_", " ") }),
  column.display({ id: "state", header: "State", cell: ({ row }) => <State duty={row.original} /> }),
  column.accessor("lastFinishedAt", {
    header: "Last done",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("nextRunAt", {
    header: "Next",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true, wide: true },
  }),
  column.accessor("runs", { header: "Runs", cell: (one) => exact(one.getValue()), meta: { right: true, wide: true } }),
  column.accessor("failures", { header: "Failures", cell: (one) => exact(one.getValue()), meta: { right: true } }),
];

function State({ duty }: { duty: DutyRow }) {
  if (duty.lastError !== null) {
    return (
      <span title={duty.lastError}>
        <Badge tone="dead">Failed</Badge>
      </span>
    );
  }
  return duty.lastFinishedAt === null ? <Badge tone="lagging">At work</Badge> : <Badge tone="healthy">Done</Badge>;
}

export function Duties() {
  const { data, error } = useLive("/api/v1/analytics/retention");
  return (
    <Panel title="Duties" flush>
      <Failure error={error} />
      {data !== undefined && (
        <DataTable rows={data.duties} columns={COLUMNS} rowId={(duty) => duty.name} label="Duties" height={480} />
      )}
    </Panel>
  );
}
