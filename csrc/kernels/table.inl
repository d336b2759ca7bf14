// The kernel table of one instruction set, from the kernels included before it.
const KernelTable& kernel_table() {
  static const KernelTable table = {
      kIsaName,   act_type,       panel_bytes, pack_panel,         act_row_bytes, pack_act,
      act_part,   pack_act_part,
      gemm,       unpack_row,     low_rank_down, low_rank_up,
      to_float,    rms_norm,           layer_norm,    add_rows,
      add_scaled, scale_row,      clamp_row,   softcap_row,        activate,      rope,
      kv_block_bytes,             kv_write,    kv_read,            kv_export,     kv_import,
      attn_scratch_bytes,         attn_span,   attn_merge,         attn_finish,   conv_token,
      scan_head,                  max_value,
      sum_exp,
  };
  return table;
}
