import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { Figure, Figures } from "../../design/Figure";
import { ago, bytes, count, duration, exact, rate } from "../../design/format";
import { Badge, Bar, Failure, Panel, type Tone } from "../../design/parts";
import { useLive } from "../../live/useLive";

type LoadRow = Schemas["LoadRow"];

const ANSWERS: Record<LoadRow["answer"], { words: string; tone: Tone }> = {
  execute: { words: "Executes at once", tone: "healthy" },
  queue: { words: "Queues", tone: "lagging" },
  shed: { words: "Sheds", tone: "lagging" },
  reject: { words: "Rejects", tone: "dead" },
};
const column = createColumnHelper<LoadRow>();
const COLUMNS = [
  column.accessor("kind", { header: "Requests", cell: (one) => <strong>{one.getValue()}</strong> }),
  column.accessor("answer", {
    header: "What becomes of them",
    cell: (one) => <Badge tone={ANSWERS[one.getValue()].tone}>{ANSWERS[one.getValue()].words}</Badge>,
  }),
  column.accessor("load", {
    header: "Load",
    cell: (one) => (
      <Bar
        part={one.getValue()}
        tone={one.getValue() > 0.7 ? "lagging" : undefined}
        label={`${Math.round(one.getValue() * 100)} per cent`}
      />
    ),
    meta: { width: "30%" },
  }),
  column.accessor("seconds", { header: "For", cell: (one) => duration(one.getValue()), meta: { right: true } }),
  column.accessor("queued", { header: "Queued", cell: (one) => exact(one.getValue()), meta: { right: true } }),
  column.accessor("rejected", { header: "Rejected", cell: (one) => exact(one.getValue()), meta: { right: true } }),
];

export function Decisions() {
  const { data, error } = useLive("/api/v1/operations/stats");
  const pending = data?.pending ?? [];
  const oldest = pending.map((one) => one.oldestAt).filter((at) => at !== null);
  return (
    <>
      <Failure error={error} />
      <Figures>
        <Figure
          label="Operations that wait"
          value={count(pending.reduce((sum, one) => sum + one.operations, 0))}
          hint={`${count(pending.reduce((sum, one) => sum + one.messages, 0))} messages`}
          to="/load"
          search={{ tab: "operations" }}
        />
        <Figure label="Their size" value={bytes(pending.reduce((sum, one) => sum + one.bytes, 0))} />
        <Figure label="The oldest" value={oldest.length === 0 ? "–" : ago(oldest.sort()[0])} />
        <Figure
          label="Applied"
          value={rate(data?.appliedPerSecond)}
          unit="/s"
          hint={`${count(data?.applied)} in all`}
        />
        <Figure label="Failed" value={count(data?.failed)} tone={(data?.failed ?? 0) > 0 ? "dead" : undefined} />
      </Figures>
      <Panel title={`Decisions of ${data?.workerId ?? "this process"}`} flush>
        {data !== undefined && (
          <DataTable rows={data.load} columns={COLUMNS} rowId={(row) => row.kind} label="Load by kind of request" />
        )}
      </Panel>
    </>
  );
}
