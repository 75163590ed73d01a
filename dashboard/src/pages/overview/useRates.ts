/** What the server does per second now: from how its counters move between two looks. */
import { useEffect, useRef, useState } from "react";
import type { Schemas } from "../../api/client";
import { useLive } from "../../live/useLive";

export interface Rates {
  pushed: number;
  acked: number;
  failed: number;
  failedInAll: number;
  polls: number;
}

interface Look {
  at: number;
  pushed: number;
  acked: number;
  failed: number;
}

export function useRates(): Rates | null {
  const { data } = useLive("/api/v1/analytics/worker-metrics");
  const last = useRef<Look | null>(null);
  const [rates, setRates] = useState<Rates | null>(null);
  useEffect(() => {
    if (data === undefined) return;
    const look = lookAt(data.workers, Date.now());
    if (last.current !== null && look.at - last.current.at > 500) {
      setRates({ ...between(last.current, look), polls: sum(data.workers, "pollsWaiting"), failedInAll: look.failed });
    }
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
  };
}

/** A server that was restarted counts from 0 again. */
export function between(before: Look, now: Look): Pick<Rates, "pushed" | "acked" | "failed"> {
  const seconds = (now.at - before.at) / 1000;
  const per = (more: number): number => Math.max(more, 0) / seconds;
  return {
    pushed: per(now.pushed - before.pushed),
    acked: per(now.acked - before.acked),
    failed: per(now.failed - before.failed),
  };
}
