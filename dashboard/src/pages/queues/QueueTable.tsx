import { Link } from "@tanstack/react-router";
import type { SortingState } from "@tanstack/react-table";
import type { ReactNode } from "react";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, duration, rate } from "../../design/format";
import css from "../../design/design.module.css";
import { Toned } from "../../design/parts";
import { Sparkline } from "../../design/Sparkline";
import { router } from "../../router";

export type QueueRow = Schemas["StatusQueueRow"];

const BEHIND_SECONDS = 300;
const column = createColumnHelper<QueueRow>();
const COLUMNS = [
  column.accessor("name", {
    header: "Queue",
    cell: ({ row: { original: queue } }) => (
      <Link to="/queues/$queue" params={{ queue: queue.name }}>
        <strong>{queue.name}</strong>
      </Link>
    ),
  }),
  column.display({
    id: "in",
    header: "In",
    cell: ({ row }) => <Flow values={row.original.recent?.ingestedPerSecond} name="In" colour="var(--ls-in)" />,
    meta: { wide: true, width: "180px" },
  }),
  column.display({
    id: "out",
    header: "Out",
    cell: ({ row }) => <Flow values={row.original.recent?.processedPerSecond} name="Out" colour="var(--ls-out)" />,
    meta: { wide: true, width: "180px" },
  }),
  column.accessor("messages.pending", {
    id: "pending",
    header: "Pending",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("lagSeconds", {
    id: "lag",
    header: "Oldest",
    sortDescFirst: true,
    cell: (one) => <Age seconds={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("messages.processing", {
    id: "processing",
    header: "In flight",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("messages.deadLetter", {
    id: "deadLetters",
    header: "Dead",
    sortDescFirst: true,
    cell: (one) => <Toned tone={(one.getValue() ?? 0) > 0 ? "dead" : undefined}>{count(one.getValue())}</Toned>,
    meta: { right: true },
  }),
  column.accessor("partitions", {
    id: "partitions",
    header: "Partitions",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("messages.total", {
    id: "messages",
    header: "Stored",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
];

export function Age({ seconds }: { seconds: number | null }) {
  return (
    <Toned tone={(seconds ?? 0) > BEHIND_SECONDS ? "lagging" : undefined}>
      {seconds === 0 ? "–" : duration(seconds)}
    </Toned>
  );
}

interface FlowProps {
  values: number[] | undefined;
  name: string;
  colour: string;
}

function Flow({ values = [], name, colour }: FlowProps) {
  return (
    <span className={css.flow}>
      <Sparkline values={values} label={`${name}, last 40 minutes`} colour={colour} width={96} />
      <span className="ls-number ls-soft">{rate(values.at(-1) ?? 0)}/s</span>
    </span>
  );
}

interface QueueTableProps {
  rows: QueueRow[];
  label: string;
  sort?: SortingState;
  onSort?: (sort: SortingState) => void;
  onEnd?: () => void;
  height?: number;
  empty?: ReactNode;
}

export function QueueTable(props: QueueTableProps) {
  return (
    <DataTable
      {...props}
      columns={COLUMNS}
      rowId={(queue) => queue.id}
      onOpen={(queue) => void router.navigate({ to: "/queues/$queue", params: { queue: queue.name } })}
    />
  );
}
