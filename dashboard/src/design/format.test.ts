import { describe, expect, test } from "vitest";
import { ago, bytes, count, duration, exact, percent, rate, several, UNKNOWN } from "./format";

describe("count", () => {
  test.each([
    [0, "0"],
    [1234, "1,234"],
    [12_345, "12.3k"],
    [120_000, "120k"],
    [4_500_000, "4.5M"],
    [null, UNKNOWN],
  ])("%s is %s", (value, text) => expect(count(value)).toBe(text));
});

describe("duration", () => {
  test.each([
    [0, "0 s"],
    [0.0004, "1 ms"],
    [0.32, "320 ms"],
    [4.24, "4.2 s"],
    [59.4, "59 s"],
    [185, "3 min 5 s"],
    [7500, "2 h 5 min"],
    [273_600, "3 d 4 h"],
    [undefined, UNKNOWN],
  ])("%s is %s", (value, text) => expect(duration(value)).toBe(text));
});

describe("rate", () => {
  test.each([
    [0, "0"],
    [0.001, "<0.01"],
    [0.4, "0.4"],
    [3.04, "3"],
    [321.9, "322"],
    [15_400, "15.4k"],
  ])("%s is %s", (value, text) => expect(rate(value)).toBe(text));
});

test("bytes have binary units", () => {
  expect([bytes(512), bytes(1536), bytes(20 * 1024 ** 2)]).toEqual(["512 B", "1.5 KiB", "20 MiB"]);
});

test("a time is told from now", () => {
  const now = Date.parse("2026-05-01T10:00:00Z");
  expect(ago("2026-05-01T09:59:48Z", now)).toBe("12 s ago");
  expect(ago("2026-05-01T10:03:00Z", now)).toBe("in 3 min");
  expect(ago("2026-05-01T10:00:00Z", now)).toBe("now");
  expect(ago(null, now)).toBe(UNKNOWN);
});

test("nouns agree with their number", () => {
  expect([several(1, "message"), several(1200, "message"), several(0, "queue")]).toEqual([
    "1 message",
    "1,200 messages",
    "0 queues",
  ]);
  expect(exact(1_234_567)).toBe("1,234,567");
  expect([percent(0.5), percent(0.9991)]).toEqual(["50%", "99.9%"]);
});
