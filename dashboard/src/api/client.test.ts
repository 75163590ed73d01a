import { expect, test } from "vitest";
import { failureOf, target } from "./client";

test("names are filled in, and encoded", () => {
  expect(target("/api/v1/status/queues/{queue}", { params: { queue: "a/b c" } })).toBe(
    "/api/v1/status/queues/a%2Fb%20c",
  );
});

test("what is not given is left out", () => {
  const query = { search: "a b&c", sort: undefined, limit: 5, recent: true };
  expect(target("/api/v1/status/queues", { query })).toBe("/api/v1/status/queues?search=a%20b%26c&limit=5&recent=true");
});

test("a failure has the words of the server", () => {
  const failure = failureOf(404, '{"error":"there is no queue x","code":"queue_not_found"}');
  expect([failure.status, failure.code, failure.message]).toEqual([404, "queue_not_found", "there is no queue x"]);
  expect(failureOf(502, "<html>").message).toBe("The server answered 502.");
});
