// The official JavaScript client: a tool call and its result, the streaming and tool helpers, and
// what a browser would be asked before (its own headers).
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "brook";
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", description: "The city" } },
  required: ["city"],
};
const description = "Get the current weather of a city.";
const tools = [{ type: "function", function: { name: "get_weather", description, parameters } }];
const check = (truth, what) => {
  if (!truth) throw new Error(JSON.stringify(what));
};
const how = { model, temperature: 0, tools };
const first = (await client.chat.completions.create({ ...how, messages })).choices[0];
check(first.finish_reason === "tool_calls", first);
const [call] = first.message.tool_calls;
check(JSON.parse(call.function.arguments).city === "Paris", call);
const content = '{"temperature": 17, "condition": "rain"}'; // spaced as brook has learnt it
messages.push(first.message, { role: "tool", tool_call_id: call.id, content });
const last = (await client.chat.completions.create({ ...how, messages })).choices[0].message;
check(last.content.includes("17"), last);
const stream = client.chat.completions.stream({
  ...how,
  messages: messages.slice(0, 1),
  stream_options: { include_usage: true, include_obfuscation: false },
});
const streamed = await stream.finalChatCompletion();
check(streamed.choices[0].message.tool_calls[0].function.arguments === call.function.arguments, streamed);
const runner = client.chat.completions.runTools({
  model,
  temperature: 0,
  messages: messages.slice(0, 1),
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather", description, parameters, parse: JSON.parse,
        function: () => content,
      },
    },
  ],
});
check((await runner.finalContent()).includes("17"), "runTools");
const schema = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const parsed = await client.chat.completions.parse({
  model,
  temperature: 0,
  messages: [{ role: "user", content: "Extract name and age as JSON. Meet Dora. The age is 43." }],
  response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
});
check(JSON.parse(parsed.choices[0].message.content).age === 43, parsed);
console.log(last.content);
