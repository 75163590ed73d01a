import { expect, test } from "vitest";
import { one, ownPath, texts } from "./search";

test("an address keeps what is known of it as text", () => {
  const read = texts("tab", "live");
  expect(read({ tab: "keys", live: true, other: 1 })).toEqual({ tab: "keys", live: "true" });
  expect(read({ tab: "", live: {} })).toEqual({});
  expect([one("b", ["a", "b"], "a"), one("c", ["a", "b"], "a"), one(undefined, ["a"], "a")]).toEqual(["b", "a", "a"]);
});

test("nobody is led to another server after a sign-in", () => {
  expect(ownPath("/queues?sort=lag")).toBe("/queues?sort=lag");
  expect(["//evil.example", "/\\evil.example", "https://evil.example", "", undefined].map(ownPath)).toEqual([
    "/",
    "/",
    "/",
    "/",
    "/",
  ]);
});
