import { Select, Switch } from "@mantine/core";
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Answer, Query } from "../../api/client";
import { FilterText } from "../../design/FilterText";
import { Empty, Failure, Filters, Loading, Page, Panel } from "../../design/parts";
import { useMore } from "../../design/useMore";
import { useLive } from "../../live/useLive";
import { routes } from "../../router";
import { one } from "../../search";
import { MessageTable } from "./MessageTable";
import { STATUSES, type Status } from "./words";

const PAGE = 100;
const SPANS = [
  { value: "1h", label: "Last hour", seconds: 3_600 },
  { value: "24h", label: "Last day", seconds: 86_400 },
  { value: "7d", label: "Last 7 days", seconds: 604_800 },
  { value: "all", label: "All that is stored", seconds: 0 },
] as const;
type Span = (typeof SPANS)[number]["value"];
type MessagesQuery = Query<"/api/v1/messages">;

export function Messages() {
  const search = routes.messages.useSearch();
  const navigate = routes.messages.useNavigate();
  const span = one<Span>(search.span, ["1h", "24h", "7d", "all"], "24h");
  const narrow = (change: Partial<typeof search>): void =>
    void navigate({ search: (before) => ({ ...before, ...change }), replace: true });
  const live = search.live === "true";
  const named = search.queue !== undefined && search.partition !== undefined;
  const seq = named && /^[1-9]\d{0,15}$/.test(search.seq ?? "") ? Number(search.seq) : undefined;
  const filter: MessagesQuery = {
    queue: search.queue,
    partition: search.queue === undefined ? undefined : search.partition,
    status: STATUSES.find((status) => status.value === search.status)?.value,
    id: search.id,
    ...(seq === undefined ? { newestFirst: true } : { seq }),
    limit: PAGE,
  };
  return (
    <Page title="Messages" note={seq === undefined ? "The newest come first." : `From message ${seq} on.`}>
      <Filters>
        <FilterText label="Queue" value={search.queue} onType={(queue) => narrow({ queue })} w={180} />
        <FilterText
          label="Partition"
          value={search.partition}
          onType={(partition) => narrow({ partition })}
          disabled={search.queue === undefined}
          placeholder={search.queue === undefined ? "Needs a queue" : "Its whole name"}
          w={165}
        />
        <FilterText
          label="From seq"
          value={search.seq}
          onType={(from) => narrow({ seq: from })}
          disabled={!named}
          placeholder={named ? "1" : "–"}
          w={95}
        />
        <FilterText
          label="Message or transaction id"
          value={search.id}
          onType={(id) => narrow({ id })}
          placeholder="Its whole id"
          w={215}
        />
        <Select
          label="State"
          size="sm"
          w={125}
          clearable
          placeholder="Any"
          data={STATUSES}
          value={filter.status ?? null}
          onChange={(status: Status | null) => narrow({ status: status ?? undefined })}
        />
        <Select
          label="Stored"
          size="sm"
          w={150}
          allowDeselect={false}
          data={SPANS.map(({ value, label }) => ({ value, label }))}
          value={span}
          onChange={(value) => narrow({ span: value ?? undefined })}
        />
        <Switch
          label="Live tail"
          checked={live}
          onChange={(event) => narrow({ live: event.currentTarget.checked ? "true" : undefined })}
          mb={8}
          data-inline
        />
      </Filters>
      {live ? <Tail filter={filter} /> : <Stored filter={filter} span={span} />}
    </Page>
  );
}

const rowsOf = (page: Answer<"/api/v1/messages">) => page.messages;

/** What is stored, page by page as one scrolls. */
function Stored({ filter, span }: { filter: MessagesQuery; span: Span }) {
  const seconds = SPANS.find(({ value }) => value === span)?.seconds ?? 0;
  // The beginning stays while the list is shown: what is asked for must not change with every second.
  const from = useMemo(
    () => (seconds === 0 ? "1970-01-01T00:00:00Z" : new Date(Date.now() - seconds * 1000).toISOString()),
    [seconds],
  );
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/messages",
    asked: (cursor) => ({ query: { from, ...filter, cursor } }),
    rowsOf,
    nextOf: (page) => page.cursor,
  });
  return (
    <Panel flush>
      <Failure error={error} />
      {rows === undefined && error === null && <Loading rows={8} />}
      {rows !== undefined && (
        <MessageTable rows={rows} label="Messages" height={680} onEnd={onEnd} empty={<Nothing filter={filter} />} />
      )}
    </Panel>
  );
}

function Tail({ filter }: { filter: MessagesQuery }) {
  const { data, error } = useLive("/api/v1/messages", { query: filter });
  return (
    <Panel title={`The newest ${PAGE}, as they come`} flush>
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={8} />}
      {data !== undefined && (
        <MessageTable rows={data.messages} label="Newest messages" height={680} empty={<Nothing filter={filter} />} />
      )}
    </Panel>
  );
}

function Nothing({ filter }: { filter: MessagesQuery }) {
  const filtered = filter.queue !== undefined || filter.status !== undefined || filter.id !== undefined;
  return (
    <Empty title={filtered ? "No message matches" : "No messages"}>
      <p>
        {filtered
          ? "Take a filter away, or look further back. A queue, a partition and an id are matched as a whole."
          : "Nothing was pushed in this time. Look further back, or push a test message from the page of a queue."}
      </p>
      {filter.id && (
        <p>
          <Link to="/traces" search={{ trace: filter.id }}>
            Look for a trace with this id
          </Link>
        </p>
      )}
    </Empty>
  );
}
