import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { exact } from "../../design/format";
import { Ago } from "../../design/parts";
import { router } from "../../router";
import { StatusBadge } from "./words";

export type MessageRow = Schemas["MessageRow"];

const column = createColumnHelper<MessageRow>();
const COLUMNS = [
  column.accessor("createdAt", { header: "Stored", cell: (one) => <Ago at={one.getValue()} />, enableSorting: false }),
  column.accessor("queue", {
    header: "Queue",
    cell: (one) => (
      <Link to="/queues/$queue" params={{ queue: one.getValue() }}>
        {one.getValue()}
      </Link>
    ),
    enableSorting: false,
  }),
  column.accessor("partition", {
    header: "Partition",
    cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
    enableSorting: false,
    meta: { wide: true },
  }),
  column.accessor("seq", {
    header: "Seq",
    cell: (one) => exact(one.getValue()),
    meta: { right: true },
    enableSorting: false,
  }),
  column.accessor("status", {
    header: "State",
    cell: (one) => <StatusBadge status={one.getValue()} />,
    enableSorting: false,
  }),
  column.display({
    id: "groups",
    header: "Done by",
    cell: ({ row: { original: message } }) => `${message.busStatus.consumedBy} of ${message.busStatus.totalGroups}`,
    meta: { wide: true, right: true },
  }),
  column.accessor("transactionId", {
    header: "Transaction id",
    cell: ({ row: { original: message } }) => (
      <Link to="/messages/$partitionId/$transactionId" params={message} className="ls-mono">
        {message.transactionId}
      </Link>
    ),
    enableSorting: false,
  }),
];

interface MessageTableProps {
  rows: MessageRow[];
  label: string;
  onEnd?: () => void;
  height?: number;
  empty: ReactNode;
}

export function MessageTable(props: MessageTableProps) {
  return (
    <DataTable
      {...props}
      columns={COLUMNS}
      rowId={(message) => message.id}
      onOpen={(message) => void router.navigate({ to: "/messages/$partitionId/$transactionId", params: message })}
    />
  );
}
