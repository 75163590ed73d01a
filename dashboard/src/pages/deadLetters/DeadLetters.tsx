import { Button, SegmentedControl } from "@mantine/core";
import { useMemo, useState } from "react";
import type { Schemas } from "../../api/client";
import { FilterText } from "../../design/FilterText";
import { several } from "../../design/format";
import { Empty, Failure, Filters, Loading, Page, Panel } from "../../design/parts";
import { useMore } from "../../design/useMore";
import { useLive } from "../../live/useLive";
import { useMaySomewhere } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";
import { DeadLetterTable } from "./DeadLetterTable";
import { byError, ErrorTable } from "./ErrorTable";
import { Letter } from "./Letter";
import { Purge, Redrive } from "./Many";
import { Trend } from "./Trend";

export type DeadLetter = Schemas["DeadLetterRow"];
export interface Filter {
  queue?: string;
  consumerGroup?: string;
}

const PAGE = 100;
const GROUPED_MAX = 500;

export function DeadLetters() {
  const search = routes.deadLetters.useSearch();
  const navigate = routes.deadLetters.useNavigate();
  const narrow = (change: Partial<typeof search>): void =>
    void navigate({ search: (before) => ({ ...before, ...change }), replace: true });
  const filter: Filter = { queue: search.queue, consumerGroup: search.group };
  const by = one(search.by, ["letter", "error"] as const, "letter");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [open, setOpen] = useState<"redrive" | "purge" | null>(null);
  const { data: first } = useLive("/api/v1/dlq", { query: { ...filter, limit: 1 } });
  const total = first?.total ?? 0;
  const mayRedrive = useMaySomewhere("push");
  const mayPurge = useMaySomewhere("configure");
  const what = chosen.size > 0 ? "the selected" : "all";
  return (
    <Page
      title="Dead letters"
      note={first && several(total, "dead letter")}
      actions={
        total > 0 && (
          <>
            {mayRedrive && <Button onClick={() => setOpen("redrive")}>Redrive {what}…</Button>}
            {mayPurge && (
              <Button variant="light" color="red" onClick={() => setOpen("purge")}>
                Purge {what}…
              </Button>
            )}
          </>
        )
      }
    >
      <Filters>
        <FilterText label="Queue" value={search.queue} onType={(queue) => narrow({ queue })} w={220} />
        <FilterText label="Group" value={search.group} onType={(group) => narrow({ group })} w={200} />
        <SegmentedControl
          aria-label="How they are listed"
          value={by}
          onChange={(value) => narrow({ by: value })}
          data={[
            { value: "letter", label: "Each" },
            { value: "error", label: "By error" },
          ]}
        />
      </Filters>
      <Trend queue={search.queue} />
      <Letters filter={filter} by={by} chosen={chosen} onChoose={setChosen} shown={search.id} narrow={narrow} />
      {open === "redrive" && (
        <Redrive
          filter={filter}
          ids={[...chosen]}
          total={total}
          onClose={() => (setOpen(null), setChosen(new Set()))}
        />
      )}
      {open === "purge" && (
        <Purge filter={filter} ids={[...chosen]} total={total} onClose={() => (setOpen(null), setChosen(new Set()))} />
      )}
    </Page>
  );
}

interface LettersProps {
  filter: Filter;
  by: "letter" | "error";
  chosen: ReadonlySet<string>;
  onChoose: (chosen: ReadonlySet<string>) => void;
  /** The one that is open. */
  shown: string | undefined;
  narrow: (change: { id?: string }) => void;
}

function Letters({ filter, by, chosen, onChoose, shown, narrow }: LettersProps) {
  const limit = by === "error" ? GROUPED_MAX : PAGE;
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/dlq",
    asked: (offset) => ({ query: { ...filter, limit, offset: Number(offset ?? 0) } }),
    rowsOf: (page) => page.messages,
    nextOf: ({ messages, pagination }) => (messages.length < limit ? undefined : String(pagination.offset + limit)),
  });
  const errors = useMemo(() => byError(rows ?? []), [rows]);
  return (
    <>
      <Panel flush title={by === "error" ? `The newest ${rows?.length ?? 0} by error` : undefined}>
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={6} />}
        {rows?.length === 0 && (
          <Empty title="No dead letters">
            <p>A message that keeps failing becomes one, with its error. Here one finds it, and sends it again.</p>
          </Empty>
        )}
        {rows !== undefined && rows.length > 0 && by === "error" && <ErrorTable rows={errors} onChoose={onChoose} />}
        {rows !== undefined && rows.length > 0 && by === "letter" && (
          <DeadLetterTable
            rows={rows}
            chosen={chosen}
            onChoose={onChoose}
            onEnd={onEnd}
            onOpen={(letter) => narrow({ id: letter.id })}
          />
        )}
      </Panel>
      {shown !== undefined && <Letter id={shown} onClose={() => narrow({ id: undefined })} />}
    </>
  );
}
