/** One dead letter, with ways to send it again: as it is, or mended. */
import { Button, Drawer, Group, JsonInput, Stack } from "@mantine/core";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { ApiError, request, send } from "../../api/client";
import { moment, several } from "../../design/format";
import { Payload } from "../../design/JsonTree";
import { Code, Fact, Facts, Failure, Loading } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { forget, useAnswer } from "../../live/useLive";
import { useMay } from "../../live/useWho";
import { groupName } from "../groups/words";
import type { DeadLetter } from "./DeadLetters";

interface LetterProps {
  id: string;
  onClose: () => void;
}

export function Letter({ id, onClose }: LetterProps) {
  const { data, error } = useAnswer("/api/v1/dlq/{id}", { params: { id } });
  return (
    <Drawer
      opened
      onClose={onClose}
      position="right"
      size="lg"
      title={<strong>Dead letter</strong>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={6} />}
      {data !== undefined && <Contents letter={data} onClose={onClose} />}
    </Drawer>
  );
}

function Contents({ letter, onClose }: { letter: DeadLetter; onClose: () => void }) {
  const [editing, setEditing] = useState(false);
  const { run, busy, error } = useAct(onClose);
  async function redrive(): Promise<string> {
    await send("post", "/api/v1/dlq/redrive", { body: { ids: [letter.id], limit: 1 } });
    forget("/api/v1/dlq/{id}", { params: { id: letter.id } });
    return `The message is pushed to ${letter.queue} again.`;
  }
  const may = useMay(letter.queue);
  const readable = letter.encoding === null;
  return (
    <Stack>
      <Code>{letter.errorMessage ?? "no error was given"}</Code>
      <Facts>
        <Fact name="Queue">
          <Link to="/queues/$queue" params={{ queue: letter.queue }}>
            {letter.queue}
          </Link>
        </Fact>
        <Fact name="Partition">
          <span className="ls-mono">{letter.partition}</span>
        </Fact>
        <Fact name="Group">{groupName(letter.consumerGroup)}</Fact>
        <Fact name="Failed">
          {moment(letter.failedAt)}, after {several(letter.retryCount, "failed delivery", "failed deliveries")}
        </Fact>
        <Fact name="Message">
          <Link to="/messages/$partitionId/$transactionId" params={letter} className="ls-mono">
            {letter.transactionId}
          </Link>
        </Fact>
        {letter.traceId !== null && (
          <Fact name="Trace">
            <Link to="/traces" search={{ trace: letter.traceId }} className="ls-mono">
              {letter.traceId}
            </Link>
          </Fact>
        )}
      </Facts>
      {editing ? (
        <Mend letter={letter} onClose={onClose} />
      ) : (
        <>
          <Payload value={letter.data} label="Payload" />
          <Failure error={error} />
          <Group justify="flex-end">
            {readable && may("push") && may("configure") && (
              <Button variant="default" onClick={() => setEditing(true)}>
                Edit and redrive
              </Button>
            )}
            {may("push") && (
              <Button onClick={() => run(redrive)} loading={busy}>
                Redrive
              </Button>
            )}
          </Group>
        </>
      )}
    </Stack>
  );
}

interface Pushed {
  status: string;
  error?: string;
}

/** Pushes a changed copy, then removes the dead letter. Its transaction id is its own, so that it is stored once. */
function Mend({ letter, onClose }: { letter: DeadLetter; onClose: () => void }) {
  const [payload, setPayload] = useState(JSON.stringify(letter.data, null, 2));
  const { run, busy, error } = useAct(onClose);
  async function push(): Promise<string> {
    const { queue, partition, traceId } = letter;
    const item = { queue, partition, payload: JSON.parse(payload) as unknown, transactionId: `mended-${letter.id}` };
    // A push answers in several ways, which the document does not tell apart.
    const answer = await request("POST", "/api/v1/push", { items: [traceId === null ? item : { ...item, traceId }] });
    const first = Array.isArray(answer) ? (answer as Pushed[])[0] : undefined;
    if (first?.status === "failed") throw new ApiError(400, "refused", first.error ?? "The push was refused.");
    await send("post", "/api/v1/dlq/purge", { body: { ids: [letter.id] } });
    forget("/api/v1/dlq/{id}", { params: { id: letter.id } });
    return `The mended message is pushed to ${queue}.`;
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        run(push);
      }}
    >
      <Stack>
        <JsonInput
          label="Payload"
          description="The message goes to the end of its partition with this payload."
          value={payload}
          onChange={setPayload}
          validationError="This is not JSON"
          autosize
          minRows={8}
          maxRows={24}
          data-autofocus
        />
        <Failure error={error} />
        <Group justify="flex-end">
          <Button type="submit" loading={busy}>
            Push the mended message
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
