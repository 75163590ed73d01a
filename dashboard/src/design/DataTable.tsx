/** A table that draws only the rows in sight, so that its length costs nothing. */
import {
  createColumnHelper,
  flexRender,
  getCoreRowModel,
  getSortedRowModel,
  useReactTable,
  type ColumnDef,
  type Row,
  type SortingState,
} from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp } from "lucide-react";
import { useEffect, useRef, type ReactNode } from "react";
import css from "./table.module.css";

export { createColumnHelper };

declare module "@tanstack/react-table" {
  // The parameters are those of the declaration that this adds to.
  // eslint-disable-next-line @typescript-eslint/no-unused-vars
  interface ColumnMeta<TData, TValue> {
    /** Numbers stand on the right. */
    right?: boolean;
    /** Left out where there is little room. */
    wide?: boolean;
    width?: string;
  }
}

interface DataTableProps<T> {
  rows: T[];
  // Columns of one table have values of many types.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  columns: ColumnDef<T, any>[];
  rowId: (row: T) => string;
  label: string;
  /** In whose order the rows come: the server's if `onSort` is given, else the table sorts them itself. */
  sort?: SortingState;
  onSort?: (sort: SortingState) => void;
  /** Called when the last row comes into sight. */
  onEnd?: () => void;
  onOpen?: (row: T) => void;
  chosen?: string;
  height?: number;
  empty?: ReactNode;
}

const ROW = 40;

export function DataTable<T>(props: DataTableProps<T>) {
  const { rows, columns, rowId, label, sort, onSort, onEnd, onOpen, chosen, height = 560, empty } = props;
  const scroll = useRef<HTMLDivElement>(null);
  // The compiler of React is not used here, which is what the rule is about.
  const table = useReactTable({
    data: rows,
    columns,
    getRowId: rowId,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
    manualSorting: onSort !== undefined,
    enableSortingRemoval: false,
    ...(onSort !== undefined && {
      state: { sorting: sort ?? [] },
      onSortingChange: (update) => onSort(typeof update === "function" ? update(sort ?? []) : update),
    }),
  });
  const shown = table.getRowModel().rows;
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW,
    overscan: 12,
    initialRect: { width: 0, height },
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (shown.length > 0 && last >= shown.length - 1) onEnd?.();
  }, [last, shown.length, onEnd]);
  if (rows.length === 0) return empty ?? null;
  const above = items[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  return (
    <div
      ref={scroll}
      className={css.scroll}
      style={{ maxHeight: height }}
      tabIndex={0}
      role="region"
      aria-label={label}
    >
      <table className={css.table} aria-rowcount={shown.length + 1} aria-label={label}>
        <thead>
          {table.getHeaderGroups().map((group) => (
            <tr key={group.id}>
              {group.headers.map((header) => {
                const meta = header.column.columnDef.meta;
                const sorted = header.column.getIsSorted();
                const name = flexRender(header.column.columnDef.header, header.getContext());
                return (
                  <th
                    key={header.id}
                    scope="col"
                    className={cell(meta?.right, meta?.wide)}
                    style={{ width: meta?.width }}
                    aria-sort={sorted === "asc" ? "ascending" : sorted === "desc" ? "descending" : undefined}
                  >
                    {header.column.getCanSort() ? (
                      <button type="button" className={css.sort} onClick={header.column.getToggleSortingHandler()}>
                        {name}
                        {sorted === "asc" && <ArrowUp size={12} aria-hidden />}
                        {sorted === "desc" && <ArrowDown size={12} aria-hidden />}
                      </button>
                    ) : (
                      name
                    )}
                  </th>
                );
              })}
            </tr>
          ))}
        </thead>
        <tbody>
          {above > 0 && <Spacer height={above} columns={columns.length} />}
          {items.map((item) => {
            const row = shown[item.index];
            if (row === undefined) return null;
            return <Line key={row.id} row={row} index={item.index} chosen={row.id === chosen} onOpen={onOpen} />;
          })}
          {below > 0 && <Spacer height={below} columns={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

interface LineProps<T> {
  row: Row<T>;
  index: number;
  chosen: boolean;
  onOpen: ((row: T) => void) | undefined;
}

/** The row answers to the mouse as a whole; the link or button in it answers to the keyboard. */
function Line<T>({ row, index, chosen, onOpen }: LineProps<T>) {
  const open = (event: React.MouseEvent): void => {
    if ((event.target as HTMLElement).closest("a, button, input, label") === null) onOpen?.(row.original);
  };
  return (
    <tr
      aria-rowindex={index + 2}
      className={`${chosen ? (css.chosen ?? "") : ""} ${onOpen ? (css.open ?? "") : ""}`}
      onClick={onOpen && open}
    >
      {row.getVisibleCells().map((one) => {
        const meta = one.column.columnDef.meta;
        return (
          <td key={one.id} className={cell(meta?.right, meta?.wide)}>
            {flexRender(one.column.columnDef.cell, one.getContext())}
          </td>
        );
      })}
    </tr>
  );
}

function cell(right: boolean | undefined, wide: boolean | undefined): string {
  return `${right === true ? (css.right ?? "") : ""} ${wide === true ? (css.wide ?? "") : ""}`;
}

function Spacer({ height, columns }: { height: number; columns: number }) {
  return (
    <tr aria-hidden="true">
      <td colSpan={columns} style={{ height, padding: 0, border: 0 }} />
    </tr>
  );
}
