// Ollama's own client for JavaScript: chat, tools, structure, streams, embeddings, lists, errors.

import assert from "node:assert";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.argv[2].replace(/\/v1$/, "") });
const how = { model: "brook", options: { temperature: 0 } };
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "The city" } },
      required: ["city"],
    },
  },
};
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const first = await client.chat({ ...how, messages, tools: [tool] });
const call = first.message.tool_calls[0];
assert.deepEqual(call.function.arguments, { city: "Paris" });
const result = `{"temperature": 17, "condition": "rain"}`;
messages.push(first.message, { role: "tool", tool_name: call.function.name, content: result });
const last = await client.chat({ ...how, messages, tools: [tool] });
assert(last.message.content.includes("17"));
let text = "";
for await (const part of await client.chat({ ...how, messages, tools: [tool], stream: true })) {
  text += part.message.content;
}
assert.equal(text, last.message.content);
const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
};
const ask = [
  { role: "user", content: "Extract name and age as JSON. Meet Dora. The age is 43." },
];
const structured = await client.chat({ ...how, messages: ask, format: person });
assert.deepEqual(JSON.parse(structured.message.content), { name: "Dora", age: 43 });
assert((await client.generate({ ...how, prompt: "The sky", raw: true })).response);
assert.equal((await client.embed({ model: "brook", input: ["a", "b"] })).embeddings.length, 2);
assert.equal((await client.list()).models[0].name, "brook");
assert((await client.ps()).models[0].size > 0);
assert((await client.show({ model: "brook" })).capabilities.includes("tools"));
assert((await client.version()).version);
await assert.rejects(client.chat({ ...how, model: "nope", messages }), /nope/);
await assert.rejects(client.generate({ ...how, prompt: "a", options: { mirostat: 1 } }), /mirostat/);
console.log(last.message.content);
