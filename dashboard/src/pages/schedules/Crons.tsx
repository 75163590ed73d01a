import { Button, Switch } from "@mantine/core";
import { Plus } from "lucide-react";
import { useState } from "react";
import { request, send, type Schemas } from "../../api/client";
import type { Right } from "../../api/rights";
import { Confirm } from "../../design/Confirm";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { Ago, Empty, Failure, Loading, Panel } from "../../design/parts";
import { RowActs } from "../../design/RowActs";
import { useAct } from "../../design/useAct";
import { useLive } from "../../live/useLive";
import { useMay, useMayOn, useMaySomewhere } from "../../live/useWho";
import { CronForm } from "./CronForm";

export type CronRow = Schemas["CronRow"];
type Open = { what: "edit" | "run" | "remove"; cron: CronRow } | { what: "new" } | null;

const LISTED_MAX = 500;
const column = createColumnHelper<CronRow>();

export function Crons() {
  const [open, setOpen] = useState<Open>(null);
  const may = useMayOn();
  const mayMake = useMaySomewhere("push");
  const { data, error } = useLive("/api/v1/crons", { query: { limit: LISTED_MAX } });
  const close = (): void => setOpen(null);
  return (
    <Panel
      title="Recurring messages"
      flush
      actions={
        mayMake && (
          <Button size="xs" leftSection={<Plus size={14} />} onClick={() => setOpen({ what: "new" })}>
            New
          </Button>
        )
      }
    >
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={4} />}
      {data !== undefined && (
        <DataTable
          rows={data.crons}
          columns={columns(setOpen, may)}
          rowId={(cron) => cron.name}
          label="Recurring messages"
          empty={
            <Empty title="Nothing recurs">
              <p>A recurring message is pushed by a cron expression, in a time zone of your choice.</p>
            </Empty>
          }
        />
      )}
      {open?.what === "new" && <CronForm onClose={close} />}
      {open?.what === "edit" && <CronForm cron={open.cron} onClose={close} />}
      {open?.what === "run" && <RunNow cron={open.cron} onClose={close} />}
      {open?.what === "remove" && <RemoveCron cron={open.cron} onClose={close} />}
    </Panel>
  );
}

function columns(onOpen: (open: Open) => void, may: (right: Right, queue: string) => boolean) {
  return [
    column.accessor("name", { header: "Name", cell: (one) => <strong>{one.getValue()}</strong> }),
    column.accessor("expression", {
      header: "Expression",
      cell: ({ row: { original: cron } }) => (
        <>
          <span className="ls-mono">{cron.expression}</span> <span className="ls-soft">{cron.timezone}</span>
        </>
      ),
    }),
    column.accessor("queue", { header: "Queue", meta: { wide: true } }),
    column.accessor("nextAt", { header: "Next", cell: (one) => <Ago at={one.getValue()} /> }),
    column.accessor("lastAt", { header: "Last", cell: (one) => <Ago at={one.getValue()} />, meta: { wide: true } }),
    column.accessor("enabled", { header: "On", cell: ({ row }) => <Enabled cron={row.original} /> }),
    column.display({
      id: "acts",
      header: "",
      cell: ({ row: { original: cron } }) => (
        <RowActs
          label={`Acts on ${cron.name}`}
          acts={
            may("push", cron.queue)
              ? [
                  { name: "Run now", act: () => onOpen({ what: "run", cron }) },
                  { name: "Edit", act: () => onOpen({ what: "edit", cron }) },
                  { name: "Remove", act: () => onOpen({ what: "remove", cron }) },
                ]
              : []
          }
        />
      ),
      meta: { right: true },
    }),
  ];
}

/** A recurring message as one sends it, from one that was listed. */
export function bodyOf(cron: CronRow): Schemas["CronBody"] {
  const { name, queue, partition, expression, timezone, catchUp, kind, reference, headers, encoding } = cron;
  const shared = { name, queue, partition, expression, timezone, catchUp, kind, reference, headers };
  // A payload that is not JSON is listed in base64.
  return encoding === null
    ? { ...shared, payload: cron.data, enabled: cron.enabled }
    : { ...shared, payloadBase64: cron.data as string, enabled: cron.enabled };
}

function Enabled({ cron }: { cron: CronRow }) {
  const { run, busy } = useAct();
  const may = useMay(cron.queue);
  async function act(enabled: boolean): Promise<string> {
    await send("post", "/api/v1/crons", { body: { ...bodyOf(cron), enabled } });
    return `${cron.name} is ${enabled ? "on" : "off"}.`;
  }
  return (
    <Switch
      size="xs"
      aria-label={`Whether ${cron.name} is on`}
      checked={cron.enabled}
      disabled={busy || !may("push")}
      onChange={(event) => {
        const enabled = event.currentTarget.checked;
        run(() => act(enabled));
      }}
    />
  );
}

interface CronActProps {
  cron: CronRow;
  onClose: () => void;
}

function RunNow({ cron, onClose }: CronActProps) {
  async function act(): Promise<string> {
    const { queue, partition, kind, reference, headers, data } = cron;
    const given = Object.entries({ kind, reference, headers }).filter(([, value]) => value !== null);
    const item = { queue, partition, payload: data, ...Object.fromEntries(given) };
    await request("POST", "/api/v1/push", { items: [item] });
    return `${cron.name} was pushed to ${queue}.`;
  }
  return (
    <Confirm title="Run it now" verb="Push it" act={act} onClose={onClose}>
      One message of <strong>{cron.name}</strong> goes to <strong>{cron.queue}</strong> at once. The next one comes at
      its time all the same.
    </Confirm>
  );
}

function RemoveCron({ cron, onClose }: CronActProps) {
  async function act(): Promise<string> {
    await send("delete", "/api/v1/crons/{name}", { params: { name: cron.name } });
    return `${cron.name} is removed.`;
  }
  return (
    <Confirm title="Remove the recurring message" name={cron.name} verb="Remove it" act={act} onClose={onClose}>
      <strong>{cron.name}</strong> will not be pushed any more. What it has pushed stays.
    </Confirm>
  );
}
