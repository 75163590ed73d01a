import type { Schemas } from "../../api/client";

export interface Hot {
  partition: string;
  messages: number;
  newest: string;
  share: number;
}

export function hottest(messages: Pick<Schemas["MessageRow"], "partition" | "createdAt">[]): Hot[] {
  const found = new Map<string, Hot>();
  for (const { partition, createdAt } of messages) {
    const known = found.get(partition) ?? { partition, messages: 0, newest: createdAt, share: 0 };
    known.messages += 1;
    if (createdAt > known.newest) known.newest = createdAt;
    found.set(partition, known);
  }
  const all = [...found.values()].sort((one, other) => other.messages - one.messages);
  for (const one of all) one.share = one.messages / messages.length;
  return all;
}
