import { Button, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { Plus, Search } from "lucide-react";
import { useState } from "react";
import { several } from "../../design/format";
import { Empty, Failure, Filters, Loading, Page, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";
import { NoQueues } from "../overview/Busiest";
import { NewQueue } from "./NewQueue";
import { QueueTable } from "./QueueTable";

const ORDERS = ["name", "pending", "lag", "processing", "deadLetters", "messages", "partitions", "created"] as const;
const PAGE = 60;
const SHOWN_MAX = 1000;

export function Queues() {
  const { search, sort } = routes.queues.useSearch();
  const navigate = routes.queues.useNavigate();
  const [limit, setLimit] = useState(PAGE);
  const [making, setMaking] = useState(false);
  const mayMake = useMayEverywhere("manage");
  const order = one(sort, ORDERS, "name");
  const query = { search, sort: order, limit, recent: true };
  const { data, error } = useLive("/api/v1/status/queues", { query });
  const found = data?.pagination.total ?? 0;
  const type = useDebouncedCallback((value: string) => {
    void navigate({ search: (before) => ({ ...before, search: value || undefined }), replace: true });
  }, 200);
  return (
    <Page
      title="Queues"
      note={data && several(found, search === undefined ? "queue" : "matching queue")}
      actions={
        mayMake && (
          <Button leftSection={<Plus size={16} />} onClick={() => setMaking(true)}>
            New queue
          </Button>
        )
      }
    >
      <Filters>
        <TextInput
          key={search === undefined ? "empty" : "given"}
          defaultValue={search}
          onChange={(event) => type(event.currentTarget.value)}
          placeholder="Part of a name"
          aria-label="Search queues"
          leftSection={<Search size={15} />}
          w={300}
        />
      </Filters>
      <Failure error={error} />
      <Panel flush>
        {data === undefined ? (
          <Loading rows={8} />
        ) : (
          <QueueTable
            rows={data.queues}
            label="Queues"
            height={680}
            sort={[{ id: order, desc: order !== "name" }]}
            onSort={([first]) => void navigate({ search: (before) => ({ ...before, sort: first?.id }) })}
            onEnd={limit < Math.min(found, SHOWN_MAX) ? () => setLimit(limit + PAGE * 2) : undefined}
            empty={search === undefined ? <NoQueues /> : <NoMatch search={search} />}
          />
        )}
      </Panel>
      {making && <NewQueue onClose={() => setMaking(false)} />}
    </Page>
  );
}

function NoMatch({ search }: { search: string }) {
  return (
    <Empty title={`No queue has “${search}” in its name`}>
      <p>Any part of a name is found, in upper or lower case. Try less of it.</p>
    </Empty>
  );
}
