/** Who is signed in, and what they may do. */
import { setToken } from "../api/client";
import { givenBy, may, type Right } from "../api/rights";
import { queries, refreshAll, stream, useAnswer, WHO } from "./useLive";

export function useWho() {
  return useAnswer(WHO);
}

/** Whether the caller may do something to one of several queues. Until the server has said, everything is shown. */
export function useMayOn(): (right: Right, queue: string) => boolean {
  const { data } = useWho();
  return (right, queue) => data === undefined || may(data.rules, right, queue);
}

/** The same for one queue. */
export function useMay(queue: string): (right: Right) => boolean {
  const may = useMayOn();
  return (right) => may(right, queue);
}

/** Whether the caller may do something about the server as a whole, or to all queues. */
export function useMayEverywhere(right: Right): boolean {
  const { data } = useWho();
  return data === undefined || data.rights.includes(right);
}

/** Whether there is a queue to which the caller may do something. */
export function useMaySomewhere(right: Right): boolean {
  const { data } = useWho();
  return data === undefined || givenBy(data.rules).has(right);
}

/** Nothing that was shown to one caller is shown to the next. */
export async function signIn(token: string | null): Promise<void> {
  setToken(token);
  queries.removeQueries({ predicate: ({ queryKey }) => queryKey[1] !== WHO });
  await refreshAll();
  stream.restart();
}
