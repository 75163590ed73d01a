import { expect, test } from "vitest";
import type { Schemas } from "../../api/client";
import { waterfall } from "./waterfall";

function message(queue: string, second: number): Schemas["TraceMessage"] {
  const createdAt = new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
  return { queue, createdAt, id: queue } as Schemas["TraceMessage"];
}

test("steps stand in the order in which they were stored, each with the time to the next", () => {
  const found = waterfall([message("b", 5), message("a", 1), message("c", 6)]);
  expect(found.steps.map((step) => [step.message.queue, step.at, step.until])).toEqual([
    ["a", 0, 4],
    ["b", 4, 1],
    ["c", 5, null],
  ]);
  expect(found.steps.map((step) => step.waited)).toEqual([null, null, null]);
  expect([found.seconds, found.queues]).toEqual([5, ["a", "b", "c"]]);
});

test("a trace without messages has no steps", () => {
  expect(waterfall([])).toEqual({ steps: [], seconds: 0, queues: [] });
});

test("what was told about a message parts the time that it waited from the time that it was worked on", () => {
  const at = (second: number): string => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
  const told = new Map([
    ["a", { first: at(4), last: at(4) }],
    ["b", { first: at(7), last: at(9) }],
  ]);
  const found = waterfall([message("a", 1), message("b", 6)], told);
  expect(found.steps.map((step) => [step.waited, step.worked])).toEqual([
    [3, 2],
    [1, 2],
  ]);
  expect(found.seconds).toBe(8);
});
