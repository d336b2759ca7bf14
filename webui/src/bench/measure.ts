/** Measures what a client of this server sees: streams with distinct prompts, so many at a time. */
import { openStream } from "../api/stream";
import type { ChatChunk } from "../api/types";

export interface BenchOptions {
  model: string;
  requests: number;
  concurrency: number;
  /** Words of each prompt. */
  prompt: number;
  /** Of each answer. */
  tokens: number;
}

export interface Quantiles {
  p50: number;
  p90: number;
  p99: number;
  most: number;
}

export interface Report {
  options: BenchOptions;
  at: string;
  seconds: number;
  tokens: number;
  failed: number;
  tokensPerSecond: number;
  requestsPerSecond: number;
  ttft: Quantiles;
  gaps: Quantiles;
  whole: Quantiles;
}

interface Sample {
  ttft: number;
  gaps: number[];
  whole: number;
  tokens: number;
}

export async function measure(options: BenchOptions, onDone: (count: number) => void, signal: AbortSignal): Promise<Report> {
  const samples: Sample[] = [];
  let [next, done, failed] = [0, 0, 0];
  let failure: unknown;
  const began = performance.now();
  const worker = async () => {
    while (next < options.requests && !signal.aborted) {
      const index = next++;
      try {
        samples.push(await one(options, index, signal));
      } catch (error) {
        if (signal.aborted) throw error;
        failed += 1;
        failure = error;
      }
      onDone(++done);
    }
  };
  await Promise.all(Array.from({ length: options.concurrency }, worker));
  if (!samples.length) throw failure;
  const seconds = (performance.now() - began) / 1000;
  const tokens = samples.reduce((sum, sample) => sum + sample.tokens, 0);
  return {
    options,
    at: new Date().toISOString(),
    seconds,
    tokens,
    failed,
    tokensPerSecond: tokens / seconds,
    requestsPerSecond: samples.length / seconds,
    ttft: quantiles(samples.map((sample) => sample.ttft)),
    gaps: quantiles(samples.flatMap((sample) => sample.gaps)),
    whole: quantiles(samples.map((sample) => sample.whole)),
  };
}

async function one(options: BenchOptions, index: number, signal: AbortSignal): Promise<Sample> {
  const body = {
    model: options.model,
    messages: [{ role: "user", content: words(options.prompt, index) }],
    max_tokens: options.tokens,
    ignore_eos: true,
    stream: true,
    stream_options: { include_usage: true },
  };
  const began = performance.now();
  const times: number[] = [];
  let tokens = 0;
  const stream = openStream("v1/chat/completions", body, "", {
    onEvent: (data) => {
      const chunk = data as ChatChunk;
      const delta = chunk.choices[0]?.delta;
      if (delta?.content || delta?.reasoning_content) times.push(performance.now());
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
    },
  });
  signal.addEventListener("abort", stream.stop, { once: true });
  await stream.done;
  const end = performance.now();
  return {
    ttft: ((times[0] ?? end) - began) / 1000,
    gaps: times.slice(1).map((time, at) => (time - times[at]!) / 1000),
    whole: (end - began) / 1000,
    tokens: tokens || times.length,
  };
}

const WORDS = "river stone cloud lantern winter garden market bridge harbour meadow copper candle sparrow orchard".split(" ");

/** A prompt that no other request begins like, so that no cached prefix is measured. */
function words(count: number, index: number): string {
  const start = `${Date.now().toString(36)}-${index}`;
  return [start, ...Array.from({ length: count }, (_, at) => WORDS[(at * 7 + index) % WORDS.length]!)].join(" ");
}

function quantiles(values: number[]): Quantiles {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (part: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99), most: sorted.at(-1) ?? 0 };
}
