import { Checkbox } from "@mantine/core";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { Ago } from "../../design/parts";
import { groupName } from "../groups/words";
import type { DeadLetter } from "./DeadLetters";

const column = createColumnHelper<DeadLetter>();

interface DeadLetterTableProps {
  rows: DeadLetter[];
  chosen: ReadonlySet<string>;
  onChoose: (chosen: ReadonlySet<string>) => void;
  onEnd: (() => void) | undefined;
  onOpen: (letter: DeadLetter) => void;
}

export function DeadLetterTable({ rows, chosen, onChoose, onEnd, onOpen }: DeadLetterTableProps) {
  const all = rows.every((letter) => chosen.has(letter.id));
  const columns = [
    column.display({
      id: "chosen",
      header: () => (
        <Checkbox
          size="xs"
          aria-label="Select all that are listed"
          checked={all}
          indeterminate={chosen.size > 0 && !all}
          onChange={() => onChoose(all ? new Set() : new Set(rows.map((letter) => letter.id)))}
        />
      ),
      cell: ({ row: { original: letter } }) => (
        <Checkbox
          size="xs"
          aria-label={`Select the dead letter of ${letter.partition}`}
          checked={chosen.has(letter.id)}
          onChange={() => onChoose(toggled(chosen, letter.id))}
        />
      ),
      meta: { width: "36px" },
    }),
    column.accessor("failedAt", { header: "Failed", cell: (one) => <Ago at={one.getValue()} />, enableSorting: false }),
    column.accessor("queue", { header: "Queue", enableSorting: false, meta: { wide: true } }),
    column.accessor("partition", {
      header: "Partition",
      cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
      enableSorting: false,
      meta: { wide: true },
    }),
    column.accessor("consumerGroup", {
      header: "Group",
      cell: (one) => groupName(one.getValue()),
      enableSorting: false,
      meta: { wide: true },
    }),
    column.accessor("errorMessage", {
      header: "Error",
      cell: ({ row: { original: letter } }) => (
        <button type="button" className="ls-link" onClick={() => onOpen(letter)}>
          {letter.errorMessage ?? "no error was given"}
        </button>
      ),
      enableSorting: false,
    }),
    column.accessor("retryCount", {
      header: "Failures",
      enableSorting: false,
      meta: { right: true, wide: true },
    }),
  ];
  return (
    <DataTable
      rows={rows}
      columns={columns}
      rowId={(letter) => letter.id}
      label="Dead letters"
      height={620}
      onEnd={onEnd}
      onOpen={onOpen}
    />
  );
}

function toggled(chosen: ReadonlySet<string>, id: string): ReadonlySet<string> {
  const changed = new Set(chosen);
  if (!changed.delete(id)) changed.add(id);
  return changed;
}
