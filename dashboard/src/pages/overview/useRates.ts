/** What the server does per second now: from how its counters move between two looks. */
import { useEffect, useRef, useState } from "react";
import type { Schemas } from "../../api/client";
import { useLive } from "../../live/useLive";

type PerSecond = Pick<Look, "pushed" | "acked" | "failed">;

export interface Rates {
  /** Null until the second look. */
  now: PerSecond | null;
  failedInAll: number;
  polls: number;
}

export interface Look {
  at: number;
  pushed: number;
  acked: number;
  failed: number;
  polls: number;
}

export function useRates(): Rates | null {
  const { data } = useLive("/api/v1/analytics/worker-metrics");
  const last = useRef<Look | null>(null);
  const [rates, setRates] = useState<Rates | null>(null);
  useEffect(() => {
    if (data === undefined) return;
    const look = lookAt(data.workers, Date.now());
    const before = last.current;
    setRates((old) => rated(old, before, look));
    last.current = look;
  }, [data]);
  return rates;
}

type Worker = Schemas["WorkerRow"];

function sum(workers: Worker[], name: "messagesPushed" | "messagesAcked" | "serverErrors" | "pollsWaiting"): number {
  return workers.reduce((total, worker) => total + worker[name], 0);
}

function lookAt(workers: Worker[], at: number): Look {
  return {
    at,
    pushed: sum(workers, "messagesPushed"),
    acked: sum(workers, "messagesAcked"),
    failed: sum(workers, "serverErrors"),
    polls: sum(workers, "pollsWaiting"),
  };
}

/** What one look shows is known at once; what is done per second needs two that are some time apart. */
export function rated(old: Rates | null, before: Look | null, look: Look): Rates {
  const now = before !== null && look.at - before.at > 500 ? between(before, look) : (old?.now ?? null);
  return { now, polls: look.polls, failedInAll: look.failed };
}

/** A server that was restarted counts from 0 again. */
export function between(before: Look, now: Look): PerSecond {
  const seconds = (now.at - before.at) / 1000;
  const per = (more: number): number => Math.max(more, 0) / seconds;
  return {
    pushed: per(now.pushed - before.pushed),
    acked: per(now.acked - before.acked),
    failed: per(now.failed - before.failed),
  };
}
