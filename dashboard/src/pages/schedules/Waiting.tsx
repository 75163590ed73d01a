import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import type { Right } from "../../api/rights";
import { Confirm } from "../../design/Confirm";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { FilterText } from "../../design/FilterText";
import { moment } from "../../design/format";
import { Payload } from "../../design/JsonTree";
import { Ago, Empty, Failure, Filters, Loading, Panel } from "../../design/parts";
import { RowActs } from "../../design/RowActs";
import { useMore } from "../../design/useMore";
import { useMayOn } from "../../live/useWho";
import { routes } from "../../router";
import { Reschedule } from "./Reschedule";

export type ScheduleRow = Schemas["ScheduleRow"];
type Open = { what: "cancel" | "now" | "move"; row: ScheduleRow } | null;

const PAGE = 100;
const column = createColumnHelper<ScheduleRow>();

export function Waiting() {
  const { queue, key } = routes.schedules.useSearch();
  const navigate = routes.schedules.useNavigate();
  const [open, setOpen] = useState<Open>(null);
  const may = useMayOn();
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/schedules",
    asked: (cursor) => ({ query: { queue, keyPrefix: key, cursor, limit: PAGE } }),
    rowsOf: (page) => page.schedules,
    nextOf: (page) => page.nextCursor,
  });
  const close = (): void => setOpen(null);
  return (
    <>
      <Filters>
        <FilterText
          label="Queue"
          value={queue}
          onType={(typed) => void navigate({ search: (before) => ({ ...before, queue: typed }), replace: true })}
          w={220}
        />
        <FilterText
          label="Key"
          placeholder="How it begins"
          value={key}
          onType={(typed) => void navigate({ search: (before) => ({ ...before, key: typed }), replace: true })}
          w={200}
        />
      </Filters>
      <Panel flush>
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={6} />}
        {rows !== undefined && (
          <DataTable
            rows={rows}
            columns={columns(setOpen, may)}
            rowId={(row) => row.id}
            label="Scheduled messages"
            height={620}
            onEnd={onEnd}
            empty={
              <Empty title="No message waits for its time">
                <p>Push one with a delay or a time, and it is listed here until it is due.</p>
              </Empty>
            }
          />
        )}
      </Panel>
      {open?.what === "move" && <Reschedule row={open.row} onClose={close} />}
      {open?.what === "now" && <PushNow row={open.row} onClose={close} />}
      {open?.what === "cancel" && <Cancel row={open.row} onClose={close} />}
    </>
  );
}

function columns(onOpen: (open: Open) => void, may: (right: Right, queue: string) => boolean) {
  return [
    column.accessor("dueAt", {
      header: "Due",
      cell: (one) => <Ago at={one.getValue()} />,
      enableSorting: false,
    }),
    column.accessor("dueAt", {
      id: "at",
      header: "At",
      cell: (one) => <span className="ls-number">{moment(one.getValue()).slice(0, 19)}</span>,
      enableSorting: false,
      meta: { wide: true },
    }),
    column.accessor("queue", { header: "Queue", enableSorting: false }),
    column.accessor("partition", {
      header: "Partition",
      cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
      enableSorting: false,
      meta: { wide: true },
    }),
    column.accessor("key", { header: "Key", cell: (one) => one.getValue() ?? "–", enableSorting: false }),
    column.display({
      id: "acts",
      header: "",
      cell: ({ row: { original: row } }) => (
        <RowActs
          label={`Acts on the message due ${moment(row.dueAt)}`}
          acts={
            may("push", row.queue)
              ? [
                  { name: "Push now", act: () => onOpen({ what: "now", row }) },
                  { name: "Reschedule", act: () => onOpen({ what: "move", row }) },
                  { name: "Cancel", act: () => onOpen({ what: "cancel", row }) },
                ]
              : []
          }
        />
      ),
      meta: { right: true },
    }),
  ];
}

interface ActProps {
  row: ScheduleRow;
  onClose: () => void;
}

function PushNow({ row, onClose }: ActProps) {
  async function act(): Promise<string> {
    await send("patch", "/api/v1/schedules/{id}", { params: { id: row.id }, body: { delaySeconds: 0 } });
    return `The message goes to ${row.queue} now.`;
  }
  return (
    <Confirm title="Push it now" verb="Push it" act={act} onClose={onClose}>
      <p>
        The message goes to partition <strong>{row.partition}</strong> of <strong>{row.queue}</strong> at once.
      </p>
      <Payload value={row.data} label="Payload" />
    </Confirm>
  );
}

function Cancel({ row, onClose }: ActProps) {
  async function act(): Promise<string> {
    await send("delete", "/api/v1/schedules/{id}", { params: { id: row.id } });
    return "The message is cancelled.";
  }
  return (
    <Confirm title="Cancel the message" verb="Cancel it" act={act} onClose={onClose}>
      <p>
        <strong>1 message</strong> for <strong>{row.queue}</strong>, due {moment(row.dueAt)}, will not be pushed. This
        cannot be undone.
      </p>
      <Payload value={row.data} label="Payload" />
    </Confirm>
  );
}
