/** A list that goes on as the reader scrolls. Until then it follows changes. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { request, target, type Answer, type ApiError, type Asked, type PathWith } from "../api/client";
import { queries, stream } from "../live/useLive";

interface More<Row> {
  rows: Row[] | undefined;
  error: ApiError | null;
  /** Asks for what comes next; not given while nothing does. */
  onEnd: (() => void) | undefined;
}

interface Paged<P extends PathWith<"get">, Row> {
  path: P;
  /** What to ask for: the first page without a place, the others with that of the page before. */
  asked: (after: string | undefined) => Asked<P, "get">;
  rowsOf: (page: Answer<P>) => Row[];
  nextOf: (page: Answer<P>, pages: Answer<P>[]) => string | null | undefined;
}

export function useMore<P extends PathWith<"get">, Row>({ path, asked, rowsOf, nextOf }: Paged<P, Row>): More<Row> {
  const first = target(path, asked(undefined));
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery<
    Answer<P>,
    ApiError,
    { rows: Row[]; pages: number },
    unknown[],
    string | undefined
  >({
    queryKey: ["pages", first],
    queryFn: ({ pageParam }) => request("GET", target(path, asked(pageParam))) as Promise<Answer<P>>,
    initialPageParam: undefined,
    getNextPageParam: (page, pages) => nextOf(page, pages) ?? undefined,
    select: ({ pages }) => ({ rows: pages.flatMap(rowsOf), pages: pages.length }),
  });
  // A list that the reader has scrolled through stays as it is: it would jump.
  const following = data === undefined || data.pages < 2;
  useEffect(() => {
    if (!following) return undefined;
    const unwatch = stream.watch(first);
    const unsubscribe = queries.getQueryCache().subscribe(({ type, query }) => {
      const [method, url] = query.queryKey as unknown[];
      if (type !== "updated" || method !== "GET" || url !== first) return;
      const page = query.state.data as Answer<P> | undefined;
      if (page !== undefined) queries.setQueryData(["pages", first], { pages: [page], pageParams: [undefined] });
    });
    return () => {
      unwatch();
      unsubscribe();
    };
  }, [first, following]);
  return {
    rows: data?.rows,
    error,
    onEnd: hasNextPage && !isFetchingNextPage ? () => void fetchNextPage() : undefined,
  };
}
