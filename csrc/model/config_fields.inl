// A model as the bindings describe it, stated once: config.h makes structs of it, bindings.cpp Python
// classes. Fields that models/layers.py and models/spec.py have too have the same name there, and are
// copied by name (backends/native/fields.py); tests/backends/test_native_fields.py checks all of it.
//
//   STRUCT(name) or DERIVED(name, base), then FIELD(name, default, type), then END
//
// The int that stands for a matrix, a vector or a constant is its WeightStore id; -1: none.

STRUCT(NormConfig)
FIELD(weight, -1, int)
FIELD(bias, -1, int)
END

STRUCT(LinearConfig)
FIELD(weight, -1, int)
FIELD(bias, -1, int)
END

STRUCT(FeedForwardConfig)
FIELD(gate, {}, LinearConfig)
FIELD(up, {}, LinearConfig)
FIELD(down, {}, LinearConfig)
FIELD(activation, 0, int)
FIELD(gate_scale, 1, float)
END

STRUCT(ExpertsConfig)
FIELD(experts, {}, std::vector<FeedForwardConfig>)  // empty: no experts
FIELD(router, {}, LinearConfig)
FIELD(shared_gate, {}, LinearConfig)
FIELD(shared, {}, FeedForwardConfig)
FIELD(router_norm, {}, NormConfig)  // this and the next three: all or none
FIELD(experts_norm, {}, NormConfig)
FIELD(experts_post, {}, NormConfig)
FIELD(shared_post, {}, NormConfig)
FIELD(expert_scales, -1, int)
FIELD(router_scale, 1, float)
FIELD(e_score_correction_bias, -1, int)
FIELD(top_k, 0, int)
FIELD(scoring, 0, int)
FIELD(groups, 1, int)
FIELD(top_groups, 1, int)
FIELD(normalize, true, bool)
FIELD(scale_inputs, false, bool)
FIELD(scale, 1, float)
FIELD(jitter, 0, float)
END

STRUCT(RecurrentShape)
FIELD(key_heads, 0, int64_t)
FIELD(value_heads, 0, int64_t)
FIELD(key_dim, 0, int64_t)
FIELD(value_dim, 0, int64_t)
FIELD(conv_kernel, 0, int64_t)
FIELD(delta, false, bool)        // gated delta rule; else Mamba-2
FIELD(norm_groups, 0, int64_t)   // groups of the output norm; 0: no norm
FIELD(norm_shared, false, bool)  // all groups share their weights
FIELD(gate_first, false, bool)   // gate before the norm, not after
FIELD(tiled, false, bool)        // value head h uses key head h % key_heads
FIELD(time_min, 0, float)
FIELD(time_max, 0, float)
FIELD(z_scale, 1, float)  // this and the next four: of Mamba-2's projections
FIELD(x_scale, 1, float)
FIELD(b_scale, 1, float)
FIELD(c_scale, 1, float)
FIELD(a_scale, 1, float)
END

DERIVED(RecurrentConfig, RecurrentShape)
FIELD(qkv, {}, LinearConfig)  // qkv.weight -1: the layer has no recurrent mixer
FIELD(z, {}, LinearConfig)
FIELD(a, {}, LinearConfig)
FIELD(b, {}, LinearConfig)
FIELD(out, {}, LinearConfig)
FIELD(conv, -1, int)
FIELD(conv_bias, -1, int)
FIELD(a_log, -1, int)
FIELD(a_bias, -1, int)
FIELD(skip, -1, int)
FIELD(norm, -1, int)
END

STRUCT(LatentShape)
FIELD(rank, 0, int64_t)   // width of the latent; 0: no latent attention
FIELD(rope, 0, int64_t)   // width of the rotated key
FIELD(nope, 0, int64_t)   // width of a head's unrotated query
FIELD(value, 0, int64_t)  // width of a head's output
FIELD(norm_eps, 0, float)
END

DERIVED(LatentConfig, LatentShape)
FIELD(q_down, {}, LinearConfig)
FIELD(kv_down, {}, LinearConfig)
FIELD(q_norm, {}, NormConfig)
FIELD(kv_norm, {}, NormConfig)
FIELD(k_up, {}, std::vector<LinearConfig>)
FIELD(v_up, {}, std::vector<LinearConfig>)
END

STRUCT(LayerConfig)
FIELD(heads, 0, int32_t)
FIELD(kv_heads, 0, int32_t)
FIELD(head_dim, 0, int32_t)
FIELD(v_dim, 0, int32_t)
FIELD(scale, 0, float)
FIELD(softcap, 0, float)
FIELD(clip, 0, float)
FIELD(temperature_scale, 0, float)
FIELD(temperature_floor, 0, float)
FIELD(temperature_shift, 1, int)
FIELD(window, 0, int64_t)
FIELD(chunked, false, bool)
FIELD(rope, -1, int)
FIELD(cache_group, 0, int)
FIELD(kv_layer, -1, int)  // earlier layer whose K and V are read; -1: its own
FIELD(slopes, -1, int)
FIELD(sinks, -1, int)
FIELD(q, {}, LinearConfig)
FIELD(k, {}, LinearConfig)
FIELD(v, {}, LinearConfig)
FIELD(o, {}, LinearConfig)
FIELD(gate, {}, LinearConfig)
FIELD(recurrent, {}, RecurrentConfig)
FIELD(latent, {}, LatentConfig)
FIELD(attn_norm, {}, NormConfig)
FIELD(attn_post_norm, {}, NormConfig)
FIELD(mlp_norm, {}, NormConfig)
FIELD(mlp_post_norm, {}, NormConfig)
FIELD(q_norm, {}, NormConfig)
FIELD(k_norm, {}, NormConfig)
FIELD(v_norm, {}, NormConfig)
FIELD(qk_scope, 0, int)
FIELD(qk_layer_norm, false, bool)
FIELD(qk_after_rope, false, bool)
FIELD(parallel, false, bool)
FIELD(mlp, {}, FeedForwardConfig)
FIELD(moe, {}, ExpertsConfig)
FIELD(mixer_scale, 1, float)
FIELD(parallel_scale, 1, float)
FIELD(mlp_scale, 1, float)
FIELD(input_gate, {}, LinearConfig)
FIELD(input_out, {}, LinearConfig)
FIELD(input_post, {}, NormConfig)
FIELD(scale_id, -1, int)  // a vector with one value
END

STRUCT(LayerInputsConfig)
FIELD(width, 0, int64_t)
FIELD(vocab, 0, int64_t)
FIELD(activation, 0, int)
FIELD(embed_scale, 1, float)
FIELD(projection_scale, 1, float)
FIELD(sum_scale, 1, float)
FIELD(embedding, -1, int)  // a matrix, or -1: rows stay in the model file
FIELD(embedding_type, 0, int)
FIELD(projection, {}, LinearConfig)
FIELD(norm, {}, NormConfig)
END

STRUCT(ModelConfig)
FIELD(rank, 0, int)   // this process computes the part of this rank of a model of `ranks` parts: its
FIELD(ranks, 1, int)  // matrices and heads are those of the part, all other sizes the model's
FIELD(stage, 0, int)   // this process computes these of the model's layers (runtime/stage.h), the first one
FIELD(stages, 1, int)  // also the embedding and the output; what another computes is not described
FIELD(vocab, 0, int64_t)
FIELD(hidden, 0, int64_t)
FIELD(max_positions, 0, int64_t)
FIELD(norm_eps, 0, float)
FIELD(layer_norms, false, bool)
FIELD(embed_scale, 1, float)
FIELD(residual_scale, 1, float)
FIELD(logit_scale, 1, float)
FIELD(logit_softcap, 0, float)
FIELD(layers, {}, std::vector<LayerConfig>)
FIELD(ropes, {}, std::vector<std::vector<float>>)  // inverse frequencies
FIELD(rope_scales, {}, std::vector<float>)         // of cosines and sines
FIELD(group_windows, {}, std::vector<int64_t>)     // per cache group; 0: full attention
FIELD(kv_type, 0, int)
FIELD(block_size, 0, int)
FIELD(embedding, -1, int)  // a matrix, or -1: rows stay in the model file
FIELD(embedding_type, 0, int)
FIELD(positions, -1, int)
FIELD(types, -1, int)
FIELD(causal, true, bool)
FIELD(norm_sums, false, bool)
FIELD(embed_norm, {}, NormConfig)
FIELD(final_norm, {}, NormConfig)
FIELD(lm_head, {}, LinearConfig)
FIELD(inputs, {}, LayerInputsConfig)
END
