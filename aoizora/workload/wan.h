#pragma once
#include <array>

#include "aoizora/workload/workload.h"

namespace aoizora::workload {

/// Sizes of a Wan 2.1 transformer under the names of the public checkpoint's config.
struct WanConfig {
  std::int64_t num_attention_heads = 40;
  std::int64_t attention_head_dim = 128;
  std::int64_t ffn_dim = 13824;
  std::int64_t num_layers = 40;
  std::int64_t text_dim = 4096;
  std::int64_t text_length = 512;
  std::int64_t freq_dim = 256;
  std::int64_t patch_t = 1, patch_h = 2, patch_w = 2;
  std::int64_t in_channels = 16;
  std::int64_t out_channels = 16;
  std::int64_t embed() const { return num_attention_heads * attention_head_dim; }
};

/// The published sizes of "wan2.1-14b" and "wan2.1-1.3b".
WanConfig wan_config(const std::string& model);

/// The latents a request denoises: [batch, channels, frames, height, width]. Throws as make_workload does.
std::array<std::int64_t, 5> latent_shape(const Request& request);

/// The config as JSON text with the keys above.
std::string to_json(const WanConfig& config);

/// The config from JSON text with the keys above; missing keys take the 14B model's size, unknown ones are refused.
WanConfig read_wan_config(const std::string& json);

/// The table of a Wan transformer on latents of [batch, in_channels, latent_frames, latent_height, latent_width].
/// Weights carry the public checkpoint's names (transposed to [in, out] for matrices), in a fixed order; the model's
/// JAX code builds its parameters from this table, so there is one list. Throws InvalidRequest where the patch does not
/// divide the latent.
Workload wan_workload(const WanConfig& config, std::int64_t batch, std::int64_t latent_frames,
                      std::int64_t latent_height, std::int64_t latent_width, DType dtype);

}  // namespace aoizora::workload
