import { Button, CopyButton } from "@mantine/core";
import { Link } from "@tanstack/react-router";
import { Terminal } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { bytes, exact, moment } from "../../design/format";
import { Payload } from "../../design/JsonTree";
import { Ago, Badge, Columns, Copied, Fact, Facts, Failure, Loading, Page, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMay } from "../../live/useWho";
import { routes } from "../../router";
import { groupName } from "../groups/words";
import { StatusBadge } from "../messages/words";
import { Bury, PushAgain, Remove } from "./Acts";
import { asCurl } from "./asCurl";
import { Events } from "./Events";

export type Message = Schemas["OneMessageAnswer"];

export function MessagePage() {
  const params = routes.message.useParams();
  const { data: message, error } = useLive("/api/v1/messages/{partitionId}/{transactionId}", { params });
  return (
    <Page
      title={message === undefined ? "Message" : `Message ${exact(message.seq)} of ${message.partition}`}
      beside={message && <StatusBadge status={message.status} />}
      actions={message && <Acts message={message} />}
    >
      <Failure error={error} />
      {message === undefined && error === null && <Loading rows={8} />}
      {message !== undefined && (
        <Columns>
          <div>
            <Panel title="Payload">
              <Payload value={message.payload} label="Payload" />
            </Panel>
            <Events params={params} />
          </div>
          <div>
            <About message={message} />
            <Progress message={message} />
            {Object.keys(message.headers).length > 0 && (
              <Panel title="Headers">
                <Facts>
                  {Object.entries(message.headers).map(([name, value]) => (
                    <Fact key={name} name={name}>
                      <span className="ls-mono">{value}</span>
                    </Fact>
                  ))}
                </Facts>
              </Panel>
            )}
          </div>
        </Columns>
      )}
    </Page>
  );
}

type Open = "remove" | "again" | "bury" | null;

function Acts({ message }: { message: Message }) {
  const [open, setOpen] = useState<Open>(null);
  const close = (): void => setOpen(null);
  const done = message.status === "completed" || message.status === "dead_letter";
  const may = useMay(message.queue);
  return (
    <>
      <CopyButton value={asCurl(location.origin, message)}>
        {({ copied, copy }) => (
          <Button variant="default" leftSection={<Terminal size={15} aria-hidden />} onClick={copy}>
            {copied ? "Copied" : "Copy as curl"}
          </Button>
        )}
      </CopyButton>
      {done && may("push") && (
        <Button variant="default" onClick={() => setOpen("again")}>
          Push again
        </Button>
      )}
      {!done && may("pop") && (
        <Button variant="default" onClick={() => setOpen("bury")}>
          Give up
        </Button>
      )}
      {may("manage") && (
        <Button variant="light" color="red" onClick={() => setOpen("remove")}>
          Delete
        </Button>
      )}
      {open === "remove" && <Remove message={message} onClose={close} />}
      {open === "again" && <PushAgain message={message} onClose={close} />}
      {open === "bury" && <Bury message={message} onClose={close} />}
    </>
  );
}

function About({ message }: { message: Message }) {
  const size = new TextEncoder().encode(JSON.stringify(message.payload)).length;
  return (
    <Panel title="About it">
      <Facts>
        <Fact name="Queue">
          <Link to="/queues/$queue" params={{ queue: message.queue }}>
            {message.queue}
          </Link>
        </Fact>
        <Fact name="Partition">
          <Link to="/messages" search={{ queue: message.queue, partition: message.partition }} className="ls-mono">
            {message.partition}
          </Link>
        </Fact>
        <Fact name="Stored">
          {moment(message.createdAt)} (<Ago at={message.createdAt} />)
        </Fact>
        <Fact name="Message id">
          <Id value={message.id} />
        </Fact>
        <Fact name="Transaction id">
          <Id value={message.transactionId} />
        </Fact>
        {message.traceId !== null && (
          <Fact name="Trace">
            <Link to="/traces" search={{ trace: message.traceId }} className="ls-mono">
              {message.traceId}
            </Link>
          </Fact>
        )}
        {message.kind !== null && <Fact name="Kind">{message.kind}</Fact>}
        {message.reference !== null && <Fact name="Reference">{message.reference}</Fact>}
        {message.producerSub !== null && <Fact name="Pushed by">{message.producerSub}</Fact>}
        <Fact name="Payload size">{bytes(size)}</Fact>
        {message.isEncrypted && <Fact name="At rest">Encrypted</Fact>}
        {message.errorMessage !== null && (
          <Fact name="Error">
            {message.errorMessage} ({message.retryCount} failed deliveries)
          </Fact>
        )}
      </Facts>
    </Panel>
  );
}

function Id({ value }: { value: string }) {
  return (
    <>
      <span className="ls-mono">{value}</span> <Copied value={value} label="Copy the id" />
    </>
  );
}

function Progress({ message }: { message: Message }) {
  return (
    <Panel title="Groups">
      {message.consumerGroups.length === 0 ? (
        <span className="ls-soft">No group has come to this partition yet.</span>
      ) : (
        <Facts>
          {message.consumerGroups.map((group) => (
            <Fact key={group.name} name={groupName(group.name)}>
              {group.consumed ? (
                <Badge tone="healthy">Done</Badge>
              ) : group.leaseExpiresAt !== null ? (
                <>
                  <Badge tone="lagging">Leased</Badge> until <Ago at={group.leaseExpiresAt} />
                </>
              ) : (
                <Badge tone="idle">Waiting</Badge>
              )}
            </Fact>
          ))}
        </Facts>
      )}
    </Panel>
  );
}
