/** Answers that stay as they are on the server while they are shown. */
import { keepPreviousData, QueryCache, QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useSyncExternalStore } from "react";
import { ApiError, failureOf, request, target, type Answer, type Asked, type PathWith } from "../api/client";
import { LiveStream, type StreamState } from "./stream";

export const WHO = "/api/v1/whoami";

export const queries = new QueryClient({
  queryCache: new QueryCache({
    // Whoever was signed in is not any more: the shell asks who it is, and leads to the sign-in.
    onError: (error, { queryKey }) => {
      if (error instanceof ApiError && error.status === 401 && queryKey[1] !== WHO) {
        void queries.invalidateQueries({ queryKey: ["GET", WHO] });
      }
    },
  }),
  defaultOptions: {
    queries: {
      retry: (count, error) => count < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
      staleTime: 5_000,
      refetchOnWindowFocus: false,
    },
  },
});

export const stream = new LiveStream(({ path, status, body }) => {
  const queryKey = ["GET", path];
  if (status < 400) {
    queries.setQueryData(queryKey, body);
  } else {
    // What the server said is all there is to know: asking again would get the same.
    const error = failureOf(status, JSON.stringify(body));
    queries.getQueryCache().find({ queryKey })?.setState({ status: "error", error });
  }
});

interface Options {
  /** Whether to ask at all. */
  enabled?: boolean;
  /** Whether to follow changes; lists that the reader has scrolled through stay as they are. */
  live?: boolean;
}

export function useLive<P extends PathWith<"get">>(
  path: P,
  asked: Asked<P, "get"> = {},
  { enabled = true, live = true }: Options = {},
): UseQueryResult<Answer<P>, ApiError> {
  const url = target(path, asked);
  const watching = enabled && live;
  useEffect(() => (watching ? stream.watch(url) : undefined), [url, watching]);
  return useQuery<Answer<P>, ApiError>({
    queryKey: ["GET", url],
    queryFn: () => request("GET", url) as Promise<Answer<P>>,
    enabled,
    placeholderData: keepPreviousData,
  });
}

/** The same without following changes. */
export function useAnswer<P extends PathWith<"get">>(
  path: P,
  asked: Asked<P, "get"> = {},
  { enabled = true }: Pick<Options, "enabled"> = {},
): UseQueryResult<Answer<P>, ApiError> {
  return useLive(path, asked, { enabled, live: false });
}

export function useStreamState(): StreamState {
  return useSyncExternalStore(stream.subscribe, stream.state);
}

/** What is gone is not asked for again. */
export function forget<P extends PathWith<"get">>(path: P, asked: Asked<P, "get">): void {
  queries.removeQueries({ queryKey: ["GET", target(path, asked)] });
}

/** After a change: everything that is shown is asked for again. */
export function refreshAll(): Promise<void> {
  return queries.invalidateQueries();
}
