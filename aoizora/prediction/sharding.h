#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace aoizora::prediction {

/// A mesh axis or a part of one: "x" is the whole axis, "x":(2)4 the sub-axis of size 4 whose more major part has
/// size 2. Views point into the text that was read.
struct AxisRef {
  std::string_view name;
  std::int64_t pre = 1;   ///< product of the sub-axes more major than this one
  std::int64_t size = 0;  ///< 0: the rest of the axis
  friend bool operator==(const AxisRef&, const AxisRef&) = default;
};

/// Axes that divide one dimension, major first. `open` ("?") lets propagation add more; priority is p0, p1, ...
struct DimSharding {
  std::vector<AxisRef> axes;
  bool open = false;
  std::optional<std::int64_t> priority;
  friend bool operator==(const DimSharding&, const DimSharding&) = default;
};

/// One #sdy.sharding attribute.
struct TensorSharding {
  std::string_view mesh;  ///< "@mesh" without '@', or the text of an inlined mesh
  bool inlined_mesh = false;
  std::vector<DimSharding> dims;
  std::vector<AxisRef> replicated;
  std::vector<AxisRef> unreduced;
  friend bool operator==(const TensorSharding&, const TensorSharding&) = default;
};

/// One axis of an sdy mesh.
struct NamedAxis {
  std::string_view name;
  std::int64_t size = 1;
  friend bool operator==(const NamedAxis&, const NamedAxis&) = default;
};

/// "#sdy.sharding<@mesh, [{"data"}, {"x":(1)2, ?}p1], replicated={"y"}>", with or without "#sdy.sharding". Throws
/// ParseError.
TensorSharding read_sharding(std::string_view text);

/// "#sdy.sharding_per_value<[<@mesh, [...]>, ...]>", one sharding a result. Throws ParseError.
std::vector<TensorSharding> read_sharding_per_value(std::string_view text);

/// The axes of "#sdy.mesh<["data"=2, "context"=4]>" or "<["data"=2]>"; a maximal mesh ("device_ids=[3]") has none.
/// Throws ParseError.
std::vector<NamedAxis> read_mesh(std::string_view text);

/// The names of "#sdy<manual_axes{"data", "context"}>". Throws ParseError.
std::vector<std::string_view> read_manual_axes(std::string_view text);

}  // namespace aoizora::prediction
