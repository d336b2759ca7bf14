/** What people do in a conversation: send, regenerate, edit, answer a call. */
import { chatModels } from "../api/server";
import * as conversations from "../data/conversations";
import type { Attachment, Message } from "../data/types";
import { notifyError } from "../ui/notice";
import { generate } from "./generate";
import { answerCall } from "./tools";

/** So often in a row the page answers calls by itself. */
const MAX_ROUNDS = 8;

/** The model that answers: the one that was chosen, or the first one. */
export function modelInUse(): string {
  const chosen = conversations.current.value.settings.model;
  const known = chatModels.value;
  if (chosen && (known.length === 0 || known.some((card) => card.id === chosen))) return chosen;
  return known[0]?.id ?? "";
}

export async function send(text: string, attachments: Attachment[]): Promise<void> {
  const message = conversations.makeMessage({
    role: "user",
    content: text,
    parent: conversations.current.value.leaf,
    ...(attachments.length ? { attachments } : {}),
  });
  await conversations.append(message);
  await answer(message.id);
}

/** A further version of an answer. */
export async function regenerate(message: Message): Promise<void> {
  if (message.parent !== null) await answer(message.parent);
}

/** A further version of a message; one of the person's is answered anew. */
export async function edit(message: Message, content: string): Promise<void> {
  const next = conversations.makeMessage({
    role: message.role,
    content,
    parent: message.parent,
    attachments: message.attachments,
    thinking: message.thinking,
    model: message.model,
  });
  await conversations.append(next);
  if (message.role === "user") await answer(next.id);
}

/** A result that a person gives to a call; the answer follows when every call has one. */
export async function giveResult(message: Message, callId: string, content: string): Promise<void> {
  const given = resultsOf(message);
  const parent = given.at(-1)?.id ?? message.id;
  const result = conversations.makeMessage({ role: "tool", content, parent, callId });
  await conversations.append(result);
  if (given.length + 1 === message.calls?.length) await answer(result.id);
}

/** The results that follow a message with calls on the branch that is shown. */
export function resultsOf(message: Message): Message[] {
  const path = conversations.branch.value;
  const at = path.findIndex((one) => one.id === message.id);
  const rest = path.slice(at + 1);
  const end = rest.findIndex((one) => one.role !== "tool");
  return end < 0 ? rest : rest.slice(0, end);
}

/** Generate an answer, and further ones while the page itself can answer the calls in it. */
export async function answer(parent: string): Promise<void> {
  const { id, settings } = conversations.current.value;
  try {
    let message = await generate(parent, settings, modelInUse());
    for (let round = 0; round < MAX_ROUNDS && message.calls?.length && !message.state; round++) {
      if (conversations.current.value.id !== id) return;
      const results = message.calls.map((call) => answerCall(call.name, call.arguments, settings.builtinTools));
      let last = message.id;
      for (const [index, content] of results.entries()) {
        if (content === undefined) return; // a person answers this one, and those after it
        const result = conversations.makeMessage({ role: "tool", content, parent: last, callId: message.calls[index]!.id });
        await conversations.append(result);
        last = result.id;
      }
      message = await generate(last, settings, modelInUse());
    }
  } catch (error) {
    notifyError(error);
  }
}
