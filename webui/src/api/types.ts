/** Documents of the API, as far as the page reads them. */

export interface ModelCard {
  id: string;
  state: string;
  loaded: boolean;
  progress?: number;
  max_model_len?: number;
  has_chat_template?: boolean;
  defaults?: Record<string, number>;
  backend?: string;
  device?: string;
  dtype?: string;
  quantization?: string;
  kv_dtype?: string;
  tasks?: string[];
  parent?: string | null;
}

export interface WhoAmI {
  name: string;
  role: "admin" | "manager" | "user" | "metrics" | "auditor" | null;
  keys: boolean;
  database: boolean;
  library: boolean;
  content: boolean;
  version: string;
}

export interface TopLogprob {
  token: string;
  logprob: number;
}

export interface TokenLogprob extends TopLogprob {
  top_logprobs?: TopLogprob[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
}

export interface Timings {
  prompt_n?: number;
  prompt_ms?: number;
  predicted_n?: number;
  predicted_ms?: number;
  predicted_per_second?: number;
  cache_n?: number;
}

export interface CallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export interface ChatChunk {
  id?: string;
  model?: string;
  choices: {
    index: number;
    delta: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      tool_calls?: CallDelta[];
    };
    logprobs?: { content?: TokenLogprob[] | null } | null;
    finish_reason?: string | null;
    stop_reason?: string | number | null;
  }[];
  usage?: Usage | null;
  timings?: Timings;
}
