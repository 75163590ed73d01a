import { expect, test } from "vitest";
import { hottest } from "./hottest";

test("the partition of most of the newest messages comes first", () => {
  const messages = [
    { partition: "a", createdAt: "2026-01-01" },
    { partition: "b", createdAt: "2026-01-02" },
    { partition: "b", createdAt: "2026-01-04" },
    { partition: "b", createdAt: "2026-01-03" },
  ];
  expect(hottest(messages)).toEqual([
    { partition: "b", messages: 3, newest: "2026-01-04", share: 0.75 },
    { partition: "a", messages: 1, newest: "2026-01-01", share: 0.25 },
  ]);
});
