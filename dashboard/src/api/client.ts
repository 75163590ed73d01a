/** Requests to the server that sent this page. Every type is that of the OpenAPI document. */
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

type Method = "get" | "post" | "patch" | "delete";
type Operation<P extends keyof paths, M extends Method> = NonNullable<paths[P][M]>;
export type PathWith<M extends Method> = {
  [P in keyof paths]: paths[P][M] extends undefined ? never : P;
}[keyof paths];

type Json<R> = R extends { content: { "application/json": infer A } } ? A : unknown;
export type Answer<P extends keyof paths, M extends Method = "get"> =
  Operation<P, M> extends { responses: { 200: infer R } } ? Json<R> : unknown;
export type Query<P extends keyof paths, M extends Method = "get"> =
  Operation<P, M> extends { parameters: { query?: infer Q } } ? NonNullable<Q> : Record<string, never>;
export type Body<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { requestBody?: { content: { "application/json": infer B } } } ? B : undefined;

type Names<P extends string> = P extends `${string}{${infer Name}}${infer Rest}` ? Name | Names<Rest> : never;
export type Params<P extends string> = [Names<P>] extends [never] ? undefined : Record<Names<P>, string>;

export interface Asked<P extends keyof paths, M extends Method> {
  params?: Params<P>;
  query?: Query<P, M>;
}

/** What the server says went wrong; or that it could not be reached, which has the status 0. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** The path with its names filled in, and its query string: what a request, a cache entry and a stream have in common. */
export function target<P extends keyof paths, M extends Method>(path: P, asked: Asked<P, M> = {}): string {
  const params = (asked.params ?? {}) as Record<string, string>;
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? ""));
  const query = new URLSearchParams();
  const given: Record<string, string | number | boolean | null | undefined> = asked.query ?? {};
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const text = query.toString().replaceAll("+", "%20");
  return text ? `${filled}?${text}` : filled;
}

const TOKEN = "lockstep.token";

export function token(): string | null {
  return sessionStorage.getItem(TOKEN);
}

export function setToken(value: string | null): void {
  if (value === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, value);
}

export function authorization(): Record<string, string> {
  const known = token();
  return known === null ? {} : { authorization: `Bearer ${known}` };
}

export async function request(method: string, url: string, body?: unknown): Promise<unknown> {
  const headers: Record<string, string> = authorization();
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(url, { method, headers, body: sent, credentials: "same-origin" });
  } catch {
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : undefined;
  throw failureOf(response.status, text);
}

export function failureOf(status: number, text: string): ApiError {
  try {
    const said = JSON.parse(text) as Partial<Schemas["Error"]>;
    return new ApiError(status, said.code ?? "unknown", said.error ?? `The server answered ${status}.`);
  } catch {
    return new ApiError(status, "unknown", `The server answered ${status}.`);
  }
}

export function get<P extends PathWith<"get">>(path: P, asked: Asked<P, "get"> = {}): Promise<Answer<P>> {
  return request("GET", target(path, asked)) as Promise<Answer<P>>;
}

export function send<M extends "post" | "patch" | "delete", P extends PathWith<M>>(
  method: M,
  path: P,
  asked: Asked<P, M> & { body?: Body<P, M> } = {},
): Promise<Answer<P, M>> {
  return request(method.toUpperCase(), target(path, asked), asked.body) as Promise<Answer<P, M>>;
}
