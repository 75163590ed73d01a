/** Dead letters by what went wrong, so that a thousand of one kind are one line. */
import { Button } from "@mantine/core";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { exact } from "../../design/format";
import { Ago } from "../../design/parts";
import type { DeadLetter } from "./DeadLetters";
import { fingerprint } from "./fingerprint";

interface Kind {
  error: string;
  letters: DeadLetter[];
  queues: string[];
  newest: string;
}

export function byError(letters: DeadLetter[]): Kind[] {
  const found = new Map<string, DeadLetter[]>();
  for (const letter of letters) {
    const error = fingerprint(letter.errorMessage ?? "no error was given");
    found.set(error, [...(found.get(error) ?? []), letter]);
  }
  return [...found]
    .map(([error, members]) => ({
      error,
      letters: members,
      queues: [...new Set(members.map((letter) => letter.queue))],
      newest: members.map((letter) => letter.failedAt).reduce((one, other) => (one > other ? one : other)),
    }))
    .sort((one, other) => other.letters.length - one.letters.length);
}

const column = createColumnHelper<Kind>();

interface ErrorTableProps {
  rows: Kind[];
  onChoose: (chosen: ReadonlySet<string>) => void;
}

export function ErrorTable({ rows, onChoose }: ErrorTableProps) {
  const columns = [
    column.accessor("error", { header: "Error" }),
    column.accessor((kind) => kind.letters.length, {
      id: "count",
      header: "Dead letters",
      sortDescFirst: true,
      cell: (one) => exact(one.getValue()),
      meta: { right: true },
    }),
    column.accessor((kind) => kind.queues.join(", "), { id: "queues", header: "Queues", meta: { wide: true } }),
    column.accessor("newest", { header: "Newest", cell: (one) => <Ago at={one.getValue()} />, meta: { right: true } }),
    column.display({
      id: "choose",
      header: "",
      cell: ({ row }) => (
        <Button
          size="compact-xs"
          variant="default"
          onClick={() => onChoose(new Set(row.original.letters.map((letter) => letter.id)))}
        >
          Select
        </Button>
      ),
      meta: { right: true },
    }),
  ];
  return <DataTable rows={rows} columns={columns} rowId={(kind) => kind.error} label="Errors" />;
}
