import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, rate, several } from "../../design/format";
import { Ago, Badge, Code, Empty, Failure, Loading, Page, Panel, Toned, type Tone } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { Jobs } from "./Jobs";
import { inOrder } from "./graph";
import { PipelineGraph } from "./PipelineGraph";
import { Streams } from "./Streams";
import type { StepRow } from "./graph";

export const STATES: Record<StepRow["state"], { words: string; tone: Tone }> = {
  running: { words: "Running", tone: "healthy" },
  restarting: { words: "Failed, starts again", tone: "lagging" },
  stopped: { words: "Stopped", tone: "idle" },
  failed: { words: "Failed", tone: "dead" },
  gone: { words: "Gone without a word", tone: "dead" },
};

export function Pipelines() {
  const { data, error } = useLive("/api/v1/pipelines");
  const names = [...new Set(data?.steps.map((step) => step.pipeline))];
  return (
    <Page title="Pipelines" note="Steps on Spark, from queue to queue.">
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={6} />}
      {data?.steps.length === 0 && (
        <Panel>
          <Empty title="No pipeline has run yet">
            <p>Run one against this database, and its steps are shown here:</p>
            <Code>lockstep pipeline run FILE</Code>
          </Empty>
        </Panel>
      )}
      {names.map((name) => (
        <Pipeline key={name} name={name} steps={data?.steps.filter((step) => step.pipeline === name) ?? []} />
      ))}
      <Streams />
      <Jobs />
    </Page>
  );
}

const column = createColumnHelper<StepRow>();
const COLUMNS = [
  column.accessor("step", { header: "Step", enableSorting: false, cell: (one) => <strong>{one.getValue()}</strong> }),
  column.accessor("state", {
    header: "State",
    cell: (one) => <Badge tone={STATES[one.getValue()].tone}>{STATES[one.getValue()].words}</Badge>,
  }),
  column.accessor("lag", { header: "Lag", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("rowsPerSecond", {
    header: "Rows per second",
    cell: (one) => rate(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("pushed", { header: "Pushed", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("rejected", {
    header: "Rejected",
    cell: (one) => <Toned tone={one.getValue() > 0 ? "lagging" : undefined}>{count(one.getValue())}</Toned>,
    meta: { right: true },
  }),
  column.accessor("restarts", {
    header: "Restarts",
    cell: (one) => <Toned tone={one.getValue() > 0 ? "lagging" : undefined}>{count(one.getValue())}</Toned>,
    meta: { right: true, wide: true },
  }),
  column.accessor("committedAt", {
    header: "Last batch",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("error", { header: "Last error", cell: ({ row }) => <LastError step={row.original} /> }),
];

/** With the way to its dead letters, which is where a step leaves what it cannot do. */
function LastError({ step }: { step: StepRow }) {
  const dead = step.deadLetters > 0 && (
    <Link to="/dead-letters" search={{ queue: step.sources[0] }}>
      {several(step.deadLetters, "dead letter")}
    </Link>
  );
  if (step.error === null) return dead || <span className="ls-soft">none</span>;
  return (
    <span title={step.error}>
      {dead} {step.error}
    </span>
  );
}

function Pipeline({ name, steps }: { name: string; steps: StepRow[] }) {
  const ordered = useMemo(() => inOrder(steps), [steps]);
  return (
    <Panel title={name} flush>
      <PipelineGraph steps={ordered} />
      <DataTable rows={ordered} columns={COLUMNS} rowId={(step) => step.step} label={`Steps of ${name}`} />
    </Panel>
  );
}
