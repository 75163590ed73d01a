/** Who did what: administrative acts, the newest first. */
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { FilterText } from "../../design/FilterText";
import { Ago, Badge, Empty, Failure, Filters, Loading, Panel, type Tone } from "../../design/parts";
import { useMore } from "../../design/useMore";
import { routes } from "../../router";

type AuditRow = Schemas["AuditRow"];

const PAGE = 100;
const OUTCOMES: Record<AuditRow["outcome"], { words: string; tone: Tone }> = {
  done: { words: "Done", tone: "healthy" },
  failed: { words: "Failed", tone: "lagging" },
  denied: { words: "Denied", tone: "dead" },
};
const column = createColumnHelper<AuditRow>();
const COLUMNS = [
  column.accessor("at", { header: "When", cell: (one) => <Ago at={one.getValue()} />, enableSorting: false }),
  column.accessor("who", {
    header: "Who",
    cell: (one) => one.getValue() || <span className="ls-soft">anybody</span>,
    enableSorting: false,
  }),
  column.accessor("act", {
    header: "Act",
    cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
    enableSorting: false,
  }),
  column.accessor((row) => row.queues.join(", ") || "–", { id: "queues", header: "Queues", enableSorting: false }),
  column.accessor("outcome", {
    header: "Outcome",
    cell: (one) => <Badge tone={OUTCOMES[one.getValue()].tone}>{OUTCOMES[one.getValue()].words}</Badge>,
    enableSorting: false,
  }),
  column.accessor("detail", {
    header: "Detail",
    cell: (one) => (
      <span className="ls-mono" title={one.getValue() ?? undefined}>
        {one.getValue() ?? "–"}
      </span>
    ),
    enableSorting: false,
    meta: { wide: true },
  }),
];

export function Audit() {
  const { who, act, queue } = routes.system.useSearch();
  const navigate = routes.system.useNavigate();
  const narrow = (change: { who?: string; act?: string; queue?: string }): void =>
    void navigate({ search: (before) => ({ ...before, ...change }), replace: true });
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/audit",
    asked: (before) => ({ query: { who, act, queue, before, limit: PAGE } }),
    rowsOf: (page) => page.entries,
    nextOf: (page) => page.nextBefore,
  });
  return (
    <>
      <Filters>
        <FilterText label="Who" value={who} onType={(typed) => narrow({ who: typed })} w={200} />
        <FilterText label="Act" placeholder="seek" value={act} onType={(typed) => narrow({ act: typed })} w={180} />
        <FilterText label="Queue" value={queue} onType={(typed) => narrow({ queue: typed })} w={220} />
      </Filters>
      <Panel flush>
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={8} />}
        {rows !== undefined && (
          <DataTable
            rows={rows}
            columns={COLUMNS}
            rowId={(entry) => entry.id}
            label="Audit log"
            height={640}
            onEnd={onEnd}
            empty={
              <Empty title={(who ?? act ?? queue) ? "No entry matches" : "Nothing was done yet"}>
                <p>Seeks, deletions, changes of options and the like are listed here, with who did them.</p>
              </Empty>
            }
          />
        )}
      </Panel>
    </>
  );
}
