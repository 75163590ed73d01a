/** A trace as a waterfall: a line per message, with the time that it waited and the time that somebody worked on it. */
import type { Schemas } from "../../api/client";

type TraceMessage = Schemas["TraceMessage"];

/** When consumers told something about a message. */
export interface Told {
  first: string;
  last: string;
}

export interface Step {
  message: TraceMessage;
  /** In seconds since the first message of the trace. */
  at: number;
  /** Seconds until somebody began to work on it; null where nobody told. */
  waited: number | null;
  /** Seconds from then until it was last heard of: by an event, or by the next message of the trace. */
  worked: number | null;
  /** Seconds until the next message of the trace was stored; null for the last one. */
  until: number | null;
}

export interface Waterfall {
  steps: Step[];
  seconds: number;
  queues: string[];
}

export function waterfall(messages: TraceMessage[], told: ReadonlyMap<string, Told> = new Map()): Waterfall {
  const ordered = [...messages].sort((one, other) => Date.parse(one.createdAt) - Date.parse(other.createdAt));
  const times = ordered.map((message) => Date.parse(message.createdAt) / 1000);
  const first = times[0] ?? 0;
  const steps = ordered.map((message, index) => {
    const stored = times[index] ?? first;
    const next = times[index + 1];
    const work = worked(stored, next, told.get(message.id));
    return { message, at: stored - first, until: next === undefined ? null : next - stored, ...work };
  });
  const ends = steps.map((step) => step.at + Math.max(step.until ?? 0, (step.waited ?? 0) + (step.worked ?? 0)));
  return {
    steps,
    seconds: Math.max(0, ...ends),
    queues: [...new Set(ordered.map((message) => message.queue))],
  };
}

function worked(stored: number, next: number | undefined, told: Told | undefined): Pick<Step, "waited" | "worked"> {
  if (told === undefined) return { waited: null, worked: null };
  const began = Math.max(Date.parse(told.first) / 1000, stored);
  // The next message of a trace is mostly what came of this one.
  const ended = Math.max(Date.parse(told.last) / 1000, next === undefined || next < began ? began : next);
  return { waited: began - stored, worked: ended - began };
}
