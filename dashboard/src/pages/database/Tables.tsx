import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { bytes, count } from "../../design/format";
import { Panel, Toned } from "../../design/parts";

type TableRow = Schemas["TableRow"];

const column = createColumnHelper<TableRow>();
const COLUMNS = [
  column.accessor("name", { header: "Table", cell: (one) => <span className="ls-mono">{one.getValue()}</span> }),
  column.accessor("bytes", {
    header: "Size",
    sortDescFirst: true,
    cell: (one) => bytes(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("rowsEstimate", {
    header: "Rows, about",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("deadRowsEstimate", {
    header: "Dead rows, about",
    sortDescFirst: true,
    cell: ({ row: { original: table } }) => (
      <Toned tone={isBloated(table) ? "lagging" : undefined}>{count(table.deadRowsEstimate)}</Toned>
    ),
    meta: { right: true },
  }),
];

function isBloated(table: TableRow): boolean {
  return table.deadRowsEstimate > 10_000 && table.deadRowsEstimate > table.rowsEstimate;
}

export function Tables({ tables }: { tables: TableRow[] }) {
  return (
    <Panel title="Tables" flush>
      <DataTable rows={tables} columns={COLUMNS} rowId={(table) => table.name} label="Tables" height={480} />
    </Panel>
  );
}
