/** Requests to the server that the page came from. */
import { signal } from "@preact/signals";

const KEY = "tidemill.key";

/** The API key of the person; kept for the session of this tab alone. */
export const apiKey = signal(sessionStorage.getItem(KEY) ?? "");

/** Why the person is asked for a key; "" while nobody is asked. */
export const loginReason = signal<"" | "needed" | "rejected">("");

/** Where the API is: the folder of the page, which may be behind a path prefix. */
export const base = new URL(".", location.href);

export function setApiKey(key: string): void {
  apiKey.value = key;
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string = "",
    readonly param: string = "",
    readonly requestId: string = "",
    readonly retryAfter: number = 0,
  ) {
    super(message);
  }
}

export interface CallOptions {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/**
 * A response of the API.
 *
 * @throws ApiError what the server answered; status 0 where it cannot be reached.
 */
export async function request(path: string, options: CallOptions = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json", ...options.headers };
  if (apiKey.value) headers["Authorization"] = `Bearer ${apiKey.value}`;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(new URL(path, base), {
      method: options.method ?? (options.body === undefined ? "GET" : "POST"),
      headers,
      body: options.body === undefined ? null : JSON.stringify(options.body),
      signal: options.signal ?? null,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "");
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401) loginReason.value = apiKey.value ? "rejected" : "needed";
  throw error;
}

/** The JSON document of a response. */
export async function call<T>(path: string, options: CallOptions = {}): Promise<T> {
  const response = await request(path, options);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

async function errorOf(response: Response): Promise<ApiError> {
  let message = "";
  let code = "";
  let param = "";
  try {
    const error = (await response.json()).error ?? {};
    message = typeof error === "string" ? error : String(error.message ?? "");
    code = String(error.code ?? "");
    param = String(error.param ?? "");
  } catch {
    // Not an answer of this server: a proxy's page.
  }
  const id = response.headers.get("x-request-id") ?? "";
  const after = Number(response.headers.get("retry-after")) || 0;
  return new ApiError(response.status, message || response.statusText, code, param, id, after);
}
