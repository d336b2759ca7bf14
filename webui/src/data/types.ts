/** What is kept in the browser. One row a message, so that a long conversation is never rewritten whole. */
import type { TokenLogprob, Timings, Usage } from "../api/types";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Attachment {
  name: string;
  text: string;
}

export type MessageState = "streaming" | "stopped" | "interrupted" | "error";

export interface Message {
  id: string;
  conversation: string;
  /** Order of creation within the conversation. */
  seq: number;
  /** The message before it; siblings (messages with the same parent) are versions of each other. */
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  thinking?: string;
  calls?: ToolCall[];
  /** Of a tool's result: the call that it answers. */
  callId?: string;
  attachments?: Attachment[];
  model?: string;
  created: number;
  /** Absent once it is complete. */
  state?: MessageState;
  finish?: string;
  usage?: Usage;
  timings?: Timings;
  logprobs?: TokenLogprob[];
  error?: string;
  requestId?: string;
  /** While it streams: the request and the last event that is in this row, for a reload. */
  resume?: { body: unknown; eventId: string; at: number };
}

export interface CustomTool {
  name: string;
  description: string;
  /** JSON schema of the arguments, as text. */
  parameters: string;
}

/** What a request says beside its messages. Absent parameters are left to the model. */
export interface Settings {
  model: string;
  system: string;
  parameters: Record<string, number>;
  stop: string[];
  thinking: "default" | "on" | "off";
  logprobs: boolean;
  builtinTools: string[];
  tools: CustomTool[];
  format: "text" | "json" | "schema";
  schema: string;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  /** The last message of the branch that is shown. */
  leaf: string | null;
  /** It is kept on the server, too. */
  remote?: boolean;
  settings: Settings;
}

export interface Preset {
  name: string;
  settings: Settings;
}

export interface Vote {
  id: string;
  at: number;
  /** What was compared, as it is shown (model and settings). */
  sides: string[];
  /** Index of the best one; -1: all the same; -2: all bad. */
  winner: number;
}

export const DEFAULT_SETTINGS: Settings = {
  model: "",
  system: "",
  parameters: {},
  stop: [],
  thinking: "default",
  logprobs: false,
  builtinTools: [],
  tools: [],
  format: "text",
  schema: '{\n  "type": "object",\n  "properties": {\n    "answer": { "type": "string" }\n  },\n  "required": ["answer"]\n}',
};
