import { expect, test } from "vitest";
import { complete } from "./Range";

const points = [{ timestamp: "2026-05-01T10:00:00Z" }, { timestamp: "2026-05-01T10:01:00Z" }];

test("the minute that is not over is left out", () => {
  const now = Date.parse("2026-05-01T10:01:30Z");
  expect(complete(points, "minute", now)).toEqual(points.slice(0, 1));
  expect(complete(points, "hour", now)).toEqual(points);
});
