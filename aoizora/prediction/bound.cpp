#include "aoizora/prediction/bound.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "aoizora/candidates/sharding.h"
#include "aoizora/prediction/prediction.h"

namespace aoizora::prediction {
namespace {

using topology::CollectiveKind;

/// Mesh axes as a set of their positions.
using Axes = std::uint64_t;

/// What one contraction costs: the same parts as Q1Bound.
struct Cost {
  double compute = 0, communication = 0, carried = 0;
};

/// The layouts of one contraction Y = X W; X is [rows.., K], W is [K, N], Y is [rows.., N].
struct Site {
  double rows = 1;  ///< of one device
  double k = 1, n = 1;
  double weight_bytes = 2, input_bytes = 2, output_bytes = 2;  ///< an element
  Axes row_axes = 0;                                           ///< that divide X's rows
  std::vector<std::string> input, weight_in, weight_out, output;
  bool feeds_carry = false;
};

class Bound {
 public:
  Bound(const workload::Workload& workload, const candidates::Candidate& candidate, const topology::Hardware& hardware)
      : workload_(workload), candidate_(candidate), hardware_(hardware) {
    for (std::size_t i = 0; i < candidate.mesh.size() && i < 64; ++i) {
      if (candidate.mesh[i].size > 1) all_ |= Axes{1} << i;
    }
  }

  Q1Bound run() {
    Cost block;
    for (const workload::Contraction& contraction : workload_.contractions) add(block, contraction_cost(contraction));
    for (const workload::Attention& attention : workload_.attentions) add(block, attention_cost(attention));
    const double layers = static_cast<double>(workload_.layers);
    Q1Bound bound;
    bound.compute_seconds = layers * block.compute;
    bound.communication_seconds = layers * block.communication;
    bound.carried_all_reduce_seconds = layers * block.carried;
    // Q1 = max(C_comp, C_comm - C_ar) + C_ar grows with each of the three.
    bound.seconds = std::max(bound.compute_seconds + bound.carried_all_reduce_seconds, bound.communication_seconds);
    return bound;
  }

 private:
  static void add(Cost& sum, const Cost& one) {
    sum.compute += one.compute;
    sum.communication += one.communication;
    sum.carried += one.carried;
  }

  Axes set(const std::vector<std::string>& names) const {
    Axes result = 0;
    for (std::size_t i = 0; i < candidate_.mesh.size() && i < 64; ++i) {
      if (std::find(names.begin(), names.end(), candidate_.mesh[i].name) != names.end()) result |= Axes{1} << i;
    }
    return result & all_;
  }

  std::int64_t size(Axes axes) const {
    std::int64_t result = 1;
    for (std::size_t i = 0; i < candidate_.mesh.size() && i < 64; ++i) {
      if ((axes >> i & 1) != 0) result *= candidate_.mesh[i].size;
    }
    return result;
  }
  double parts(Axes axes) const { return static_cast<double>(size(axes)); }

  double seconds(CollectiveKind kind, Axes group, double payload_bytes) const {
    const std::int64_t members = size(group);
    return members > 1 && payload_bytes > 0 ? collective_seconds(kind, members, payload_bytes, hardware_) : 0;
  }

  static const workload::Tensor* find(const std::vector<workload::Tensor>& tensors, const std::string& name) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const workload::Tensor& t) { return t.name == name; });
    return found == tensors.end() ? nullptr : &*found;
  }

  Cost contraction_cost(const workload::Contraction& contraction) const {
    const auto* weight = find(workload_.weights, contraction.weight);
    const auto* reads = find(workload_.activations, contraction.reads);
    const auto* writes = find(workload_.activations, contraction.writes);
    if (weight == nullptr || reads == nullptr || writes == nullptr || weight->dims.size() != 2 || reads->dims.empty() ||
        writes->dims.empty()) {
      return {};
    }
    Site site;
    const auto weight_axes = candidates::weight_sharding(candidate_, *weight);
    const auto input = candidates::activation_sharding(workload_, candidate_, *reads);
    for (std::size_t d = 0; d + 1 < reads->dims.size(); ++d) {
      site.rows *= static_cast<double>(candidates::local_size(candidate_, reads->dims[d].size, input[d]));
      site.row_axes |= set(input[d]);
    }
    site.k = static_cast<double>(weight->dims[0].size);
    site.n = static_cast<double>(weight->dims[1].size);
    site.weight_bytes = bits(weight->dtype) / 8.0;
    site.input_bytes = bits(reads->dtype) / 8.0;
    site.output_bytes = bits(writes->dtype) / 8.0;
    site.input = input.back();
    site.weight_in = weight_axes[0];
    site.weight_out = weight_axes[1];
    site.output = candidates::activation_sharding(workload_, candidate_, *writes).back();
    site.feeds_carry = contraction.feeds_carry;

    Cost cost = contract(site, set(site.output), 0);
    // Propagation may hand the weight's own axes on to the result, which is then gathered where it is read.
    const Axes own = set(site.weight_out) & ~(set(site.output) | site.row_axes | set(site.input));
    if (own != 0) {
      const Cost divided = contract(site, set(site.output) | own, own);
      cost.compute = std::min(cost.compute, divided.compute);
      cost.communication = std::min(cost.communication, divided.communication);
      cost.carried = std::min(cost.carried, divided.carried);
    }
    return cost;
  }

  // Rows 3 and 4 of Table 1 as build.cpp applies them to a plain matrix product whose result is divided by `output`;
  // `gathered_later` of these are taken back afterwards.
  Cost contract(const Site& site, Axes output, Axes gathered_later) const {
    const Axes in = set(site.input), k = set(site.weight_in), n = set(site.weight_out);
    const Axes used = site.row_axes | output;
    const Axes kept_n = n & output;
    const double result = site.rows * site.n / parts(output);  // elements
    const double columns = site.n / parts(kept_n);             // of the weight as the product reads it
    Axes partial = 0, gathered_k = 0, gathered_in = 0;
    if (site.input == site.weight_in) {
      partial = k;
    } else if (in != 0 && k != 0) {
      const Axes both = in & k;
      const std::int64_t devices = size(all_ & ~used);
      const auto keeps = [&](Axes fewer, Axes more) {
        return both == fewer && (more & ~both & ~used) == 0 && (both & used) == 0 && devices % size(more) != 0;
      };
      partial = keeps(in, k) ? in : (keeps(k, in) ? k : 0);
      gathered_k = k & ~partial;
      gathered_in = in & ~partial;
    } else if (k != 0) {
      const bool clashes = ((k | (n & ~output)) & used) != 0;
      partial = !clashes && site.k * columns > result ? k : 0;
      gathered_k = k & ~partial;
    } else if (in != 0) {
      partial = (in & used) == 0 && site.rows * site.k > result ? in : 0;
      gathered_in = in & ~partial;
    }
    const Axes gathered_n = n & ~output;
    Axes gathered = gathered_k | gathered_n;
    Cost cost;
    if ((gathered & (used | partial)) != 0) {
      const Axes idle = all_ & ~(used | partial);
      move_to_idle(site, cost, gathered, gathered_k, used, kept_n, idle, result, partial);
    }
    cost.communication +=
        seconds(CollectiveKind::all_gather, gathered, site.k * columns / parts(partial & k) * site.weight_bytes);
    cost.communication +=
        seconds(CollectiveKind::all_gather, gathered_in, site.rows * site.k / parts(partial & in) * site.input_bytes);
    const double sum = seconds(CollectiveKind::all_reduce, partial, result * site.output_bytes);
    cost.communication += sum;
    cost.carried = site.feeds_carry ? sum : 0;
    cost.communication += seconds(CollectiveKind::all_gather, gathered_later,
                                  site.rows * site.n / parts(output & ~gathered_later) * site.output_bytes);
    Node product;
    product.flops = 2 * site.k / parts(partial) * result;
    cost.compute = compute_seconds(product, hardware_);
    return cost;
  }

  /// The pieces of a weight that clash with the result's axes are first permuted onto idle axes, where these are as
  /// many; for partial sums the product is then divided by all of them (build.cpp, move_to_idle).
  void move_to_idle(const Site& site, Cost& cost, Axes& gathered, Axes gathered_k, Axes used, Axes kept_n, Axes idle,
                    double result, Axes& partial) const {
    const Axes gathered_n = gathered & ~gathered_k;
    const std::int64_t pieces = size(gathered), devices = size(idle);
    const bool whole_dimensions = (gathered_n == 0 || kept_n == 0) && (gathered_k == 0 || partial == 0);
    if (pieces <= 1 || devices % pieces != 0 || !whole_dimensions) return;
    const double elements = site.k * site.n / parts(kept_n) / parts(partial);
    const double share = elements * static_cast<double>(pieces) / static_cast<double>(devices);
    const bool sums = gathered_n == 0 && (gathered_k & ~(used | partial)) == 0 && share > result;
    const double pieces_held = static_cast<double>(sums ? devices : pieces);
    cost.communication += seconds(CollectiveKind::permute, idle, elements / pieces_held * site.weight_bytes);
    if (!sums) return;
    partial |= idle;
    gathered = 0;
  }

  // Row 6. Gathered keys: both operands cross the boundary whole; Ulysses: queries, keys, values and the result are
  // exchanged. The kernel's time is that of its padded blocks.
  Cost attention_cost(const workload::Attention& attention) const {
    const std::string heads_axis = candidates::head_axis(workload_, attention);
    const auto rule = [&](const std::string& axis) {
      const auto found = candidate_.rules.find(axis);
      return found == candidate_.rules.end() || axis.empty() ? Axes{0} : set(found->second);
    };
    const Axes batch = rule(candidates::batch_axis(workload_, attention));
    const Axes queries = rule(attention.query_axis), keys = rule(attention.key_axis);
    const Axes head_axes = rule(heads_axis) & ~(batch | queries);
    const auto divided = [&](std::int64_t length, Axes axes) { return (length + size(axes) - 1) / size(axes); };
    const double batches = static_cast<double>(divided(attention.batch, batch));
    std::int64_t heads = divided(attention.heads, head_axes);
    std::int64_t query_length = divided(attention.queries, queries);
    const double row_bytes = batches * static_cast<double>(attention.head_dim) * activation_bytes(heads_axis);
    Cost cost;
    if (candidate_.attention == candidates::AttentionKind::ulysses && size(queries) > 1 && keys == queries) {
      const double operand = row_bytes * static_cast<double>(heads) * static_cast<double>(query_length);
      cost.communication = 4 * seconds(CollectiveKind::all_to_all, queries, operand);
      query_length = attention.queries;
      heads = divided(heads, queries);
    } else {
      const double operand = row_bytes * static_cast<double>(heads) * static_cast<double>(attention.keys);
      cost.communication = 2 * seconds(CollectiveKind::all_gather, keys, operand);
    }
    const auto padded = [](std::int64_t length, std::int64_t block) {
      const std::int64_t used = std::max<std::int64_t>(1, block);
      return static_cast<double>(length / used + (length % used != 0 ? 1 : 0)) * static_cast<double>(used);
    };
    const double cycles = topology::attention_kernel_cycles(
        hardware_, batches * static_cast<double>(heads), padded(query_length, candidate_.blocks.queries),
        padded(attention.keys, candidate_.blocks.keys),
        static_cast<double>(std::max<std::int64_t>(1, candidate_.blocks.keys)),
        static_cast<double>(attention.head_dim));
    Node kernel;
    kernel.kernel_seconds = hardware_.clock_hz.value > 0 ? cycles / hardware_.clock_hz.value : 0;
    cost.compute = compute_seconds(kernel, hardware_);
    return cost;
  }

  double activation_bytes(const std::string& heads_axis) const {
    for (const workload::Tensor& tensor : workload_.activations) {
      for (const workload::Dim& dim : tensor.dims) {
        if (!heads_axis.empty() && dim.axis == heads_axis) return bits(tensor.dtype) / 8.0;
      }
    }
    return 0;
  }

  const workload::Workload& workload_;
  const candidates::Candidate& candidate_;
  const topology::Hardware& hardware_;
  Axes all_ = 0;  ///< of size above 1
};

}  // namespace

Q1Bound lower_bound(const workload::Workload& workload, const candidates::Candidate& candidate,
                    const topology::Hardware& hardware) {
  return Bound(workload, candidate, hardware).run();
}

}  // namespace aoizora::prediction
