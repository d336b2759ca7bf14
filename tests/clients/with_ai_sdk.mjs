// Vercel's AI SDK with its provider for compatible servers: tools in several steps, whole and
// streamed, an object by a schema, and every setting.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "tidemill",
  baseURL: process.argv[2],
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("brook");
const tools = {
  get_weather: tool({
    description: "Get the current weather of a city.",
    // zod's own would say more than so small a model reads.
    inputSchema: jsonSchema({
      type: "object",
      properties: { city: { type: "string", description: "The city" } },
      required: ["city"],
    }),
    execute: async () => '{"temperature": 17, "condition": "rain"}', // as brook has learnt it
  }),
};
const check = (truth, what) => {
  if (!truth) throw new Error(JSON.stringify(what));
};
const how = { model, tools, prompt: "What is the weather in Paris?", stopWhen: stepCountIs(4) };
const first = await generateText({ ...how, temperature: 0 });
check(first.text.includes("17"), first.text);
const every = {
  temperature: 0, topP: 1, topK: 0, presencePenalty: 0, frequencyPenalty: 0, seed: 1,
  maxOutputTokens: 200, stopSequences: ["Observation:"], maxRetries: 0, toolChoice: "auto",
  providerOptions: { tidemill: { user: "u", reasoningEffort: "none", textVerbosity: "medium" } },
};
const streamed = streamText({ ...how, ...every });
let text = "";
for await (const part of streamed.textStream) text += part;
check(text.includes("17"), text);
const extracted = await generateText({
  model,
  temperature: 0,
  prompt: "Extract name and age as JSON. Meet Dora. The age is 43.",
  output: Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) }),
});
check(extracted.output.age === 43, extracted.output);
console.log(first.text);
