// Anthropic's client for JavaScript: tools, streams, errors.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({
  baseURL: process.argv[2].replace(/\/v1$/, ""),
  apiKey: "none",
  maxRetries: 0,
});
const tool = {
  name: "get_weather",
  description: "Get the current weather of a city.",
  input_schema: {
    type: "object",
    properties: { city: { type: "string", description: "The city" } },
    required: ["city"],
  },
};
const how = { model: "brook", max_tokens: 200, temperature: 0, tools: [tool] };
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const first = await client.messages.create({ ...how, messages });
assert.equal(first.stop_reason, "tool_use");
const streamed = await client.messages.stream({ ...how, messages }).finalMessage();
const plain = (message) => message.content.map((block) => ({ ...block, id: null }));
assert.deepEqual(plain(streamed), plain(first));
const call = first.content.find((block) => block.type === "tool_use");
assert.deepEqual(call.input, { city: "Paris" });
const content = '{"temperature": 17, "condition": "rain"}';
messages.push({ role: "assistant", content: first.content });
messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content }] });
let text = "";
const last = await client.messages
  .stream({ ...how, messages })
  .on("text", (part) => (text += part))
  .finalMessage();
assert.equal(last.content[0].text, text);
const counted = await client.messages.countTokens({ model: "brook", messages, tools: [tool] });
assert.ok(counted.input_tokens > 50);
await assert.rejects(
  client.messages.create({ ...how, messages, model: "claude-none" }),
  Anthropic.NotFoundError,
);
console.log(text);
