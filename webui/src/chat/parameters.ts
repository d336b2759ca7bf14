/** Parameters of sampling that the page offers; each has texts `param.NAME` and `param.NAME.help`. */
export interface Parameter {
  name: "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens" | "seed" | "repetition_penalty" | "presence_penalty" | "frequency_penalty";
  min: number;
  max: number;
  step: number;
}

export const PARAMETERS: Parameter[] = [
  { name: "temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", min: 0, max: 1, step: 0.01 },
  { name: "top_k", min: 0, max: 1000, step: 1 },
  { name: "min_p", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", min: 1, max: 1_000_000, step: 1 },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
  { name: "repetition_penalty", min: 0.5, max: 2, step: 0.01 },
  { name: "presence_penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", min: -2, max: 2, step: 0.1 },
];
