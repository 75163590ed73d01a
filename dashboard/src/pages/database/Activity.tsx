/** What holds the database back: long transactions and replication slots, with their owners, and how much is written. */
import { useEffect, useRef, useState } from "react";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { bytes, duration } from "../../design/format";
import css from "../../design/design.module.css";
import { Badge, Failure, Panel, Toned } from "../../design/parts";

type HolderRow = Schemas["HorizonRow"];

const LONG_SECONDS = 300;
const column = createColumnHelper<HolderRow>();
const COLUMNS = [
  column.accessor("kind", { header: "What", cell: (one) => one.getValue().replaceAll("_", " ") }),
  column.accessor("owner", { header: "Whose", cell: (one) => <span className="ls-mono">{one.getValue()}</span> }),
  column.accessor("state", { header: "State", cell: (one) => one.getValue() ?? "–" }),
  column.accessor("ageSeconds", {
    header: "For",
    cell: (one) => (
      <Toned tone={(one.getValue() ?? 0) > LONG_SECONDS ? "dead" : undefined}>{duration(one.getValue())}</Toned>
    ),
    meta: { right: true },
  }),
  column.accessor("keptBytes", {
    header: "Keeps",
    cell: (one) => (one.getValue() === null ? "–" : bytes(one.getValue())),
    meta: { right: true, wide: true },
  }),
];

interface ActivityProps {
  activity: Schemas["DatabaseActivityAnswer"] | undefined;
  error: unknown;
}

export function Activity({ activity: data, error }: ActivityProps) {
  return (
    <Panel
      title="What holds cleaning up"
      flush
      beside={data?.horizon.length === 0 && <Badge tone="healthy">Nothing</Badge>}
    >
      <Failure error={error} />
      {data !== undefined && (
        <DataTable
          rows={data.horizon}
          columns={COLUMNS}
          rowId={(row) => `${row.kind} ${row.owner}`}
          label="Open transactions and slots"
          height={320}
          empty={
            <p className={css.said}>
              No open transaction and no replication slot keeps PostgreSQL from removing dead rows.
            </p>
          }
        />
      )}
    </Panel>
  );
}

/** Bytes of WAL per second, from how far it came between two looks. */
export function useWritten(position: number | null | undefined): number | null {
  const last = useRef<{ at: number; position: number } | null>(null);
  const [written, setWritten] = useState<number | null>(null);
  useEffect(() => {
    if (position === null || position === undefined) return;
    const now = Date.now();
    const before = last.current;
    if (before !== null && now - before.at > 500) {
      setWritten((Math.max(position - before.position, 0) * 1000) / (now - before.at));
    }
    last.current = { at: now, position };
  }, [position]);
  return written;
}
