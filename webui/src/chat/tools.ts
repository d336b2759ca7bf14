/** Functions that the page itself can carry out when a model calls them. */
import { calculate } from "./calculator";

export interface BuiltinTool {
  name: string;
  definition: unknown;
  run(args: Record<string, unknown>): string;
}

function define(name: string, description: string, properties: Record<string, unknown>, required: string[]): unknown {
  const parameters = { type: "object", properties, required };
  return { type: "function", function: { name, description, parameters } };
}

export const builtinTools: BuiltinTool[] = [
  {
    name: "calculator",
    definition: define(
      "calculator",
      "Compute an arithmetic expression.",
      { expression: { type: "string", description: "For instance (12 + 7) * 3" } },
      ["expression"],
    ),
    run: (args) => String(calculate(String(args["expression"] ?? ""))),
  },
  {
    name: "current_time",
    definition: define("current_time", "The current date and time.", {}, []),
    run: () => new Date().toString(),
  },
];

/** The result of a call, or undefined where a person has to answer it. */
export function answerCall(name: string, text: string, enabled: string[]): string | undefined {
  const tool = builtinTools.find((one) => one.name === name && enabled.includes(name));
  if (!tool) return undefined;
  try {
    return tool.run(JSON.parse(text || "{}") as Record<string, unknown>);
  } catch (error) {
    return `error: ${error instanceof Error ? error.message : String(error)}`;
  }
}
