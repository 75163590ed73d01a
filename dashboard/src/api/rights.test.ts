import { expect, test } from "vitest";
import { givenBy, may } from "./rights";

test("rules give rights on queues by pattern", () => {
  const rules = ["push,pop orders.*", "configure *.dead"];
  expect(may(rules, "push", "orders.new")).toBe(true);
  expect(may(rules, "push", "orders")).toBe(false);
  expect(may(rules, "browse", "orders.new")).toBe(false);
  expect(may(rules, "manage", "orders.dead")).toBe(true);
  expect(may(["admin a*b*c"], "browse", "a-b-c")).toBe(true);
  expect(may(["admin a*b*c"], "browse", "abbc")).toBe(true);
  expect(may(["admin ab*ba"], "browse", "aba")).toBe(false);
  expect(may([], "browse", "a")).toBe(false);
});

test("the rights that rules give on some queue include those that others imply", () => {
  expect([...givenBy(["push,pop orders.*", "configure *.dead"])].sort()).toEqual([
    "configure",
    "manage",
    "pop",
    "push",
  ]);
  expect(givenBy(["admin a"]).has("browse")).toBe(true);
  expect(givenBy([]).size).toBe(0);
});
