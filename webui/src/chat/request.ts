/** The body of a chat request, from messages and settings. */
import type { Message, Settings } from "../data/types";
import { builtinTools } from "./tools";

interface ChatMessage {
  role: string;
  content: string | null;
  tool_calls?: unknown[];
  tool_call_id?: string;
}

export function chatBody(path: Message[], settings: Settings, model: string): Record<string, unknown> {
  const messages: ChatMessage[] = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const message of path) messages.push(...chatMessage(message));
  return {
    messages,
    ...(model ? { model } : {}),
    stream: true,
    stream_options: { include_usage: true },
    include_timings: true,
    ...settings.parameters,
    ...(settings.stop.length ? { stop: settings.stop } : {}),
    ...(settings.thinking === "default" ? {} : { enable_thinking: settings.thinking === "on" }),
    ...(settings.logprobs ? { logprobs: true, top_logprobs: 5 } : {}),
    ...toolFields(settings),
    ...formatFields(settings),
  };
}

function chatMessage(message: Message): ChatMessage[] {
  if (message.role === "tool") {
    return [{ role: "tool", content: message.content, tool_call_id: message.callId ?? "" }];
  }
  if (message.role === "assistant") {
    if (!message.content && !message.calls?.length) return [];
    const calls = message.calls?.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    return [{ role: "assistant", content: message.content || null, ...(calls?.length ? { tool_calls: calls } : {}) }];
  }
  const files = (message.attachments ?? []).map((file) => `File ${file.name}:\n\n${file.text}\n`);
  return [{ role: "user", content: [...files, message.content].join("\n").trim() }];
}

function toolFields(settings: Settings): Record<string, unknown> {
  const own = settings.tools.map((tool) => ({
    type: "function",
    function: { name: tool.name, description: tool.description, parameters: JSON.parse(tool.parameters || "{}") },
  }));
  const tools = [...builtinTools.filter((tool) => settings.builtinTools.includes(tool.name)).map((tool) => tool.definition), ...own];
  return tools.length ? { tools } : {};
}

function formatFields(settings: Settings): Record<string, unknown> {
  if (settings.format === "json") return { response_format: { type: "json_object" } };
  if (settings.format !== "schema") return {};
  return {
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.schema) } },
  };
}
