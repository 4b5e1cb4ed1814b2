#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/ir/program.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/ranking/schedule.h"
#include "aoizora/topology/slice.h"

namespace aoizora::ranking {

/// A logical mesh read back from the groups of a program, row-major over its partitions.
struct InferredMesh {
  std::vector<candidates::MeshAxis> axes;
  std::vector<std::string> active_axes;   ///< some collective runs along them
  std::vector<std::string> ordered_axes;  ///< some permute does
  bool explains_all = true;               ///< every group is a product of axes
};

/// The coarsest mesh along whose axes the program's collectives run. Digits (the ordered prime factors of the device
/// count) that always occur together are one axis.
InferredMesh infer_mesh(std::span<const Pattern> patterns, std::int32_t devices);

/// A mesh from JSON: [{"name": "data", "size": 2}, ...] or [["data", 2], ...], major first; none from an empty text.
/// Throws ParseError, InvalidRequest.
std::vector<candidates::MeshAxis> read_mesh(const std::string& json);

struct RankOptions {
  double rate_scale = 1.0;
  std::size_t placement_limit = 5000;
};

/// Ranks every distinct device order of a program as it is, for any HLO text: JSON with the default (row-major) order,
/// the best and the worst, and the cost of each collective under default and best. `mesh` empty: inferred. Throws
/// InvalidRequest where the program was compiled for another number of devices than the slice or the mesh has.
std::string rank_json(const ir::Program& program, const topology::Slice& slice,
                      std::span<const candidates::MeshAxis> mesh = {}, const RankOptions& options = {});

}  // namespace aoizora::ranking
