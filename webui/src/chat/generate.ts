/** Generation of answers: requests, streams, and what becomes of a stream when the page is reloaded. */
import { signal } from "@preact/signals";
import { ApiError } from "../api/client";
import { RESUME_MS, openStream, type OpenStream } from "../api/stream";
import type { ChatChunk } from "../api/types";
import * as conversations from "../data/conversations";
import { claim, readElsewhere } from "../data/tabs";
import type { Message, Settings, ToolCall } from "../data/types";
import { chatBody } from "./request";

/** How often a message that streams is written to the browser's database, in milliseconds. */
const SAVE_MS = 400;

interface Running {
  stream: OpenStream | null;
  stopped: boolean;
}

const running = new Map<string, Running>();

/** Ids of the messages that this tab is streaming. */
export const streaming = signal<ReadonlySet<string>>(new Set());

conversations.onStreaming((id) => running.has(id));

const PATH = "v1/chat/completions";

/** Answer the branch that ends in `parent`; the answer becomes the end of the open conversation. */
export async function generate(parent: string, settings: Settings, model: string): Promise<Message> {
  const path = conversations.currentTree().path(parent);
  const body = chatBody(path, settings, model);
  const message = conversations.makeMessage({
    role: "assistant",
    content: "",
    parent,
    model,
    state: "streaming",
    resume: { body, eventId: "", at: Date.now() },
  });
  await conversations.append(message);
  return run(message, body);
}

/** Go on with an answer that was stopped or cut off, as a new state of the same message. */
export async function continueAnswer(message: Message, settings: Settings): Promise<Message> {
  const path = conversations.currentTree().path(message.id);
  const body = {
    ...chatBody(path, settings, message.model ?? settings.model),
    continue_final_message: true,
    add_generation_prompt: false,
  };
  const next: Message = { ...message, state: "streaming", error: undefined, resume: { body, eventId: "", at: Date.now() } };
  conversations.update(next);
  return run(next, body);
}

/** Read on the streams of the open conversation that a reload has interrupted. */
export async function resumeStreams(): Promise<void> {
  for (const message of conversations.currentTree().all()) {
    if (message.state !== "streaming" || running.has(message.id)) continue;
    if (await readElsewhere(message.id)) continue;
    // Meanwhile this tab may have begun it, or another one have ended it.
    const now = conversations.currentTree().get(message.id);
    if (!now || now.state !== "streaming" || running.has(now.id)) continue;
    if (now.resume?.eventId) void run(now, now.resume.body, now.resume.eventId);
    else conversations.update({ ...now, state: "interrupted", resume: undefined });
  }
}

/** Stop an answer: what has come stays, and the server stops computing it. */
export function stop(id: string): void {
  const one = running.get(id);
  if (!one || one.stopped) return;
  one.stopped = true;
  one.stream?.stop();
  const message = conversations.currentTree().get(id);
  if (message) conversations.update({ ...message, state: "stopped", resume: undefined });
}

async function run(message: Message, body: unknown, lastId = ""): Promise<Message> {
  const one: Running = { stream: null, stopped: false };
  let eventId = lastId;
  running.set(message.id, one);
  publish();
  const release = claim(message.id);
  const answer = new Answer(message);
  let drawn = 0;
  let saved = Date.now();
  const draw = () => {
    drawn = 0;
    if (one.stopped || running.get(message.id) !== one) return; // it has ended since
    const keep = Date.now() - saved > SAVE_MS;
    if (keep) saved = Date.now();
    conversations.update(answer.state(body, eventId), keep);
  };
  try {
    one.stream = openStream(PATH, body, lastId, {
      onStart: (requestId) => answer.requested(requestId),
      onEvent: (data, id) => {
        eventId = id;
        answer.add(data as ChatChunk);
        drawn ||= schedule(draw);
      },
    });
    await one.stream.done;
    if (!one.stopped) conversations.update(answer.end());
  } catch (error) {
    if (!one.stopped) conversations.update(answer.fail(error));
  } finally {
    if (drawn) unschedule(drawn);
    running.delete(message.id);
    release();
    publish();
  }
  return answer.message;
}

/** Once a frame; a tab that is not shown has none. */
function schedule(draw: () => void): number {
  return window.setTimeout(() => (document.hidden ? draw() : requestAnimationFrame(draw)), document.hidden ? 300 : 24);
}

function unschedule(timer: number): void {
  clearTimeout(timer);
}

function publish(): void {
  streaming.value = new Set(running.keys());
}

/** An answer as its chunks add up. */
export class Answer {
  message: Message;

  constructor(message: Message) {
    this.message = { ...message };
  }

  requested(requestId: string): void {
    if (requestId && !this.message.requestId) this.message = { ...this.message, requestId };
  }

  add(chunk: ChatChunk): void {
    const next = this.message;
    if (chunk.usage) next.usage = chunk.usage;
    if (chunk.timings) next.timings = chunk.timings;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { delta } = choice;
    if (delta.content) next.content += delta.content;
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) next.thinking = (next.thinking ?? "") + thought;
    if (delta.tool_calls) next.calls = addCalls(next.calls ?? [], delta.tool_calls);
    if (choice.logprobs?.content) next.logprobs = [...(next.logprobs ?? []), ...choice.logprobs.content];
    if (choice.finish_reason) next.finish = choice.finish_reason;
  }

  state(body: unknown, eventId: string): Message {
    return { ...this.message, state: "streaming", resume: { body, eventId, at: Date.now() } };
  }

  end(): Message {
    this.message = { ...this.message, state: undefined, resume: undefined };
    return this.message;
  }

  fail(error: unknown): Message {
    const old = Date.now() - (this.message.resume?.at ?? 0) > RESUME_MS;
    const lost = error instanceof ApiError && (error.code === "stream_not_found" || (error.status === 0 && old));
    const text = error instanceof ApiError ? error.message : String(error);
    this.message = {
      ...this.message,
      state: lost ? "interrupted" : "error",
      error: lost ? undefined : text,
      resume: undefined,
    };
    return this.message;
  }
}

function addCalls(calls: ToolCall[], deltas: NonNullable<ChatChunk["choices"][0]["delta"]["tool_calls"]>): ToolCall[] {
  const next = [...calls];
  for (const delta of deltas) {
    const before = next[delta.index] ?? { id: "", name: "", arguments: "" };
    next[delta.index] = {
      id: delta.id || before.id,
      name: before.name + (delta.function?.name ?? ""),
      arguments: before.arguments + (delta.function?.arguments ?? ""),
    };
  }
  return next;
}
