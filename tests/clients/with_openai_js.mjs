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
// Responses: a call and its result, streamed.
const flat = [{ type: "function", name: "get_weather", description, parameters, strict: false }];
const ask = { model, temperature: 0, tools: flat };
const asked = await client.responses.create({ ...ask, input: "What is the weather in Paris?" });
const [called] = asked.output.filter((item) => item.type === "function_call");
check(JSON.parse(called.arguments).city === "Paris", asked);
const output = { type: "function_call_output", call_id: called.call_id, output: content };
const next = { ...ask, input: [output], previous_response_id: asked.id };
check((await client.responses.create(next)).output_text.includes("17"), "responses.create");
const responding = client.responses.stream(next);
let text = "";
responding.on("response.output_text.delta", (event) => (text += event.delta));
check((await responding.finalResponse()).output_text === text && text.includes("17"), text);
console.log(last.content);
