#include "aoizora/workload/workload.h"

#include <algorithm>
#include <array>
#include <limits>

#include "aoizora/errors.h"
#include "aoizora/nearest.h"
#include "aoizora/workload/wan.h"

namespace aoizora::workload {
namespace {

// Strides of Wan 2.1's video autoencoder: frames 1 + 4k become 1 + k latents, height and width shrink by 8.
constexpr std::int64_t kFrameStride = 4;
constexpr std::int64_t kPixelStride = 8;

struct Model {
  const char* name;
  WanConfig config;
};

// Sizes of the public checkpoints Wan-AI/Wan2.1-T2V-{14B,1.3B}-Diffusers.
const std::vector<Model>& models() {
  static const std::vector<Model> known = [] {
    WanConfig small;
    small.num_attention_heads = 12;
    small.ffn_dim = 8960;
    small.num_layers = 30;
    return std::vector<Model>{{"wan2.1-14b", WanConfig{}}, {"wan2.1-1.3b", small}};
  }();
  return known;
}

// The allowed values next to `value` among offset + k x step, k >= 0.
std::string nearest_allowed(std::int64_t value, std::int64_t offset, std::int64_t step) {
  const std::int64_t below = value <= offset ? offset : value - (value - offset) % step;
  if (value <= offset || below > std::numeric_limits<std::int64_t>::max() - step) return std::to_string(below);
  return std::to_string(below) + " or " + std::to_string(below + step);
}

void check_multiple(const std::string& what, std::int64_t value, std::int64_t step) {
  if (value < step || value % step != 0) {
    throw InvalidRequest(what + " is " + std::to_string(value) + "; it must be a positive multiple of " +
                         std::to_string(step) + ": nearest " + nearest_allowed(value, step, step));
  }
}

}  // namespace

const Axis* Workload::find_axis(const std::string& axis) const {
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.name == axis; });
  return found == axes.end() ? nullptr : &*found;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& model : models()) names.emplace_back(model.name);
  return names;
}

WanConfig wan_config(const std::string& model) {
  const auto& known = models();
  for (const Model& candidate : known) {
    if (candidate.name == model) return candidate.config;
  }
  throw InvalidRequest("unknown model \"" + model.substr(0, 64) + "\"; did you mean \"" +
                       nearest(model, model_names()) + "\"? Known: " + joined(model_names()));
}

std::array<std::int64_t, 5> latent_shape(const Request& request) {
  const WanConfig config = wan_config(request.model);
  check_multiple("height", request.height, kPixelStride * config.patch_h);
  check_multiple("width", request.width, kPixelStride * config.patch_w);
  if (request.frames < 1 || (request.frames - 1) % kFrameStride != 0) {
    throw InvalidRequest("frames is " + std::to_string(request.frames) + "; it must be 4k + 1: nearest " +
                         nearest_allowed(request.frames, 1, kFrameStride));
  }
  if (request.videos < 1 || request.videos > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidRequest("videos is " + std::to_string(request.videos) + "; it must be 1 or more");
  }
  return {request.batch(), config.in_channels, (request.frames - 1) / kFrameStride + 1, request.height / kPixelStride,
          request.width / kPixelStride};
}

Workload make_workload(const Request& request) {
  const auto [batch, channels, frames, height, width] = latent_shape(request);
  if (request.steps < 1) throw InvalidRequest("steps is " + std::to_string(request.steps) + "; it must be 1 or more");
  if (request.reserved_hbm_bytes < 0) {
    throw InvalidRequest("reserved_hbm_bytes is " + std::to_string(request.reserved_hbm_bytes) +
                         "; it must be 0 or more");
  }
  Workload result = wan_workload(wan_config(request.model), batch, frames, height, width, request.dtype);
  result.name = request.model;
  return result;
}

}  // namespace aoizora::workload
