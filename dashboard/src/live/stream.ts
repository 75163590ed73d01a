/** The one stream of the page: it tells when an answer changes that something on the page shows. */
import { authorization, failureOf, ApiError } from "../api/client";
import { EventParser } from "./parse";

export type StreamState = "live" | "connecting" | "down";

export interface Watched {
  path: string;
  status: number;
  body: unknown;
}

const WATCHED_MAX = 16;
const SETTLE_MS = 60;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class LiveStream {
  #watched = new Map<string, number>();
  #listeners = new Set<() => void>();
  #state: StreamState = "connecting";
  #lastId: string | null = null;
  #closing: AbortController | null = null;
  #settling: number | undefined;
  #failures = 0;

  constructor(private readonly put: (event: Watched) => void) {}

  /** Watch a path until the returned function is called. */
  watch(path: string): () => void {
    this.#watched.set(path, (this.#watched.get(path) ?? 0) + 1);
    if (this.#watched.get(path) === 1) this.#settle();
    return () => {
      const left = (this.#watched.get(path) ?? 1) - 1;
      if (left > 0) {
        this.#watched.set(path, left);
      } else {
        this.#watched.delete(path);
        this.#settle();
      }
    };
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  state = (): StreamState => this.#state;

  /** Open it anew: after a sign-in, say. */
  restart(): void {
    this.#lastId = null;
    this.#settle();
  }

  /** A page changes what it watches in several steps; the stream is opened once for all of them. */
  #settle(delay = SETTLE_MS): void {
    window.clearTimeout(this.#settling);
    this.#settling = window.setTimeout(() => void this.#open(), delay);
  }

  #tell(state: StreamState): void {
    if (state === this.#state) return;
    this.#state = state;
    for (const listener of this.#listeners) listener();
  }

  async #open(): Promise<void> {
    this.#closing?.abort();
    const closing = (this.#closing = new AbortController());
    const paths = [...this.#watched.keys()].slice(0, WATCHED_MAX);
    if (paths.length === 0) return;
    try {
      await this.#read(paths, closing.signal);
    } catch (error) {
      if (closing.signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        this.#tell("down");
        return;
      }
    }
    if (closing.signal.aborted) return;
    this.#tell("down");
    this.#settle(RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)]);
  }

  async #read(paths: string[], signal: AbortSignal): Promise<void> {
    const headers: Record<string, string> = authorization();
    if (this.#lastId !== null) headers["last-event-id"] = this.#lastId;
    const url = `/api/v1/events?watch=${encodeURIComponent(paths.join(" "))}`;
    const response = await fetch(url, { headers, signal, credentials: "same-origin" });
    if (!response.ok || response.body === null) throw failureOf(response.status, await response.text());
    this.#failures = 0;
    this.#tell("live");
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const event of parser.push(value)) {
        if (event.id !== null) this.#lastId = event.id;
        if (event.name === "answer") this.put(JSON.parse(event.data) as Watched);
      }
    }
  }
}
