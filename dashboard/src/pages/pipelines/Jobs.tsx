/** What jobs on Spark did: batches of archives, and statistics. */
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { bytes, count, duration, several } from "../../design/format";
import { Ago, Badge, Empty, Failure, Panel } from "../../design/parts";
import { useAnswer } from "../../live/useLive";

type JobRun = Schemas["JobRunRow"];

const column = createColumnHelper<JobRun>();
const COLUMNS = [
  column.accessor("job", { header: "Job", cell: (one) => <strong>{one.getValue()}</strong> }),
  column.accessor("target", { header: "Where", cell: (one) => <span className="ls-mono">{one.getValue()}</span> }),
  column.display({
    id: "state",
    header: "State",
    cell: ({ row }) =>
      row.original.endedAt === null ? <Badge tone="lagging">Not ended</Badge> : <Badge tone="healthy">Done</Badge>,
  }),
  column.accessor((run) => run.queues.join(", "), { id: "queues", header: "Queues", meta: { wide: true } }),
  column.display({ id: "did", header: "Wrote", cell: ({ row }) => wrote(row.original), meta: { right: true } }),
  column.display({
    id: "took",
    header: "Took",
    cell: ({ row }) => duration(seconds(row.original)),
    meta: { right: true, wide: true },
  }),
  column.accessor((run) => run.endedAt ?? run.beganAt, {
    id: "at",
    header: "When",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
];

function wrote(run: JobRun): string {
  if (run.windows !== null) return several(run.windows, "window");
  return `${count(run.messages)} messages, ${bytes(run.bytes)}`;
}

function seconds(run: JobRun): number | null {
  return run.beganAt === null || run.endedAt === null
    ? null
    : (Date.parse(run.endedAt) - Date.parse(run.beganAt)) / 1000;
}

export function Jobs() {
  const { data, error } = useAnswer("/api/v1/pipelines/jobs", { query: { limit: 50 } });
  return (
    <Panel title="Archives and statistics" flush>
      <Failure error={error} />
      {data !== undefined && (
        <DataTable
          rows={data.runs}
          columns={COLUMNS}
          rowId={(run) => `${run.job} ${run.target} ${run.beganAt ?? run.endedAt ?? ""}`}
          label="Runs of jobs"
          height={360}
          empty={
            <Empty title="No job has run yet">
              <p>
                <span className="ls-mono">lockstep job archive</span> keeps messages as Parquet files,{" "}
                <span className="ls-mono">lockstep job stats</span> computes statistics by window.
              </p>
            </Empty>
          }
        />
      )}
    </Panel>
  );
}
