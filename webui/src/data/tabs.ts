/** Other tabs of this browser: what one writes, the others show; one alone reads a stream. */
import { newId } from "./ids";

type Note =
  | { kind: "list" }
  | { kind: "conversation"; id: string }
  | { kind: "who-reads"; message: string; from: string }
  | { kind: "i-read"; message: string; to: string };

const channel = new BroadcastChannel("tidemill");
const tab = newId();
const reading = new Set<string>();
const waiting = new Map<string, () => void>();

let onList: () => void = () => undefined;
let onConversation: (id: string) => void = () => undefined;

channel.onmessage = ({ data }: MessageEvent<Note>) => {
  if (data.kind === "list") onList();
  else if (data.kind === "conversation") onConversation(data.id);
  else if (data.kind === "who-reads" && reading.has(data.message)) {
    channel.postMessage({ kind: "i-read", message: data.message, to: data.from } satisfies Note);
  } else if (data.kind === "i-read" && data.to === tab) waiting.get(data.message)?.();
};

export function listen(handlers: { list(): void; conversation(id: string): void }): void {
  onList = handlers.list;
  onConversation = handlers.conversation;
}

export function tellList(): void {
  channel.postMessage({ kind: "list" } satisfies Note);
}

export function tellConversation(id: string): void {
  channel.postMessage({ kind: "conversation", id } satisfies Note);
}

/** This tab reads the stream of a message until the function that is returned is called. */
export function claim(message: string): () => void {
  reading.add(message);
  return () => reading.delete(message);
}

/** Whether another tab reads the stream of a message. */
export function readElsewhere(message: string): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (answer: boolean) => {
      waiting.delete(message);
      clearTimeout(timer);
      resolve(answer);
    };
    const timer = setTimeout(() => end(false), 250);
    waiting.set(message, () => end(true));
    channel.postMessage({ kind: "who-reads", message, from: tab } satisfies Note);
  });
}
