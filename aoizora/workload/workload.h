#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aoizora/dtype.h"

namespace aoizora::workload {

/// What a logical axis is to the planner.
enum class AxisKind {
  weight,    ///< may be divided by any subset of mesh axes (embed, mlp, heads)
  batch,     ///< divided by the mesh axes that carry data
  sequence,  ///< divided by the context axis; may be uneven (the local length is padded and masked)
  whole,     ///< never divided
};

/// A logical axis. `size` is in the unit that must divide evenly: heads, not heads x head_dim.
struct Axis {
  std::string name;
  std::int64_t size = 0;
  AxisKind kind = AxisKind::whole;
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// One dimension of a tensor; `axis` is empty for a dimension that is never divided. `size` may be a multiple of the
/// axis' size (a "heads" dimension of heads x head_dim elements).
struct Dim {
  std::int64_t size = 0;
  std::string axis;
  friend bool operator==(const Dim&, const Dim&) = default;
};

/// A parameter or an activation. A tensor with repeat > 1 exists once a layer of the repeated block; `dims` are of one
/// layer.
struct Tensor {
  std::string name;  ///< weights: the public checkpoint's name, with "blocks.N." written "blocks."
  DType dtype = DType::bf16;
  std::vector<Dim> dims;
  std::int64_t repeat = 1;
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// One attention call of the repeated block.
struct Attention {
  std::string name;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::string query_axis;  ///< logical axis of the query length
  std::string key_axis;    ///< logical axis of the key length; empty where keys are never divided (text)
  friend bool operator==(const Attention&, const Attention&) = default;
};

/// One matrix product of the repeated block: the activation `writes` is the activation `reads` times the weight [in,
/// out], over the last dimension of both.
struct Contraction {
  std::string weight;
  std::string reads;
  std::string writes;
  bool feeds_carry = false;  ///< its result is added to what the next block reads
  friend bool operator==(const Contraction&, const Contraction&) = default;
};

/// The table every later room reads instead of a model's name. Wan is one instance, a user's program another.
struct Workload {
  std::string name;
  std::vector<Axis> axes;
  std::vector<Tensor> weights;
  std::vector<Tensor> activations;  ///< what is live inside one block: residual stream, q, k, v, mlp hidden, ...
  std::vector<Attention> attentions;
  std::vector<Contraction> contractions;  ///< of one block; empty where nobody says: the planner asks the compiler more
  std::int64_t layers = 1;                ///< repeats of the block; 1 where nothing repeats
  std::int64_t tokens = 0;                ///< length of the video sequence
  /// Axis rules people deploy today (logical axis -> mesh axes, absent mesh axes skipped): the planner prices them
  /// beside the plan.
  std::map<std::string, std::vector<std::string>> stock_rules;
  double block_flops = 0;  ///< multiply-adds x 2 of one block over the whole batch, attention included, nothing padded
  double total_flops = 0;  ///< the same for one denoising step: entry, all blocks, exit
  /// The compiler is given the program itself, not a proxy of some layers: all of it is priced as one block that runs
  /// once, its loops as they are. `layers` is 1.
  bool whole_program = false;

  const Axis* find_axis(const std::string& axis) const;
};

/// A request: one model, one video shape, how it is served. All of it is in the cache key.
struct Request {
  std::string model = "wan2.1-14b";
  std::int64_t height = 480;
  std::int64_t width = 832;
  std::int64_t frames = 21;
  std::int64_t videos = 1;
  bool cfg = true;  ///< classifier-free guidance doubles the model's batch
  std::int64_t steps = 50;
  DType dtype = DType::bf16;
  std::int64_t reserved_hbm_bytes = 0;  ///< left free a device for the text encoder, the VAE, ...
  friend bool operator==(const Request&, const Request&) = default;

  std::int64_t batch() const { return videos * (cfg ? 2 : 1); }
};

/// The workload of a request. Throws InvalidRequest with the nearest known model name, or with the sizes and frame
/// counts the model takes (frames = 4k + 1; height and width multiples of VAE stride x patch, 16 for Wan).
Workload make_workload(const Request& request);

/// Known model names.
std::vector<std::string> model_names();

/// The table as JSON text (see docs/), and back. read_workload throws ParseError or InvalidRequest.
std::string to_json(const Workload& workload);
Workload read_workload(const std::string& json);

/// The request as JSON text, and back; missing keys take the defaults above, unknown keys are refused.
std::string to_json(const Request& request);
Request read_request(const std::string& json);

}  // namespace aoizora::workload
