#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/prediction/sharding.h"
#include "aoizora/topology/collective_kind.h"

namespace aoizora::prediction {

/// The smallest piece of a mesh axis that any sharding of the program names: an index into AxisTable. Whole axes where
/// no sharding names a sub-axis.
using Atom = std::uint8_t;
using AtomSet = std::uint64_t;
inline constexpr AtomSet bit(Atom atom) { return AtomSet{1} << atom; }

/// Atoms that divide one dimension, major first.
using DimAxes = std::vector<Atom>;
/// How a tensor is divided: one entry a dimension. Useful for comparing shardings however they are spelled.
using Layout = std::vector<DimAxes>;

AtomSet atoms_of(const DimAxes& axes);
AtomSet atoms_of(const Layout& layout);
inline bool is_replicated(const Layout& layout) { return atoms_of(layout) == 0; }

/// The axes of the program's meshes, cut at every sub-axis boundary that `text` names. At most 64 atoms. Axes of size 1
/// have none.
class AxisTable {
 public:
  AxisTable() = default;
  /// Throws ParseError where meshes disagree on an axis or sub-axes do not divide it.
  AxisTable(std::span<const NamedAxis> axes, std::string_view text);

  Layout layout(const TensorSharding& sharding,
                std::size_t rank) const;  ///< throws ParseError for unknown axes or another rank
  AtomSet set(std::string_view axis) const;
  std::int64_t size(Atom atom) const { return sizes_[atom]; }
  std::int64_t size(const DimAxes& axes) const;
  std::int64_t size(AtomSet atoms) const;
  AtomSet all() const { return sizes_.size() == 64 ? ~AtomSet{0} : (AtomSet{1} << sizes_.size()) - 1; }
  /// The set cut into the mesh axes its atoms belong to, major first.
  std::vector<AtomSet> by_axis(AtomSet atoms) const;
  std::vector<std::string> names(AtomSet atoms) const;
  /// Atoms whose coordinate differs between the members of a group of device ids, by the order of the mesh.
  AtomSet varying(std::span<const std::int64_t> ids) const;

 private:
  void append(const AxisRef& ref, DimAxes& out) const;
  struct Axis {
    std::string_view name;
    std::int64_t size = 1;
    std::vector<Atom> atoms;
  };
  std::vector<Axis> axes_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::string> labels_;
};

/// Length of one device's part of a dimension: uneven dimensions are rounded up, as XLA pads them.
std::int64_t local_length(const AxisTable& table, std::int64_t length, const DimAxes& axes);
std::vector<std::int64_t> local_dims(const AxisTable& table, std::span<const std::int64_t> dims, const Layout& layout);
double product(std::span<const std::int64_t> dims);

/// One step that takes a tensor from a layout to the next one. Cutting further is free and is no step.
struct ReshardStep {
  topology::CollectiveKind kind{};
  AtomSet group = 0;
  Layout after;
};

/// Steps from one layout to another, cheapest known order: cut what is free, exchange axes that move to another
/// dimension (all-to-all), gather the rest; a dimension whose axes only change order is a permute. The last step may
/// leave cuts to do, which are free.
std::vector<ReshardStep> reshard_steps(const AxisTable& table, Layout from, const Layout& to);

/// Layout of the result of a reshape with no data moved, as far as there is one: `kept` is the part of the operand's
/// layout that carries over (the rest must be gathered first), `result` what it becomes.
struct ReshapeLayout {
  Layout kept;
  Layout result;
};
ReshapeLayout through_reshape(const AxisTable& table, std::span<const std::int64_t> from, const Layout& layout,
                              std::span<const std::int64_t> to);

}  // namespace aoizora::prediction
