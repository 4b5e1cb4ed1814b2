#include "aoizora/workload/wan.h"

#include <initializer_list>
#include <limits>
#include <utility>

#include "aoizora/errors.h"

namespace aoizora::workload {
namespace {

constexpr std::int64_t kMaxTokens =
    std::numeric_limits<std::int32_t>::max();  // positions are 32-bit integers on the device

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result))
      throw InvalidRequest("a tensor of this size has more than 2^63 elements");
  }
  return result;
}

void require_positive(std::string_view what, std::int64_t value) {
  if (value < 1 || value > kMaxTokens) {
    throw InvalidRequest(std::string(what) + " is " + std::to_string(value) + "; it must be 1 to " +
                         std::to_string(kMaxTokens));
  }
}

void require_divides(std::string_view what, std::int64_t patch, std::int64_t size) {
  if (size % patch != 0) {
    throw InvalidRequest(std::string(what) + " is " + std::to_string(size) + ", which the patch of " +
                         std::to_string(patch) + " does not divide");
  }
}

void validate(const WanConfig& c) {
  require_positive("num_attention_heads", c.num_attention_heads);
  require_positive("attention_head_dim", c.attention_head_dim);
  require_positive("ffn_dim", c.ffn_dim);
  require_positive("num_layers", c.num_layers);
  require_positive("text_dim", c.text_dim);
  require_positive("text_length", c.text_length);
  require_positive("freq_dim", c.freq_dim);
  require_positive("patch_t", c.patch_t);
  require_positive("patch_h", c.patch_h);
  require_positive("patch_w", c.patch_w);
  require_positive("in_channels", c.in_channels);
  require_positive("out_channels", c.out_channels);
  if (c.attention_head_dim % 2 != 0)
    throw InvalidRequest("attention_head_dim must be even: rotary embedding turns pairs of channels");
  if (c.freq_dim % 2 != 0) throw InvalidRequest("freq_dim must be even: half of it is cosines, half sines");
  require_positive("num_attention_heads x attention_head_dim", product({c.num_attention_heads, c.attention_head_dim}));
}

// Weight tensors of one Wan transformer. Matrices are [in, out]. The first matrix of the text and time embedders gives
// its output the "heads" axis and the second takes it back, so the pair is one tensor-parallel MLP; inputs that are no
// multiple of a planned axis (text_dim, freq_dim, the patch) are never divided.
class Weights {
 public:
  Weights(const WanConfig& config, DType dtype) : config_(config), dtype_(dtype) {}

  std::vector<Tensor> take() {
    const std::int64_t e = config_.embed();
    const std::int64_t patch = product({config_.patch_t, config_.patch_h, config_.patch_w});
    linear("patch_embedding", {product({config_.in_channels, patch}), ""}, {e, "embed"}, "");
    linear("condition_embedder.time_embedder.linear_1", {config_.freq_dim, ""}, {e, "heads"}, "heads");
    linear("condition_embedder.time_embedder.linear_2", {e, "heads"}, {e, "embed"}, "");
    linear("condition_embedder.time_proj", {e, "embed"}, {product({6, e}), "heads"}, "heads");
    linear("condition_embedder.text_embedder.linear_1", {config_.text_dim, ""}, {e, "heads"}, "heads");
    linear("condition_embedder.text_embedder.linear_2", {e, "heads"}, {e, "embed"}, "");
    repeat_ = config_.num_layers;
    precise("blocks.scale_shift_table", {{6, ""}, {e, ""}});
    attention("blocks.attn1");
    precise("blocks.norm2.weight", {{e, ""}});
    precise("blocks.norm2.bias", {{e, ""}});
    attention("blocks.attn2");
    linear("blocks.ffn.net.0.proj", {e, "embed"}, {config_.ffn_dim, "mlp"}, "mlp");
    linear("blocks.ffn.net.2", {config_.ffn_dim, "mlp"}, {e, "embed"}, "");
    repeat_ = 1;
    precise("scale_shift_table", {{2, ""}, {e, ""}});
    linear("proj_out", {e, "embed"}, {product({config_.out_channels, patch}), ""}, "");
    return std::move(tensors_);
  }

 private:
  void linear(const std::string& name, Dim in, Dim out, const std::string& bias_axis) {
    tensors_.push_back({name + ".weight", dtype_, {in, out}, repeat_});
    tensors_.push_back({name + ".bias", dtype_, {{out.size, bias_axis}}, repeat_});
  }
  // Norms and modulation tables stay in f32, as the public pipeline keeps them.
  void precise(const std::string& name, std::vector<Dim> dims) {
    tensors_.push_back({name, DType::f32, std::move(dims), repeat_});
  }
  void attention(const std::string& name) {
    const std::int64_t e = config_.embed();
    for (const char* projection : {".to_q", ".to_k", ".to_v"})
      linear(name + projection, {e, "embed"}, {e, "heads"}, "heads");
    precise(name + ".norm_q.weight", {{e, "heads"}});
    precise(name + ".norm_k.weight", {{e, "heads"}});
    linear(name + ".to_out.0", {e, "heads"}, {e, "embed"}, "");
  }

  const WanConfig& config_;
  DType dtype_;
  std::int64_t repeat_ = 1;
  std::vector<Tensor> tensors_;
};

// What one block holds at some point of its run; keys and values that a candidate gathers are the candidate's own.
std::vector<Tensor> wan_activations(const WanConfig& c, std::int64_t batch, std::int64_t tokens, DType dtype) {
  const Dim b{batch, "batch"}, s{tokens, "sequence"}, text{c.text_length, "text"}, heads{c.embed(), "heads"},
      embed{c.embed(), ""};
  return {
      {"residual", dtype, {b, s, embed}, 1},
      {"query", dtype, {b, s, heads}, 1},
      {"key", dtype, {b, s, heads}, 1},
      {"value", dtype, {b, s, heads}, 1},
      {"attention", dtype, {b, s, heads}, 1},
      {"mlp_hidden", dtype, {b, s, {c.ffn_dim, "mlp"}}, 1},
      {"text", dtype, {b, text, embed}, 1},
      {"text_key", dtype, {b, text, heads}, 1},
      {"text_value", dtype, {b, text, heads}, 1},
      {"modulation", DType::f32, {b, {6, ""}, embed}, 1},
      {"rotary_cos", DType::f32, {s, {c.attention_head_dim, ""}}, 1},
      {"rotary_sin", DType::f32, {s, {c.attention_head_dim, ""}}, 1},
  };
}

std::vector<Contraction> wan_contractions() {
  return {
      {"blocks.attn1.to_q.weight", "residual", "query", false},
      {"blocks.attn1.to_k.weight", "residual", "key", false},
      {"blocks.attn1.to_v.weight", "residual", "value", false},
      {"blocks.attn1.to_out.0.weight", "attention", "residual", true},
      {"blocks.attn2.to_q.weight", "residual", "query", false},
      {"blocks.attn2.to_k.weight", "text", "text_key", false},
      {"blocks.attn2.to_v.weight", "text", "text_value", false},
      {"blocks.attn2.to_out.0.weight", "attention", "residual", true},
      {"blocks.ffn.net.0.proj.weight", "residual", "mlp_hidden", false},
      {"blocks.ffn.net.2.weight", "mlp_hidden", "residual", true},
  };
}

}  // namespace

Workload wan_workload(const WanConfig& config, std::int64_t batch, std::int64_t latent_frames,
                      std::int64_t latent_height, std::int64_t latent_width, DType dtype) {
  validate(config);
  require_positive("batch", batch);
  require_positive("latent frames", latent_frames);
  require_positive("latent height", latent_height);
  require_positive("latent width", latent_width);
  require_divides("latent frames", config.patch_t, latent_frames);
  require_divides("latent height", config.patch_h, latent_height);
  require_divides("latent width", config.patch_w, latent_width);
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32) {
    throw InvalidRequest("dtype is " + std::string(name(dtype)) + "; allowed: bf16, f16, f32");
  }
  const std::int64_t tokens =
      product({latent_frames / config.patch_t, latent_height / config.patch_h, latent_width / config.patch_w});
  require_positive("tokens", tokens);

  Workload result;
  result.name = "wan";
  result.tokens = tokens;
  result.layers = config.num_layers;
  result.axes = {
      {"batch", batch, AxisKind::batch},           {"sequence", tokens, AxisKind::sequence},
      {"embed", config.embed(), AxisKind::weight}, {"heads", config.num_attention_heads, AxisKind::weight},
      {"mlp", config.ffn_dim, AxisKind::weight},   {"text", config.text_length, AxisKind::whole},
  };
  result.weights = Weights(config, dtype).take();
  result.activations = wan_activations(config, batch, tokens, dtype);
  for (const auto* tensors : {&result.weights, &result.activations}) {
    for (const Tensor& tensor : *tensors) {
      std::int64_t elements = product({tensor.repeat, 8});  // no element is wider than 8 bytes
      for (const Dim& dim : tensor.dims) elements = product({elements, dim.size});
    }
  }
  result.attentions = {
      {"attn1", batch, config.num_attention_heads, config.attention_head_dim, tokens, tokens, "sequence", "sequence"},
      {"attn2", batch, config.num_attention_heads, config.attention_head_dim, tokens, config.text_length, "sequence",
       ""},
  };
  result.contractions = wan_contractions();
  // The deployed rules of MaxDiffusion's base_wan configurations.
  result.stock_rules = {{"batch", {"data", "fsdp"}},
                        {"sequence", {"context"}},
                        {"embed", {"context", "fsdp"}},
                        {"heads", {"tensor"}},
                        {"mlp", {"tensor"}}};

  const auto b = static_cast<double>(batch), s = static_cast<double>(tokens),
             l = static_cast<double>(config.text_length);
  const auto e = static_cast<double>(config.embed()), m = static_cast<double>(config.ffn_dim);
  const auto patch = static_cast<double>(product({config.patch_t, config.patch_h, config.patch_w}));
  // Self-attention: q, k, v, out 4 S E^2, scores and values 2 S^2 E. Cross-attention: q, out 2 S E^2, k, v 2 L E^2, and
  // 2 S L E. MLP: 2 S E M.
  result.block_flops = 2 * b * (6 * s * e * e + 2 * l * e * e + 2 * s * s * e + 2 * s * l * e + 2 * s * e * m);
  const double entry = s * static_cast<double>(config.in_channels) * patch * e +
                       l * (static_cast<double>(config.text_dim) * e + e * e) +
                       static_cast<double>(config.freq_dim) * e + 7 * e * e;
  const double exit = s * e * static_cast<double>(config.out_channels) * patch;
  result.total_flops = 2 * b * (entry + exit) + static_cast<double>(config.num_layers) * result.block_flops;
  return result;
}

}  // namespace aoizora::workload
