import { expect, test } from "vitest";
import { rated, type Look } from "./useRates";

const first: Look = { at: 0, pushed: 100, acked: 50, failed: 2, polls: 3 };

test("the first look shows what has failed since the start, and no rates", () => {
  expect(rated(null, null, first)).toEqual({ now: null, failedInAll: 2, polls: 3 });
});

test("rates come from two looks", () => {
  const second = { at: 2000, pushed: 300, acked: 50, failed: 3, polls: 0 };
  const rates = { now: { pushed: 100, acked: 0, failed: 0.5 }, failedInAll: 3, polls: 0 };
  expect(rated(null, first, second)).toEqual(rates);
  expect(rated(rates, second, { ...second, at: 2100, failed: 4 })).toEqual({ ...rates, failedInAll: 4 });
});

test("a server that was restarted counts from 0 again", () => {
  const second = { at: 1000, pushed: 0, acked: 0, failed: 0, polls: 0 };
  expect(rated(null, first, second).now).toEqual({ pushed: 0, acked: 0, failed: 0 });
});
