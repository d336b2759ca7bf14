/** Streams of server-sent events that survive a lost connection and a reload of the page. */
import { ApiError, call, request } from "./client";

export interface StreamHandlers {
  /** The id of the request, as the server's log and explanations have it. */
  onStart?(requestId: string, model: string): void;
  /** One event; its id is what a reader that comes back sends. */
  onEvent(data: unknown, id: string): void;
}

interface Progress {
  id: string;
  done: boolean;
}

/** For how long a stream without a reader is kept by the server, in milliseconds. */
export const RESUME_MS = 60_000;

/**
 * Read the stream of a request to its end. A connection that breaks is made again, and the stream
 * goes on where it was.
 *
 * @param lastId the id of the last event that was read; "" for a new request.
 * @throws ApiError what the server answered, or status 0 where it cannot be reached any more.
 */
async function readStream(
  path: string,
  body: unknown,
  lastId: string,
  handlers: StreamHandlers,
  signal: AbortSignal,
): Promise<void> {
  const progress: Progress = { id: lastId, done: false };
  let broken = 0;
  for (let wait = 250; ; wait = Math.min(wait * 2, 4000)) {
    const before = progress.id;
    try {
      await readOnce(path, body, progress, handlers, signal);
      if (progress.done) return;
    } catch (error) {
      const lost = error instanceof ApiError ? error.status === 0 : error instanceof TypeError;
      if (!lost || !progress.id) throw error;
    }
    if (progress.id !== before) {
      broken = 0;
      wait = 250;
    }
    broken ||= Date.now();
    if (!progress.id || Date.now() - broken > RESUME_MS) throw new ApiError(0, "");
    await pause(wait, signal);
  }
}

async function readOnce(
  path: string,
  body: unknown,
  progress: Progress,
  handlers: StreamHandlers,
  signal: AbortSignal,
): Promise<void> {
  const headers: Record<string, string> = { Accept: "text/event-stream", "X-Resumable-Stream": "true" };
  if (progress.id) headers["Last-Event-ID"] = progress.id;
  const response = await request(path, { body, headers, signal });
  const sent = (name: string) => response.headers.get(name) ?? "";
  handlers.onStart?.(sent("x-request-id"), sent("x-tidemill-model"));
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = parseEvent(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (event.id) progress.id = event.id;
      if (event.data === "[DONE]") {
        progress.done = true;
        void reader.cancel().catch(() => undefined);
        return;
      }
      if (!event.data) continue;
      const data = JSON.parse(event.data) as { error?: { message?: string; code?: string } };
      if (data.error) {
        progress.done = true;
        throw new ApiError(500, data.error.message ?? "", data.error.code ?? "");
      }
      handlers.onEvent(data, progress.id);
    }
  }
}

function parseEvent(text: string): { id: string; data: string } {
  let id = "";
  const data: string[] = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return { id, data: data.join("\n") };
}

export interface OpenStream {
  /** Ends with the stream; rejected with what went wrong, or an AbortError once it is stopped. */
  done: Promise<void>;
  /** End the stream, and its generation at the server. */
  stop(): void;
}

/**
 * Read a stream that a person may stop; see `readStream`. Leaving alone would let the server generate on
 * for somebody who comes back: it is told, by the id of an event. Before there is one it has no name; it
 * is told with the first.
 */
export function openStream(path: string, body: unknown, lastId: string, handlers: StreamHandlers): OpenStream {
  const abort = new AbortController();
  let eventId = lastId;
  let [stopped, told] = [false, false];
  let halt: (reason: DOMException) => void = () => undefined;
  const halted = new Promise<never>((_, reject) => (halt = reject));
  const tell = () => {
    if (told) return;
    told = true;
    void cancelStream(eventId).then(() => abort.abort());
  };
  const onEvent = (data: unknown, id: string) => {
    eventId = id;
    if (stopped) tell();
    else handlers.onEvent(data, id);
  };
  const reading = readStream(path, body, lastId, { ...handlers, onEvent }, abort.signal);
  return {
    done: Promise.race([reading, halted]),
    stop: () => {
      if (stopped) return;
      stopped = true;
      if (eventId) tell();
      halt(new DOMException("stopped", "AbortError"));
    },
  };
}

/** End a generation at the server, by the id of any of its events. */
async function cancelStream(eventId: string): Promise<void> {
  try {
    await call(`v1/streams/${encodeURIComponent(eventId)}`, { method: "DELETE" });
  } catch {
    // It has ended already, or the server has gone: nothing runs for it.
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}
