#include "aoizora/candidates/candidate.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "aoizora/candidates/memory.h"
#include "aoizora/candidates/sharding.h"
#include "aoizora/candidates/signature.h"
#include "aoizora/errors.h"

namespace aoizora::candidates {
namespace {

using workload::AxisKind;
using workload::Tensor;
using workload::Workload;

constexpr double MiB = 1024.0 * 1024;
constexpr double GiB = 1024 * MiB;

topology::Slice slice_of(std::int64_t devices, double hbm_bytes = 1e18) {
  topology::Slice result;
  result.devices.resize(static_cast<std::size_t>(devices));
  result.hardware.hbm_bytes.value = hbm_bytes;
  return result;
}

struct Sizes {
  std::int64_t batch = 2, tokens = 64, heads = 4, head_dim = 2, mlp = 16, layers = 2, text = 8;
  std::int64_t embed() const { return heads * head_dim; }
};

// A diffusion transformer's table: attention over video and text, an MLP, a residual stream.
Workload transformer(const Sizes& s) {
  Workload w;
  w.name = "transformer";
  w.axes = {{"batch", s.batch, AxisKind::batch},    {"sequence", s.tokens, AxisKind::sequence},
            {"embed", s.embed(), AxisKind::weight}, {"heads", s.heads, AxisKind::weight},
            {"mlp", s.mlp, AxisKind::weight},       {"text", s.text, AxisKind::whole}};
  const std::int64_t e = s.embed();
  for (const char* name : {"q", "k", "v"})
    w.weights.push_back({name, DType::bf16, {{e, "embed"}, {e, "heads"}}, s.layers});
  w.weights.push_back({"out", DType::bf16, {{e, "heads"}, {e, "embed"}}, s.layers});
  w.weights.push_back({"up", DType::bf16, {{e, "embed"}, {s.mlp, "mlp"}}, s.layers});
  w.weights.push_back({"down", DType::bf16, {{s.mlp, "mlp"}, {e, "embed"}}, s.layers});
  w.weights.push_back({"norm", DType::f32, {{e, ""}}, s.layers});
  w.activations.push_back({"residual", DType::bf16, {{s.batch, "batch"}, {s.tokens, "sequence"}, {e, ""}}, 1});
  for (const char* name : {"query", "key", "value"}) {
    w.activations.push_back({name, DType::bf16, {{s.batch, "batch"}, {s.tokens, "sequence"}, {e, "heads"}}, 1});
  }
  w.activations.push_back({"hidden", DType::bf16, {{s.batch, "batch"}, {s.tokens, "sequence"}, {s.mlp, "mlp"}}, 1});
  w.attentions = {{"self", s.batch, s.heads, s.head_dim, s.tokens, s.tokens, "sequence", "sequence"},
                  {"cross", s.batch, s.heads, s.head_dim, s.tokens, s.text, "sequence", ""}};
  w.layers = s.layers;
  w.tokens = s.tokens;
  w.stock_rules = {{"batch", {"data", "fsdp"}},
                   {"sequence", {"context"}},
                   {"embed", {"context", "fsdp"}},
                   {"heads", {"tensor"}},
                   {"mlp", {"tensor"}}};
  return w;
}

// 14 billion parameters: 40 heads of 128, MLP 13824, 40 layers.
Workload large(std::int64_t tokens, std::int64_t layers = 40) {
  return transformer({2, tokens, 40, 128, 13824, layers, 512});
}

Candidate make(std::vector<std::int64_t> sizes, std::map<std::string, std::vector<std::string>> rules) {
  Candidate c;
  c.mesh = {{"data", sizes[0]}, {"fsdp", sizes[1]}, {"context", sizes[2]}, {"tensor", sizes[3]}};
  c.rules = std::move(rules);
  return c;
}

// ---- The definitions once more, from the devices' side and with no code of the room ----

// Which piece of each dimension of each tensor every device holds, as a multiset over devices: two shardings are one
// exactly if some exchange of devices makes these equal.
using Pieces = std::multiset<std::vector<std::int64_t>>;

std::vector<std::string> present(const Candidate& c, const std::string& axis) {
  std::vector<std::string> result;
  const auto rule = c.rules.find(axis);
  if (rule == c.rules.end()) return result;
  for (const auto& name : rule->second) {
    for (const auto& mesh : c.mesh) {
      if (mesh.name == name && mesh.size > 1) result.push_back(name);
    }
  }
  return result;
}

std::vector<std::vector<std::string>> all_dims(const Workload& w, const Candidate& c) {
  std::vector<std::vector<std::string>> dims;
  for (const auto& t : w.weights) {
    for (const auto& d : t.dims) dims.push_back(present(c, d.axis));
  }
  for (const auto& t : w.activations) {
    std::set<std::string> held;
    for (const auto& d : t.dims) {
      if (d.axis == "batch" || d.axis == "sequence" || d.axis == "heads") {
        for (const auto& a : present(c, d.axis)) held.insert(a);
      }
    }
    for (const auto& d : t.dims) {
      auto list = present(c, d.axis);
      if (d.axis == "mlp" || d.axis == "embed") {
        std::erase_if(list, [&](const std::string& a) { return held.count(a) > 0; });
        held.insert(list.begin(), list.end());
      }
      dims.push_back(list);
    }
  }
  return dims;
}

Pieces pieces(const Workload& w, const Candidate& c) {
  const auto dims = all_dims(w, c);
  Pieces result;
  std::map<std::string, std::int64_t> at;
  const std::function<void(std::size_t)> visit = [&](std::size_t axis) {
    if (axis == c.mesh.size()) {
      std::vector<std::int64_t> held;
      for (const auto& dim : dims) {
        std::int64_t piece = 0;
        for (const auto& name : dim) {
          const auto mesh =
              std::find_if(c.mesh.begin(), c.mesh.end(), [&](const MeshAxis& m) { return m.name == name; });
          piece = piece * mesh->size + at[name];
        }
        held.push_back(piece);
      }
      result.insert(held);
      return;
    }
    for (std::int64_t i = 0; i < c.mesh[axis].size; ++i) {
      at[c.mesh[axis].name] = i;
      visit(axis + 1);
    }
  };
  visit(0);
  return result;
}

std::int64_t parts(const Candidate& c, const std::string& axis) {
  std::int64_t result = 1;
  for (const auto& name : present(c, axis)) result *= c.axis_size(name);
  return result;
}

bool legal(const Workload& w, const Candidate& c) {
  for (const auto& axis : w.axes) {
    const std::int64_t n = parts(c, axis.name);
    if (axis.kind == AxisKind::sequence) {
      if ((n - 1) * ((axis.size + n - 1) / n) >= axis.size && n > 1) return false;
    } else if (axis.size % n != 0) {
      return false;
    }
  }
  const auto once = [&](const Tensor& t, bool activation) {
    std::multiset<std::string> held;
    for (const auto& d : t.dims) {
      if (activation && (d.axis == "mlp" || d.axis == "embed")) continue;
      for (const auto& a : present(c, d.axis)) held.insert(a);
    }
    return std::set<std::string>(held.begin(), held.end()).size() == held.size();
  };
  return std::all_of(w.weights.begin(), w.weights.end(), [&](const Tensor& t) { return once(t, false); }) &&
         std::all_of(w.activations.begin(), w.activations.end(), [&](const Tensor& t) { return once(t, true); });
}

bool idle(const Workload& w, const Candidate& c) {
  std::set<std::string> used;
  for (const auto& dim : all_dims(w, c)) used.insert(dim.begin(), dim.end());
  return std::any_of(c.mesh.begin(), c.mesh.end(),
                     [&](const MeshAxis& m) { return m.size > 1 && used.count(m.name) == 0; });
}

// Every mesh, every subset for every weight axis, batch on data or on data and fsdp.
std::vector<Candidate> every_assignment(std::int64_t devices) {
  const std::vector<std::string> names{"data", "fsdp", "context", "tensor"};
  std::vector<Candidate> result;
  const auto subset = [&](unsigned mask) {
    std::vector<std::string> list;
    for (std::size_t i = 0; i < 4; ++i) {
      if (mask & (1U << i)) list.push_back(names[i]);
    }
    return list;
  };
  for (std::int64_t d = 1; d <= devices; ++d) {
    for (std::int64_t f = 1; f <= devices; ++f) {
      for (std::int64_t c = 1; c <= devices; ++c) {
        for (std::int64_t t = 1; t <= devices; ++t) {
          if (d * f * c * t != devices) continue;
          const unsigned there = (d > 1 ? 1U : 0) | (f > 1 ? 2U : 0) | (c > 1 ? 4U : 0) | (t > 1 ? 8U : 0);
          for (unsigned code = 0; code < 4096; ++code) {
            const unsigned embed = code & 15, heads = (code >> 4) & 15, mlp = code >> 8;
            if ((embed | heads | mlp) & ~there) continue;
            for (const unsigned batch : {1U, 3U}) {
              if (batch == 3U && (there & 3U) != 3U) continue;
              result.push_back(make({d, f, c, t}, {{"batch", subset(batch & there)},
                                                   {"sequence", subset(4U & there)},
                                                   {"embed", subset(embed)},
                                                   {"heads", subset(heads)},
                                                   {"mlp", subset(mlp)}}));
            }
          }
        }
      }
    }
  }
  return result;
}

Sizes random_sizes(std::mt19937& random) {
  const auto pick = [&](std::vector<std::int64_t> of) { return of[random() % of.size()]; };
  return {pick({1, 2, 4, 6}),
          pick({5, 16, 60, 63}),
          pick({2, 3, 4, 6}),
          pick({1, 2, 4}),
          pick({6, 8, 12, 18}),
          pick({1, 2, 40}),
          8};
}

// Tables with something missing: text only, no residual, no MLP.
Workload random_workload(std::mt19937& random) {
  Workload w = transformer(random_sizes(random));
  if (random() % 4 == 0) w.weights.erase(w.weights.begin() + static_cast<std::ptrdiff_t>(random() % w.weights.size()));
  if (random() % 4 == 0) w.activations.pop_back();
  if (random() % 4 == 0) std::rotate(w.weights.begin(), w.weights.begin() + 2, w.weights.end());
  return w;
}

EnumerationOptions everything() {
  EnumerationOptions options;
  options.minimum_weight_sharding = 1;
  options.ulysses = false;
  return options;
}

// ---- Enumeration against the definitions ----

BOOST_AUTO_TEST_CASE(none_legal_is_lost_and_no_two_survivors_are_equal) {
  std::mt19937 random(7);
  for (const std::int64_t devices : {1, 2, 3, 4, 6, 8}) {
    for (int round = 0; round < (devices == 8 ? 3 : 8); ++round) {
      const Workload w = random_workload(random);
      std::set<Pieces> expected;
      std::int64_t count = 0;
      for (const Candidate& c : every_assignment(devices)) {
        if (!legal(w, c) || idle(w, c)) continue;
        ++count;
        expected.insert(pieces(w, c));
      }
      if (count == 0) {
        BOOST_CHECK_THROW(enumerate(w, slice_of(devices), everything()), Infeasible);
        continue;
      }
      const Enumeration found = enumerate(w, slice_of(devices), everything());
      std::set<Pieces> survivors;
      for (const Candidate& c : found.candidates) {
        BOOST_TEST(legal(w, c));
        survivors.insert(pieces(w, c));
      }
      BOOST_TEST(survivors.size() == found.candidates.size(), "two survivors are equal on " << devices << " devices");
      BOOST_TEST((survivors == expected),
                 "classes differ on " << devices << " devices: " << survivors.size() << " of " << expected.size());
      BOOST_TEST(found.legal == count);
      BOOST_TEST(found.distinct == static_cast<std::int64_t>(expected.size()));
    }
  }
}

BOOST_AUTO_TEST_CASE(signatures_are_equal_exactly_where_devices_can_be_exchanged) {
  std::mt19937 random(11);
  for (const std::int64_t devices : {2, 4, 6, 8}) {
    const Workload w = random_workload(random);
    std::map<std::string, Pieces> of_signature;
    std::map<Pieces, std::string> of_pieces;
    for (const Candidate& c : every_assignment(devices)) {
      if (!legal(w, c) || (devices == 8 && random() % 4 != 0)) continue;
      const std::string signature = canonical_signature(w, c);
      const Pieces held = pieces(w, c);
      BOOST_TEST((of_signature.emplace(signature, held).first->second == held),
                 "one signature for two shardings: " << signature);
      BOOST_TEST(of_pieces.emplace(held, signature).first->second == signature);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_reason_why_a_candidate_is_illegal_is_given_exactly_where_it_is) {
  std::mt19937 random(13);
  for (const std::int64_t devices : {2, 4, 6}) {
    const Workload w = random_workload(random);
    for (const Candidate& c : every_assignment(devices)) {
      BOOST_TEST(illegal_because(w, c).empty() == legal(w, c), to_json(c) << ": " << illegal_because(w, c));
      if (legal(w, c)) BOOST_TEST(idle_axes(w, c).empty() != idle(w, c));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_on_an_argument_is_divided_evenly) {
  Workload w;
  w.name = "program";
  w.axes = {{"sequence", 10, AxisKind::sequence}, {"embed", 8, AxisKind::weight}};
  w.weights = {{"table", DType::f32, {{8, "embed"}}, 1}};
  w.activations = {{"tokens", DType::s32, {{10, "sequence"}}, 1}};
  const auto divided = [&] {
    std::int64_t most = 1;
    for (const auto& candidate : enumerate(w, slice_of(4), {}).candidates)
      most = std::max(most, candidate.factor("sequence"));
    return most;
  };
  BOOST_TEST(divided() == 4);  // padded to twelve
  std::swap(w.weights.front(), w.activations.front());
  w.weights.push_back(w.activations.front());
  w.activations.clear();
  BOOST_TEST(divided() == 2);
}

BOOST_AUTO_TEST_CASE(counts_only_shrink_and_every_fitting_one_is_kept) {
  for (const std::int64_t devices : {4, 8, 16}) {
    const Workload w = large(75600);
    EnumerationOptions options = everything();
    options.ulysses = true;
    const Enumeration all = enumerate(w, slice_of(devices), options);
    const double budget = 12 * GiB;
    const Enumeration fitting = enumerate(w, slice_of(devices, budget), {});
    BOOST_TEST(fitting.weight_sharding == static_cast<std::int64_t>(std::ceil(total_weights_bytes(w) / budget)));
    BOOST_TEST(fitting.assignments >= fitting.legal);
    BOOST_TEST(fitting.legal >= fitting.distinct);
    BOOST_TEST(fitting.distinct >= fitting.sharded_enough);
    BOOST_TEST(fitting.sharded_enough >= fitting.fitting);
    BOOST_TEST(fitting.with_attention == static_cast<std::int64_t>(fitting.candidates.size()));
    BOOST_TEST(fitting.distinct == all.distinct);
    std::vector<Candidate> expected;
    for (const Candidate& c : all.candidates) {
      const bool fits = memory_estimate(w, c).total_bytes() <= budget;
      if (fits && weight_sharding_factor(w, c) >= fitting.weight_sharding) expected.push_back(c);
    }
    BOOST_TEST((fitting.candidates == expected));
  }
}

BOOST_AUTO_TEST_CASE(candidates_come_in_the_order_of_their_signatures) {
  const Workload w = large(32760);
  const Enumeration found = enumerate(w, slice_of(8), {});
  const auto before = [&](const Candidate& a, const Candidate& b) {
    return canonical_signature(w, a) < canonical_signature(w, b);
  };
  BOOST_TEST(std::is_sorted(found.candidates.begin(), found.candidates.end(), before));
  std::set<std::string> signatures;
  for (const Candidate& c : found.candidates) BOOST_TEST(signatures.insert(canonical_signature(w, c)).second);
}

BOOST_AUTO_TEST_CASE(of_equal_candidates_the_one_nearest_to_the_stock_rules_is_kept) {
  const Workload w = large(32760);
  const Enumeration found = enumerate(w, slice_of(4), everything());
  const auto kept = [&](const Candidate& c) {
    return std::find(found.candidates.begin(), found.candidates.end(), c) != found.candidates.end();
  };
  const std::vector<std::string> none;
  // All on context, as deployed; not context 2 x fsdp 2 or a tensor axis that plays fsdp.
  BOOST_TEST(
      kept(make({1, 1, 4, 1},
                {{"batch", none}, {"sequence", {"context"}}, {"embed", {"context"}}, {"heads", none}, {"mlp", none}})));
  BOOST_TEST(
      kept(make({1, 1, 1, 4},
                {{"batch", none}, {"sequence", none}, {"embed", none}, {"heads", {"tensor"}}, {"mlp", {"tensor"}}})));
  BOOST_TEST(kept(
      make({1, 4, 1, 1}, {{"batch", none}, {"sequence", none}, {"embed", {"fsdp"}}, {"heads", none}, {"mlp", none}})));
}

// ---- Signature ----

std::string fresh(std::mt19937& random, std::set<std::string>& taken) {
  for (;;) {
    std::string name = "axis" + std::to_string(random() % 1000);
    if (taken.insert(name).second) return name;
  }
}

// New names, a new mesh order, and sizes split wherever a die says so.
Candidate disguised(const Candidate& c, std::mt19937& random) {
  std::map<std::string, std::vector<std::string>> pieces_of;
  std::set<std::string> taken;
  Candidate result = c;
  result.mesh.clear();
  for (const MeshAxis& axis : c.mesh) {
    std::int64_t left = axis.size;
    do {
      std::vector<std::int64_t> divisors;
      for (std::int64_t d = 1; d <= left; ++d) {
        if (left % d == 0) divisors.push_back(d);
      }
      const std::int64_t size = divisors[random() % divisors.size()];
      pieces_of[axis.name].push_back(fresh(random, taken));
      result.mesh.push_back({pieces_of[axis.name].back(), size});
      left /= size;
    } while (left > 1);
  }
  for (auto& [logical, rule] : result.rules) {
    std::vector<std::string> renamed;
    for (const std::string& axis : rule) renamed.insert(renamed.end(), pieces_of[axis].begin(), pieces_of[axis].end());
    rule = renamed;
  }
  std::shuffle(result.mesh.begin(), result.mesh.end(), random);
  return result;
}

BOOST_AUTO_TEST_CASE(renaming_splitting_and_merging_mesh_axes_keep_the_signature_and_the_estimate) {
  std::mt19937 random(17);
  const Workload w = transformer({4, 63, 12, 2, 48, 3, 8});
  for (const std::int64_t devices : {8, 12, 16}) {
    for (const Candidate& c : enumerate(w, slice_of(devices), {}).candidates) {
      const Candidate other = disguised(c, random);
      BOOST_TEST(canonical_signature(w, other) == canonical_signature(w, c));
      BOOST_TEST(memory_estimate(w, other).total_bytes() == memory_estimate(w, c).total_bytes());
      BOOST_TEST(illegal_because(w, other).empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(kind_blocks_and_options_are_part_of_the_signature) {
  const Workload w = transformer({});
  const Candidate c = make({1, 1, 2, 1}, {{"sequence", {"context"}}});
  std::set<std::string> signatures{canonical_signature(w, c)};
  const auto differs = [&](auto change) {
    Candidate other = c;
    change(other);
    return signatures.insert(canonical_signature(w, other)).second;
  };
  BOOST_TEST(differs([](Candidate& x) { x.attention = AttentionKind::ulysses; }));
  BOOST_TEST(differs([](Candidate& x) { x.blocks.queries = 256; }));
  BOOST_TEST(differs([](Candidate& x) { x.blocks.keys = 256; }));
  BOOST_TEST(differs([](Candidate& x) { x.compiler_options = {{"a", "b;1:c1:d"}}; }));
  BOOST_TEST(differs([](Candidate& x) { x.compiler_options = {{"a", "b"}, {"c", "d"}}; }));
}

BOOST_AUTO_TEST_CASE(the_order_of_axes_on_a_dimension_counts_where_another_tensor_has_only_one_of_them) {
  const Workload w = transformer({2, 64, 4, 2, 16, 1, 8});
  const auto with_order = [&](std::vector<std::string> embed) {
    return canonical_signature(w, make({1, 2, 2, 1}, {{"sequence", {"context"}}, {"embed", std::move(embed)}}));
  };
  BOOST_TEST(with_order({"fsdp", "context"}) != with_order({"context", "fsdp"}));
}

/// Every list of different mesh axes, in every order.
std::vector<std::vector<std::string>> ordered_rules(const std::vector<std::string>& mesh_axes) {
  std::vector<std::vector<std::string>> result{{}};
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (const std::string& axis : mesh_axes) {
      if (std::find(result[i].begin(), result[i].end(), axis) != result[i].end()) continue;
      result.push_back(result[i]);
      result.back().push_back(axis);
    }
  }
  return result;
}

// docs/candidates.md: what the search leaves out differs from what it has only in the order of axes on a dimension, and
// is as many.
BOOST_AUTO_TEST_CASE(only_orders_of_axes_on_one_dimension_are_left_out) {
  workload::Request request;
  const Workload w = workload::make_workload(request);
  const DistinctTensors tensors = distinct_tensors(w);
  for (const auto& [devices, distinct, searched] : {std::tuple{4, 57u, 51u}, std::tuple{8, 237u, 176u}}) {
    EnumerationOptions options = everything();
    options.ulysses = false;
    std::set<std::string> have, all;
    for (const Candidate& c : enumerate(w, slice_of(devices), options).candidates)
      have.insert(canonical_signature(w, tensors, c));
    for (std::int64_t d = 1; d <= devices; ++d) {
      for (std::int64_t f = 1; f <= devices / d; ++f) {
        for (std::int64_t c = 1; c <= devices / d / f; ++c) {
          if (devices % (d * f * c) != 0) continue;
          Candidate candidate = make({d, f, c, devices / d / f / c}, {});
          std::vector<std::string> mesh_axes;
          for (const MeshAxis& axis : candidate.mesh) {
            if (axis.size > 1) mesh_axes.push_back(axis.name);
          }
          const auto rules = ordered_rules(mesh_axes);
          std::vector<std::vector<std::string>> batches{d > 1 ? std::vector<std::string>{"data"}
                                                              : std::vector<std::string>{}};
          if (d > 1 && f > 1) batches.insert(batches.end(), {{"data", "fsdp"}, {"fsdp", "data"}});
          if (c > 1) candidate.rules["sequence"] = {"context"};
          for (const auto& batch : batches) {
            for (const auto& embed : rules) {
              for (const auto& heads : rules) {
                for (const auto& mlp : rules) {
                  candidate.rules["batch"] = batch;
                  candidate.rules["embed"] = embed;
                  candidate.rules["heads"] = heads;
                  candidate.rules["mlp"] = mlp;
                  if (!illegal_because(w, candidate).empty() || !idle_axes(w, candidate).empty()) continue;
                  if (!all.insert(canonical_signature(w, tensors, candidate)).second) continue;
                  Candidate in_mesh_order = candidate;
                  for (auto& [axis, rule] : in_mesh_order.rules) {
                    std::sort(rule.begin(), rule.end(), [&](const std::string& x, const std::string& y) {
                      return std::find(mesh_axes.begin(), mesh_axes.end(), x) <
                             std::find(mesh_axes.begin(), mesh_axes.end(), y);
                    });
                  }
                  BOOST_TEST(have.contains(canonical_signature(w, tensors, in_mesh_order)));
                }
              }
            }
          }
        }
      }
    }
    BOOST_TEST(all.size() == distinct);
    BOOST_TEST(have.size() == searched);
    for (const std::string& signature : have) BOOST_TEST(all.contains(signature));
  }
}

// ---- Ulysses ----

BOOST_AUTO_TEST_CASE(ulysses_is_offered_exactly_where_the_sequence_is_divided_and_the_heads_left_divide) {
  const Workload w = transformer({2, 64, 6, 2, 16, 1, 8});
  EnumerationOptions both = everything();
  both.ulysses = true;
  for (const std::int64_t devices : {2, 4, 6, 8}) {
    std::map<std::map<std::string, std::vector<std::string>>, std::set<AttentionKind>> kinds;
    std::int64_t ulysses = 0, possible = 0;
    for (const Candidate& c : enumerate(w, slice_of(devices), both).candidates) {
      const std::int64_t context = c.factor("sequence"), heads = 6 / c.factor("heads");
      const bool can = context > 1 && heads % context == 0;
      BOOST_TEST(ulysses_possible(w, c) == can);
      possible += c.attention == AttentionKind::gathered && can ? 1 : 0;
      ulysses += c.attention == AttentionKind::ulysses ? 1 : 0;
      if (c.attention == AttentionKind::ulysses) BOOST_TEST(can);
      BOOST_TEST(illegal_because(w, c).empty());
    }
    BOOST_TEST(ulysses == possible);
    BOOST_TEST((devices == 8 || ulysses > 0));
  }
}

BOOST_AUTO_TEST_CASE(ulysses_is_not_offered_where_keys_are_never_divided) {
  Workload w = transformer({});
  w.attentions.erase(w.attentions.begin());  // text only
  for (const Candidate& c : enumerate(w, slice_of(4), {}).candidates)
    BOOST_TEST((c.attention == AttentionKind::gathered));
}

// ---- Memory ----

double sum(const std::vector<double>& list) { return std::accumulate(list.begin(), list.end(), 0.0); }

double attention_bytes(const Workload& w, const Candidate& c) { return sum(attention_operands(w, c, w.attentions[0])); }

BOOST_AUTO_TEST_CASE(more_sharding_never_makes_a_term_larger) {
  const Workload w = large(32760);
  const std::vector<std::string> names{"data", "fsdp", "context", "tensor"};
  for (const Candidate& c : enumerate(w, slice_of(8), everything()).candidates) {
    for (const char* axis : {"embed", "heads", "mlp"}) {
      for (const std::string& name : names) {
        Candidate more = c;
        auto& rule = more.rules[axis];
        if (std::find(rule.begin(), rule.end(), name) != rule.end()) continue;
        rule.push_back(name);
        if (!legal(w, more)) continue;
        BOOST_TEST(weights_bytes(w, more) <= weights_bytes(w, c));
        BOOST_TEST(resident_bytes(w, more) <= resident_bytes(w, c));
        BOOST_TEST(attention_bytes(w, more) <= attention_bytes(w, c));
        BOOST_TEST(weight_sharding_factor(w, more) >= weight_sharding_factor(w, c));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(vector_memory_takes_whole_buffers_and_no_more_than_it_holds) {
  BOOST_TEST(hbm_bytes({}) == 0);
  BOOST_TEST(hbm_bytes({vmem_bytes / 2}) == 0);
  BOOST_TEST(hbm_bytes({vmem_bytes, vmem_bytes}) == vmem_bytes);
  BOOST_TEST(hbm_bytes({2 * vmem_bytes}) == 2 * vmem_bytes);
  BOOST_TEST(hbm_bytes({2 * vmem_bytes, vmem_bytes / 4}) == 2 * vmem_bytes);
}

BOOST_AUTO_TEST_CASE(a_divided_contraction_needs_its_result_beside_the_residual_stream) {
  const Workload w = large(75600);
  const double residual = 2.0 * 75600 * 5120 * 2, hidden = 2.0 * 75600 * 13824 * 2;
  const Tensor& wide = w.activations.back();
  const Candidate whole = make({1, 2, 1, 2}, {{"embed", {"fsdp"}}, {"heads", {"tensor"}}});
  BOOST_TEST(sum(contraction_operands(w, whole, wide)) == residual / 2 + hidden);
  const Candidate divided = make({1, 1, 1, 4}, {{"heads", {"tensor"}}, {"mlp", {"tensor"}}});
  BOOST_TEST(sum(contraction_operands(w, divided, wide)) == 2 * residual + hidden / 4);
  // The hidden axis' context is taken by the sequence: its weight is gathered, no contraction is divided.
  const Candidate gathered = make({1, 1, 4, 1}, {{"sequence", {"context"}}, {"mlp", {"context"}}});
  BOOST_TEST(sum(contraction_operands(w, gathered, wide)) == residual / 4 + hidden / 4);
}

BOOST_AUTO_TEST_CASE(weights_are_exact) {
  const Workload w = large(32760);
  const double matrices = 40.0 * (4 * 5120.0 * 5120 + 2 * 5120.0 * 13824) * 2, norms = 40.0 * 5120 * 4;
  BOOST_TEST(total_weights_bytes(w) == matrices + norms);
  const Candidate all = make({1, 1, 4, 2}, {{"embed", {"context"}}, {"heads", {"tensor"}}, {"mlp", {"tensor"}}});
  BOOST_TEST(weights_bytes(w, all) == matrices / 8 + norms);
  BOOST_TEST(weight_sharding_factor(w, all) == 8);
  const Candidate attention_only = make({1, 1, 1, 4}, {{"heads", {"tensor"}}});
  BOOST_TEST(weight_sharding_factor(w, attention_only) == 1);
}

// What the kernel of a real compile takes: recorded flash_d2c2t2 has queries and result bf16[20,5120,128], keys and
// values bf16[20,9728,128]; flash_d2c8_4x4 has bf16[40,1536,128] and bf16[40,9728,128].
BOOST_AUTO_TEST_CASE(attention_operands_are_those_of_recorded_programs) {
  const Workload w = large(9360, 2);
  const Candidate d2c2t2 = make({2, 1, 2, 2}, {{"batch", {"data"}},
                                               {"sequence", {"context"}},
                                               {"embed", {"context"}},
                                               {"heads", {"tensor"}},
                                               {"mlp", {"tensor"}}});
  BOOST_TEST(attention_bytes(w, d2c2t2) == 2 * (5120.0 + 9728) * 20 * 128 * 2);
  const Candidate d2c8 = make({2, 1, 8, 1}, {{"batch", {"data"}}, {"sequence", {"context"}}, {"embed", {"context"}}});
  BOOST_TEST(attention_bytes(w, d2c8) == 2 * (1536.0 + 9728) * 40 * 128 * 2);
  Candidate ulysses = make({1, 1, 8, 1}, {{"sequence", {"context"}}, {"embed", {"context"}}});
  ulysses.attention = AttentionKind::ulysses;
  BOOST_TEST(attention_bytes(w, ulysses) == 2 * (9728.0 + 9728) * 2 * 5 * 128 * 2);
}

// Temporaries the compiler itself reported for the recorded programs (memory-usage-report: 908.92 and 625.75 MiB):
// never less than M̂'s.
BOOST_AUTO_TEST_CASE(the_estimate_stays_below_what_the_compiler_reported) {
  const Workload w = large(9360, 2);
  const auto temporaries = [&](const Candidate& c) {
    const MemoryEstimate estimate = memory_estimate(w, c);
    BOOST_TEST(estimate.total_bytes() > estimate.weights_bytes);
    return estimate.total_bytes() - estimate.weights_bytes;
  };
  const std::map<std::string, std::vector<std::string>> rules{{"batch", {"data"}},
                                                              {"sequence", {"context"}},
                                                              {"embed", {"context"}},
                                                              {"heads", {"tensor"}},
                                                              {"mlp", {"tensor"}}};
  BOOST_TEST(temporaries(make({2, 1, 2, 2}, rules)) <= 908.92 * MiB);
  BOOST_TEST(temporaries(make({2, 1, 8, 1}, rules)) <= 625.75 * MiB);
}

BOOST_AUTO_TEST_CASE(the_estimate_grows_with_tokens_and_with_layers) {
  const Candidate c = make({1, 1, 4, 1}, {{"sequence", {"context"}}, {"embed", {"context"}}});
  double before = 0;
  for (const std::int64_t tokens : {9360, 17160, 32760, 75600}) {
    const double now = memory_estimate(large(tokens), c).total_bytes();
    BOOST_TEST(now > before);
    before = now;
  }
  BOOST_TEST(memory_estimate(large(9360, 40), c).weights_bytes ==
             20 * memory_estimate(large(9360, 2), c).weights_bytes);
}

// ---- What cannot be done ----

BOOST_AUTO_TEST_CASE(nothing_fits_says_how_much_is_missing) {
  const Workload w = large(75600);
  const Enumeration all = enumerate(w, slice_of(2), everything());
  try {
    enumerate(w, slice_of(2, 4 * GiB), {});
    BOOST_ERROR("a model of 20 GiB cannot fit in 2 x 4 GiB");
  } catch (const Infeasible& error) {
    const std::string text = error.what();
    char missing[32];
    std::snprintf(missing, sizeof missing, "%.2f GiB too much", (all.smallest_estimate_bytes - 4 * GiB) / GiB);
    BOOST_TEST(text.find(missing) != std::string::npos, text);
    BOOST_TEST(text.find("4.00 GiB") != std::string::npos);
    BOOST_TEST(text.find("More devices") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(no_mesh_divides_says_what_would) {
  Workload w = transformer({1, 64, 4, 2, 16, 1, 8});
  std::erase_if(w.axes, [](const workload::Axis& axis) { return axis.kind == AxisKind::sequence; });
  BOOST_CHECK_EXCEPTION(enumerate(w, slice_of(7), {}), Infeasible, [](const Infeasible& error) {
    return std::string(error.what()).find("7 devices") != std::string::npos &&
           std::string(error.what()).find("heads 4") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(an_asked_factor_that_nothing_reaches_is_named) {
  EnumerationOptions options;
  options.minimum_weight_sharding = 64;
  BOOST_CHECK_EXCEPTION(enumerate(large(9360), slice_of(4), options), Infeasible, [](const Infeasible& error) {
    return std::string(error.what()).find("minimum_weight_sharding") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(idle_axes_are_let_in_only_when_asked_and_need_no_less_memory_for_weights) {
  std::mt19937 random(19);
  for (const std::int64_t devices : {2, 3, 4, 6, 8}) {
    const Workload w = random_workload(random);
    EnumerationOptions asked = everything();
    asked.idle_axes = true;
    const Enumeration with = enumerate(w, slice_of(devices), asked);
    std::int64_t idle_ones = 0;
    for (const Candidate& c : with.candidates) idle_ones += idle(w, c) ? 1 : 0;
    BOOST_TEST(idle_ones > 0);
    std::int64_t working = 0;
    for (const Candidate& c : every_assignment(devices)) working += legal(w, c) && !idle(w, c) ? 1 : 0;
    if (working == 0) continue;
    const Enumeration without = enumerate(w, slice_of(devices), everything());
    for (const Candidate& c : without.candidates) BOOST_TEST(idle_axes(w, c).empty());
    BOOST_TEST(with.distinct == without.distinct + idle_ones);
    const auto least = [&](const Enumeration& of) {
      double bytes = std::numeric_limits<double>::infinity();
      for (const Candidate& c : of.candidates) bytes = std::min(bytes, weights_bytes(w, c));
      return bytes;
    };
    BOOST_TEST(least(with) == least(without));
  }
}

// Attention is most of the weights and divides by 4, the MLP divides by nothing: no sharding reaches the factor that
// HBM suggests, yet one fits.
BOOST_AUTO_TEST_CASE(the_factor_from_memory_gives_way_where_nothing_reaches_it) {
  Workload w;
  w.axes = {{"heads", 4, AxisKind::weight}, {"mlp", 7, AxisKind::weight}};
  w.weights = {{"attention", DType::bf16, {{1 << 20, ""}, {4096, "heads"}}, 1},
               {"mlp", DType::bf16, {{1 << 20, ""}, {7, "mlp"}}, 1}};
  const double budget = total_weights_bytes(w) / 2;
  const Enumeration found = enumerate(w, slice_of(4, budget), {});
  BOOST_TEST(found.weight_sharding == 1);
  BOOST_TEST(found.with_attention > 0);
  EnumerationOptions asked;
  asked.minimum_weight_sharding = 2;
  BOOST_CHECK_THROW(enumerate(w, slice_of(4, budget), asked), Infeasible);
}

BOOST_AUTO_TEST_CASE(tables_too_free_to_enumerate_are_refused_soon) {
  Workload w = transformer({});
  for (int i = 0; i < 12; ++i) {
    const std::string name = "free" + std::to_string(i);
    w.axes.push_back({name, 1024, AxisKind::weight});
    w.weights.push_back({name, DType::bf16, {{1024, name}}, 1});
  }
  BOOST_CHECK_THROW(enumerate(w, slice_of(16), {}), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(unsound_requests_are_refused) {
  Workload w = transformer({});
  EnumerationOptions negative;
  negative.hbm_budget_bytes = -1;
  BOOST_CHECK_THROW(enumerate(w, slice_of(4), negative), InvalidRequest);
  BOOST_CHECK_THROW(enumerate(w, slice_of(0), {}), InvalidRequest);
  BOOST_CHECK_THROW(enumerate(w, slice_of(4, 0), {}), InvalidRequest);
  w.axes[0].size = 0;
  BOOST_CHECK_THROW(enumerate(w, slice_of(4), {}), InvalidRequest);
}

// ---- JSON ----

BOOST_AUTO_TEST_CASE(a_candidate_reads_back_as_it_was_written) {
  for (Candidate c : enumerate(large(9360), slice_of(8), {}).candidates) {
    c.compiler_options = {{"xla_option", "1\"0\n"}, {"", "\xc3\xa9"}};
    c.blocks = {256, 1024};
    BOOST_TEST((read_candidate(to_json(c)) == c));
  }
}

// A good candidate's text with one thing replaced.
std::string spoilt(const std::string& from, const std::string& to) {
  std::string text =
      R"({"mesh":[{"name":"data","size":1},{"name":"fsdp","size":1},{"name":"context","size":2},{"name":"tensor","size":3}],)"
      R"("rules":{"a":["context"]},"attention":"gathered","blocks":{"queries":512,"keys":256},"compiler_options":{"x":"1"}})";
  BOOST_TEST_REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

const std::vector<std::pair<std::string, std::string>> replacements{
    {R"({"name":"data","size":1},)", ""},
    {R"("name":"data")", R"("name":"pipeline")"},
    {R"("name":"data")", R"("name":"fsdp")"},
    {R"("name":"data","size":1)", R"("name":"data")"},
    {R"("name":"data","size":1)", R"("name":"data","size":1,"more":1)"},
    {R"("size":3)", R"("size":0)"},
    {R"("size":3)", R"("size":-3)"},
    {R"("size":3)", R"("size":1.5)"},
    {R"("size":3)", R"("size":"3")"},
    {R"("size":3)", R"("size":4294967296)"},
    {R"("size":3)", R"("size":99999999999999999999)"},
    {R"(["context"])", R"("context")"},
    {R"(["context"])", R"(["pipeline"])"},
    {R"(["context"])", R"(["context","context"])"},
    {R"(["context"])", R"([1])"},
    {R"("gathered")", R"("ring")"},
    {R"("queries":512)", R"("queries":0)"},
    {R"("queries":512,)", ""},
    {R"("x":"1")", R"("x":1)"},
    {R"("attention":"gathered",)", ""},
    {R"("compiler_options":{"x":"1"})", R"("compiler_options":{},"more":1)"},
};
BOOST_AUTO_TEST_CASE(what_is_no_candidate_is_refused) {
  BOOST_TEST(read_candidate(spoilt("256", "128")).blocks.keys == 128);
  for (const auto& [from, to] : replacements) {
    BOOST_TEST_CONTEXT(from << " -> " << to) { BOOST_CHECK_THROW(read_candidate(spoilt(from, to)), InvalidRequest); }
  }
  for (const char* text : {"{}", "[]", "1", "null"}) BOOST_CHECK_THROW(read_candidate(text), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(what_is_not_json_is_refused_with_its_place) {
  BOOST_CHECK_EXCEPTION(read_candidate("{\n  \"mesh\": ,"), ParseError,
                        [](const ParseError& error) { return error.line == 2; });
  BOOST_CHECK_THROW(read_candidate(std::string(100000, '[')), ParseError);
  BOOST_CHECK_THROW(read_candidate(""), ParseError);
  std::string cut = to_json(make({1, 1, 2, 1}, {{"sequence", {"context"}}}));
  for (std::size_t n = 0; n < cut.size(); ++n) BOOST_CHECK_THROW(read_candidate(cut.substr(0, n)), Error);
}

BOOST_AUTO_TEST_CASE(options_take_defaults_and_refuse_the_unknown) {
  BOOST_TEST(read_enumeration_options("{}").ulysses);
  BOOST_TEST(read_enumeration_options(R"({"hbm_budget_bytes": 5, "ulysses": false})").hbm_budget_bytes == 5);
  BOOST_CHECK_THROW(read_enumeration_options(R"({"budget": 5})"), InvalidRequest);
  BOOST_CHECK_THROW(read_enumeration_options(R"({"ulysses": 1})"), InvalidRequest);
  BOOST_CHECK_THROW(read_enumeration_options(R"({"hbm_budget_bytes": -5})"), InvalidRequest);
}

}  // namespace
}  // namespace aoizora::candidates
