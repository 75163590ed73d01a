/** API keys: who may come in, and with which rights. */
import { Button, Group, Modal, Select, Stack, Textarea, TextInput } from "@mantine/core";
import { KeyRound, Plus } from "lucide-react";
import { useState } from "react";
import { send, type Schemas } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import css from "../../design/design.module.css";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { Ago, Badge, Copied, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useMore } from "../../design/useMore";
import { useNow } from "../../design/useNow";
import { useWho } from "../../live/useWho";

type KeyRow = Schemas["KeyRow"];

const PAGE = 100;
const column = createColumnHelper<KeyRow>();

export function Keys() {
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<KeyRow | null>(null);
  const { data: who } = useWho();
  const { rows, error, onEnd } = useMore({
    path: "/api/v1/keys",
    asked: (after) => ({ query: { after, limit: PAGE } }),
    rowsOf: (page) => page.keys,
    nextOf: (page) => page.nextAfter,
  });
  return (
    <>
      {who?.authRequired === false && (
        <p className={css.notice}>
          <strong>This server asks nobody who they are.</strong> Keys count once it runs with{" "}
          <span className="ls-mono">auth = "required"</span>.
        </p>
      )}
      <Panel
        title="API keys"
        flush
        actions={
          <Button size="xs" leftSection={<Plus size={14} />} onClick={() => setMaking(true)}>
            New key
          </Button>
        }
      >
        <Failure error={error} />
        {rows === undefined && error === null && <Loading rows={4} />}
        {rows !== undefined && (
          <DataTable
            rows={rows}
            columns={columns(setRevoking)}
            rowId={(key) => key.id}
            label="API keys"
            onEnd={onEnd}
            empty={
              <Empty icon={<KeyRound size={22} aria-hidden />} title="There are no keys yet">
                <p>A key lets a program or a person in, with a role or with rights on queues by pattern.</p>
              </Empty>
            }
          />
        )}
      </Panel>
      {making && <NewKey onClose={() => setMaking(false)} />}
      {revoking !== null && <Revoke key={revoking.id} row={revoking} onClose={() => setRevoking(null)} />}
    </>
  );
}

function columns(onRevoke: (key: KeyRow) => void) {
  return [
    column.accessor("name", { header: "Name", cell: (one) => <strong>{one.getValue()}</strong> }),
    column.display({ id: "state", header: "State", cell: ({ row }) => <State row={row.original} /> }),
    column.display({
      id: "rights",
      header: "Rights",
      cell: ({ row }) => <Rights row={row.original} />,
      meta: { wide: true },
    }),
    column.accessor("id", {
      header: "Id",
      cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
      meta: { wide: true },
    }),
    column.accessor("createdAt", {
      header: "Made",
      cell: (one) => <Ago at={one.getValue()} />,
      meta: { right: true, wide: true },
    }),
    column.accessor("expiresAt", {
      header: "Expires",
      cell: (one) => (one.getValue() === null ? "never" : <Ago at={one.getValue()} />),
      meta: { right: true, wide: true },
    }),
    column.display({
      id: "revoke",
      header: "",
      cell: ({ row }) =>
        row.original.revokedAt === null && (
          <Button size="compact-xs" variant="default" onClick={() => onRevoke(row.original)}>
            Revoke
          </Button>
        ),
      meta: { right: true },
    }),
  ];
}

function State({ row }: { row: KeyRow }) {
  const now = useNow();
  if (row.revokedAt !== null) return <Badge tone="dead">Revoked</Badge>;
  if (row.expiresAt !== null && Date.parse(row.expiresAt) <= now) return <Badge tone="idle">Expired</Badge>;
  return <Badge tone="healthy">Valid</Badge>;
}

function Rights({ row }: { row: KeyRow }) {
  const said = [...(row.role === null ? [] : [row.role]), ...row.rules].join("; ");
  return <span title={said}>{said}</span>;
}

const ROLES = [
  { value: "read-only", label: "Look at everything (read-only)" },
  { value: "read-write", label: "Push, pop, look, manage (read-write)" },
  { value: "admin", label: "Everything (admin)" },
  { value: "rules", label: "Rights on some queues" },
];

function NewKey({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("read-only");
  const [rules, setRules] = useState("push,pop orders.*");
  const [expires, setExpires] = useState("");
  const [made, setMade] = useState<Schemas["CreatedKeyAnswer"] | null>(null);
  const { run, busy, error } = useAct();
  async function make(): Promise<string> {
    const given = rules.split("\n").map((rule) => rule.trim());
    const rights = role === "rules" ? { rules: given.filter((rule) => rule !== "") } : { role };
    const until = expires === "" ? {} : { expiresAt: new Date(expires).toISOString() };
    setMade(await send("post", "/api/v1/keys", { body: { name, ...rights, ...until } }));
    return `A key for ${name} is made.`;
  }
  return (
    <Modal
      opened
      onClose={onClose}
      title={made === null ? "New key" : `The key for ${made.key.name}`}
      centered
      closeOnClickOutside={made === null}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {made === null ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            run(make);
          }}
        >
          <Stack>
            <TextInput
              label="Name"
              description="What the audit log calls its holder"
              value={name}
              onChange={(event) => setName(event.currentTarget.value)}
              required
              data-autofocus
            />
            <Select
              label="May"
              data={ROLES}
              value={role}
              allowDeselect={false}
              onChange={(value) => setRole(value ?? "read-only")}
            />
            {role === "rules" && (
              <Textarea
                label="Rules"
                description="One a line: rights, then a pattern of queues"
                value={rules}
                onChange={(event) => setRules(event.currentTarget.value)}
                autosize
                minRows={2}
                styles={{ input: { fontFamily: "var(--ls-mono)" } }}
              />
            )}
            <TextInput
              type="datetime-local"
              label="Expires"
              description="Empty: never. It is your local time."
              value={expires}
              onChange={(event) => setExpires(event.currentTarget.value)}
            />
            <Failure error={error} />
            <Group justify="flex-end">
              <Button variant="default" onClick={onClose}>
                Cancel
              </Button>
              <Button type="submit" loading={busy}>
                Make the key
              </Button>
            </Group>
          </Stack>
        </form>
      ) : (
        <Stack>
          <p>Keep it in a safe place: it is shown this once.</p>
          <div className={css.secret}>
            <code>{made.token}</code>
            <Copied value={made.token} label="Copy the key" />
          </div>
          <Group justify="flex-end">
            <Button onClick={onClose}>Done</Button>
          </Group>
        </Stack>
      )}
    </Modal>
  );
}

function Revoke({ row, onClose }: { row: KeyRow; onClose: () => void }) {
  async function act(): Promise<string> {
    await send("delete", "/api/v1/keys/{key}", { params: { key: row.id } });
    return `The key of ${row.name} is revoked.`;
  }
  return (
    <Confirm title="Revoke the key" name={row.name} verb="Revoke it" act={act} onClose={onClose}>
      Whoever uses the key <strong className="ls-mono">{row.id}</strong> of <strong>{row.name}</strong> is refused by
      all servers within 5 seconds. This cannot be undone.
    </Confirm>
  );
}
