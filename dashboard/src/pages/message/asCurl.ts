/** The command that pushes a message like this one. */
import type { Message } from "./MessagePage";

type Pushed = Pick<Message, "queue" | "partition" | "payload" | "kind" | "reference" | "headers" | "traceId">;

export function asCurl(origin: string, message: Pushed): string {
  const { queue, partition, payload, kind, reference, headers, traceId } = message;
  const item: Record<string, unknown> = { queue, partition, payload };
  if (traceId !== null) item.traceId = traceId;
  if (kind !== null) item.kind = kind;
  if (reference !== null) item.reference = reference;
  if (Object.keys(headers).length > 0) item.headers = headers;
  const body = JSON.stringify({ items: [item] });
  return `curl -X POST ${origin}/api/v1/push -H 'content-type: application/json' -d ${quoted(body)}`;
}

/** One word for a shell, whatever is in it. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
