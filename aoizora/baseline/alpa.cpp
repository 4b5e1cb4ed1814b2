#include "aoizora/baseline/alpa.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "aoizora/candidates/sharding.h"
#include "aoizora/errors.h"
#include "aoizora/prediction/prediction.h"

namespace aoizora::baseline {
namespace {

using candidates::MeshAxis;
using topology::CollectiveKind;
using workload::AxisKind;

constexpr std::size_t kMaximumAxes = 4;
/// A set of mesh axes: bit i for the i-th axis larger than 1.
using Mask = unsigned;
/// The logical axis each mesh axis divides; -1 for none.
using Layout = std::array<Label, kMaximumAxes>;
constexpr Layout kReplicated{-1, -1, -1, -1};
constexpr int kAnyKind = -1;
// Bounds on what a table of many axes may make us do; Wan stays below a hundredth of them.
constexpr double kMaximumStrategies = 1 << 17;
constexpr std::size_t kMaximumPairs = std::size_t{1} << 22;

struct Strategy {
  Layout output = kReplicated;
  Layout input = kReplicated;  ///< a contraction's activation
  Layout keys = kReplicated;   ///< of an attention kernel
  Layout storage = kReplicated;
  double compute_seconds = 0;
  double communication_seconds = 0;
  double resident_bytes = 0;
  double transient_bytes = 0;   ///< the gathered weight
  std::map<Label, Mask> rules;  ///< what it asks of each axis' rule
  int kind = kAnyKind;          ///< what it asks of the attention kind
};

bool has(const std::vector<Label>& labels, Label label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

Layout restricted(const Layout& layout, const std::vector<Label>& labels) {
  Layout result = layout;
  for (Label& at : result) {
    if (!has(labels, at)) at = -1;
  }
  return result;
}

class ProblemBuilder {
 public:
  ProblemBuilder(const OperatorGraph& graph, const workload::Workload& workload, const topology::Hardware& hardware,
                 const std::vector<MeshAxis>& mesh, const AlpaOptions& options)
      : graph_(graph), workload_(workload), hardware_(hardware), options_(options) {
    result_.mesh = mesh;
    for (const MeshAxis& axis : mesh) {
      if (axis.size > 1) axes_.push_back(axis);
    }
    if (axes_.size() > kMaximumAxes) throw InvalidRequest("the logical mesh has more than four axes larger than 1");
    for (Mask m = 0; m < axes_.size(); ++m) present_ |= 1U << m;
  }

  AlpaProblem build() {
    for (std::size_t v = 0; v < graph_.operators.size(); ++v) add_operator(v);
    for (const Read& read : graph_.reads) add_read(read);
    if (options_.rules) add_rules();
    add_memory();
    return std::move(result_);
  }

 private:
  // -- sizes

  std::int64_t size(Mask mask) const {
    std::int64_t product = 1;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (mask >> a & 1) product *= axes_[a].size;
    }
    return product;
  }

  Mask on(const Layout& layout, Label label) const {
    Mask mask = 0;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (label >= 0 && layout[a] == label) mask |= 1U << a;
    }
    return mask;
  }

  Layout put(Layout layout, Mask mask, Label label) const {
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (mask >> a & 1) layout[a] = label;
    }
    return layout;
  }

  Mask named(const char* name) const {
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (axes_[a].name == name) return 1U << a;
    }
    return 0;
  }

  /// The part of a tensor with these labels that one device holds: the largest, where a sequence is uneven.
  double share(const std::vector<Label>& labels, const Layout& layout) const {
    double result = 1;
    for (const Label label : labels) {
      const std::int64_t parts = size(on(layout, label));
      const std::int64_t whole = std::max<std::int64_t>(1, workload_.axes[label].size);
      if (parts > 1) result *= static_cast<double>((whole - 1) / parts + 1) / static_cast<double>(whole);
    }
    return result;
  }

  bool divides(Label label, Mask mask) const {
    if (mask == 0) return true;
    if (label < 0) return false;
    const workload::Axis& axis = workload_.axes[label];
    const std::int64_t parts = size(mask);
    if (axis.kind == AxisKind::whole) return false;
    if (axis.kind == AxisKind::sequence) return (parts - 1) * ((axis.size - 1) / parts + 1) < axis.size;
    if (axis.size % parts != 0) return false;
    return std::all_of(workload_.weights.begin(), workload_.weights.end(), [&](const workload::Tensor& weight) {
      return std::all_of(weight.dims.begin(), weight.dims.end(),
                         [&](const workload::Dim& dim) { return dim.axis != axis.name || dim.size % parts == 0; });
    });
  }

  // -- costs

  /// alpha + beta phi(n) B, by stage one's own formula.
  double collective_seconds(CollectiveKind kind, Mask group, double payload_bytes) const {
    if (group == 0) return 0;
    prediction::Node node;
    node.kind = prediction::NodeKind::visible_collective;
    node.collective = kind;
    node.group_size = size(group);
    node.payload_bytes = payload_bytes;
    return prediction::score({{node}, 0}, hardware_, 1).communication_seconds;
  }

  /// From one layout of a tensor to another: cut what is free, exchange axes that change dimension, gather the rest.
  double reshard_seconds(double bytes, const std::vector<Label>& labels, const Layout& from, const Layout& to) const {
    Mask moved = 0, gathered = 0;
    Layout held = from, exchanged = from;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (from[a] < 0) held[a] = exchanged[a] = to[a];
      if (from[a] >= 0 && to[a] >= 0 && from[a] != to[a]) {
        moved |= 1U << a;
        exchanged[a] = to[a];
      }
      if (from[a] >= 0 && to[a] < 0) gathered |= 1U << a;
    }
    return collective_seconds(CollectiveKind::all_to_all, moved, bytes * share(labels, held)) +
           collective_seconds(CollectiveKind::all_gather, gathered, bytes * share(labels, to));
  }

  double compute_seconds(double flops, double bytes) const {
    const double rho = hardware_.peak_flops_per_second.value * hardware_.matmul_efficiency.value;
    const double hbm = hardware_.hbm_bytes_per_second.value;
    return std::max(rho > 0 ? flops / rho : 0, hbm > 0 ? bytes / hbm : 0) / hardware_.core_efficiency.value;
  }

  double reductions_seconds(const Operator& op, const Layout& output) const {
    double seconds = 0;
    for (const Reduction& r : op.reductions)
      seconds += collective_seconds(CollectiveKind::all_reduce, on(output, r.label), r.bytes * share(r.labels, output));
    return seconds;
  }

  // -- rules

  bool on_activations(Label label) const {
    return std::any_of(workload_.activations.begin(), workload_.activations.end(), [&](const workload::Tensor& t) {
      return std::any_of(t.dims.begin(), t.dims.end(),
                         [&](const workload::Dim& dim) { return dim.axis == workload_.axes[label].name; });
    });
  }

  /// Heads that enter an attention kernel take their rule whole.
  bool fixed_on_activations(Label label) const {
    return std::any_of(workload_.attentions.begin(), workload_.attentions.end(), [&](const workload::Attention& a) {
      return candidates::head_axis(workload_, a) == workload_.axes[label].name;
    });
  }

  /// Rules an axis may have, as the candidates room enumerates them.
  std::vector<Mask> rule_options(Label label) const {
    if (label < 0) return {0};
    const AxisKind kind = workload_.axes[label].kind;
    std::vector<Mask> options;
    if (kind == AxisKind::weight) {
      for (Mask m = 0; m <= present_; ++m) {
        if (divides(label, m)) options.push_back(m);
      }
    } else if (kind == AxisKind::batch) {
      const Mask data = named("data"), fsdp = named("fsdp");
      options.push_back(data);
      if (data != 0 && fsdp != 0) options.push_back(data | fsdp);
      std::erase_if(options, [&](Mask m) { return !divides(label, m); });
    } else if (kind == AxisKind::sequence) {
      if (divides(label, named("context"))) options.push_back(named("context"));
    } else {
      options.push_back(0);
    }
    return options;
  }

  void bound_strategies(double count) const {
    if (count > kMaximumStrategies)
      throw InvalidRequest(
          "an operator has more than 131072 shardings on this logical mesh: fewer axes on one tensor, "
          "or fewer mesh axes, are needed");
  }

  /// Every combination of the rules of these axes.
  void each_rules(const std::vector<Label>& labels, std::map<Label, Mask>& chosen, std::size_t next,
                  const std::function<void(const std::map<Label, Mask>&)>& visit) const {
    if (next == labels.size()) return visit(chosen);
    if (next == 0) {
      double count = std::pow(2.0, static_cast<double>(axes_.size()));
      for (const Label at : labels) count *= static_cast<double>(rule_options(at).size());
      bound_strategies(count);
    }
    for (const Mask option : rule_options(labels[next])) {
      chosen[labels[next]] = option;
      each_rules(labels, chosen, next + 1, visit);
    }
    chosen.erase(labels[next]);
  }

  std::vector<Label> ruled(std::vector<Label> labels) const {
    std::sort(labels.begin(), labels.end());
    labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
    std::erase_if(labels, [&](Label at) { return at < 0 || workload_.axes[at].kind == AxisKind::whole; });
    return labels;
  }

  /// The layout the rules give a result; nullopt where a mesh axis would divide two dimensions.
  std::optional<Layout> ruled_layout(const std::vector<Label>& labels, const std::map<Label, Mask>& rules) const {
    Layout layout = kReplicated;
    Mask used = 0;
    const auto take = [&](Label label, Mask mask) {
      const bool clash = (mask & used) != 0;
      used |= mask;
      layout = put(layout, mask, label);
      return !clash;
    };
    const auto yields = [&](Label at) {
      return workload_.axes[at].kind == AxisKind::weight && !fixed_on_activations(at);
    };
    for (const bool yielding : {false, true}) {
      for (const Label at : labels) {
        const auto rule = rules.find(at);
        if (rule == rules.end() || yields(at) != yielding) continue;
        if (workload_.axes[at].kind == AxisKind::weight && !on_activations(at)) continue;
        if (!take(at, yielding ? rule->second & ~used : rule->second)) return std::nullopt;
      }
    }
    return layout;
  }

  // -- strategies

  void contraction(const Operator& op, std::vector<Strategy>& out) const {
    if (!options_.rules) return free_contraction(op, out);
    std::vector<Label> labels = op.labels;
    labels.push_back(op.in_label);
    labels.push_back(op.out_label);
    std::map<Label, Mask> chosen;
    each_rules(ruled(labels), chosen, 0, [&](const std::map<Label, Mask>& rules) {
      const auto output = ruled_layout(op.labels, rules);
      const auto rule = [&](Label at) {
        const auto found = rules.find(at);
        return found == rules.end() ? Mask{0} : found->second;
      };
      const Mask in = rule(op.in_label), to = rule(op.out_label);
      if (!output || (in & to) != 0) return;
      const Layout storage = put(put(kReplicated, in, op.in_label), to, op.out_label);
      Mask idle = present_;
      for (std::size_t a = 0; a < axes_.size(); ++a) {
        if ((*output)[a] >= 0) idle &= ~(1U << a);
      }
      for (Mask k = 0; k <= present_; ++k) {  // axes on the contracted dimension
        if ((k & ~idle) != 0 || !divides(op.in_label, k) || (k != 0 && has(op.labels, op.in_label))) continue;
        Strategy s = contraction_strategy(op, *output, k, storage);
        s.rules = rules;
        out.push_back(std::move(s));
      }
    });
  }

  Strategy contraction_strategy(const Operator& op, const Layout& output, Mask contracted,
                                const Layout& storage) const {
    const workload::Tensor& weight = workload_.weights[op.weight];
    double weight_bytes = bits(weight.dtype) / 8.0;
    std::vector<Label> weight_labels;
    for (const workload::Dim& dim : weight.dims) {
      weight_bytes *= static_cast<double>(dim.size);
      for (std::size_t a = 0; a < workload_.axes.size(); ++a) {
        if (!dim.axis.empty() && workload_.axes[a].name == dim.axis) weight_labels.push_back(static_cast<Label>(a));
      }
    }
    Strategy s;
    s.output = output;
    s.storage = storage;
    const Layout whole = put(output, contracted, op.in_label);
    s.input = restricted(whole, op.input_labels);
    // A dimension of the input that the result has too, as a label of the contraction, is divided by neither alone.
    const Layout used = put(put(kReplicated, on(output, op.out_label), op.out_label), contracted, op.in_label);
    const double local_weight = weight_bytes * share(weight_labels, used);
    const double local_output = op.output_bytes * share(op.labels, output);
    std::vector<Label> iteration = op.labels;
    if (op.in_label >= 0 && !has(iteration, op.in_label)) iteration.push_back(op.in_label);
    s.compute_seconds = compute_seconds(op.flops * share(iteration, whole),
                                        op.input_bytes * share(op.input_labels, s.input) + local_weight + local_output);
    const double gather = reshard_seconds(weight_bytes, weight_labels, storage, used);
    s.communication_seconds = gather + collective_seconds(CollectiveKind::all_reduce, contracted, local_output) +
                              reductions_seconds(op, output);
    s.resident_bytes = weight_bytes * static_cast<double>(weight.repeat) * share(weight_labels, storage);
    s.transient_bytes = gather > 0 ? local_weight : 0;
    return s;
  }

  /// Every way to give each mesh axis one of the labels or none, the first axis fastest.
  void each_layout(const std::vector<Label>& labels, const std::function<void(const Layout&)>& visit) const {
    std::array<std::size_t, kMaximumAxes> at{};  // 0: none
    while (true) {
      Layout layout = kReplicated;
      for (std::size_t a = 0; a < kMaximumAxes; ++a) {
        if (at[a] > 0) layout[a] = labels[at[a] - 1];
      }
      if (std::all_of(labels.begin(), labels.end(), [&](Label label) { return divides(label, on(layout, label)); }))
        visit(layout);
      std::size_t a = 0;
      while (a < kMaximumAxes && a < axes_.size() && at[a] == labels.size()) at[a++] = 0;
      if (a >= kMaximumAxes || a >= axes_.size()) return;
      ++at[a];
    }
  }

  void free_contraction(const Operator& op, std::vector<Strategy>& out) const {
    std::vector<Label> labels = op.labels;
    labels.push_back(op.in_label);
    std::vector<Label> stored = ruled({op.in_label, op.out_label});
    bound_strategies(
        std::pow(static_cast<double>((labels.size() + 1) * (stored.size() + 1)), static_cast<double>(axes_.size())));
    std::map<std::pair<Layout, Layout>, std::vector<Strategy>> best;
    each_layout(ruled(labels), [&](const Layout& whole) {
      const Mask contracted = has(op.labels, op.in_label) ? 0 : on(whole, op.in_label);
      const Layout output = restricted(whole, op.labels);
      each_layout(stored, [&](const Layout& storage) {
        Strategy s = contraction_strategy(op, output, contracted, storage);
        auto& kept = best[{s.output, s.input}];
        const auto beats = [](const Strategy& a, const Strategy& b) {
          return a.communication_seconds <= b.communication_seconds && a.resident_bytes <= b.resident_bytes &&
                 a.transient_bytes <= b.transient_bytes;
        };
        if (std::any_of(kept.begin(), kept.end(), [&](const Strategy& k) { return beats(k, s); })) return;
        std::erase_if(kept, [&](const Strategy& k) { return beats(s, k); });
        kept.push_back(std::move(s));
      });
    });
    for (auto& [layouts, kept] : best) out.insert(out.end(), kept.begin(), kept.end());
  }

  Label label_of(const std::string& axis) const {
    for (std::size_t a = 0; a < workload_.axes.size(); ++a) {
      if (!axis.empty() && workload_.axes[a].name == axis) return static_cast<Label>(a);
    }
    return -1;
  }

  void attention(const Operator& op, std::vector<Strategy>& out) const {
    const workload::Attention& site = workload_.attentions[op.attention];
    const Label heads = label_of(candidates::head_axis(workload_, site));
    const Label queries = label_of(site.query_axis), keys = label_of(site.key_axis);
    const auto add = [&](const Layout& output, const std::map<Label, Mask>& rules, int kind) {
      if (!divides(heads, on(output, heads))) return;
      Strategy s;
      s.output = output;
      s.keys = put(output, on(output, queries), -1);
      s.compute_seconds = kernel_seconds(site, output, heads, queries);
      s.communication_seconds = reductions_seconds(op, output);
      s.rules = rules;
      s.kind = kind;
      out.push_back(std::move(s));
    };
    if (!options_.rules) {
      bound_strategies(std::pow(static_cast<double>(op.labels.size() + 1), static_cast<double>(axes_.size())));
      each_layout(ruled(op.labels), [&](const Layout& layout) { add(layout, {}, kAnyKind); });
      return;
    }
    std::map<Label, Mask> chosen;
    each_rules(ruled(op.labels), chosen, 0, [&](const std::map<Label, Mask>& rules) {
      const auto output = ruled_layout(op.labels, rules);
      if (!output) return;
      const Mask context = on(*output, queries);
      const bool exchanges = context != 0 && keys == queries && heads >= 0;
      add(*output, rules, exchanges ? 0 : kAnyKind);
      if (exchanges && options_.ulysses) add(put(*output, context, heads), rules, 1);
    });
  }

  /// Cycles of the kernel / clock, the local lengths padded to the kernel's blocks, as in stage one.
  double kernel_seconds(const workload::Attention& site, const Layout& layout, Label heads, Label queries) const {
    const candidates::KernelBlocks blocks;
    const auto divided = [](std::int64_t n, std::int64_t parts) { return n / parts + (n % parts != 0 ? 1 : 0); };
    const std::int64_t batch = divided(site.batch, size(on(layout, label_of(candidates::batch_axis(workload_, site)))));
    const std::int64_t local_heads = divided(site.heads, size(on(layout, heads)));
    const std::int64_t local_queries = divided(site.queries, size(on(layout, queries)));
    const auto padded = [&](std::int64_t n, std::int64_t block) {
      return static_cast<double>(divided(n, block)) * static_cast<double>(block);
    };
    const double heads_here = static_cast<double>(batch) * static_cast<double>(local_heads);
    return topology::attention_kernel_cycles(hardware_, heads_here, padded(local_queries, blocks.queries),
                                             padded(site.keys, blocks.keys), static_cast<double>(blocks.keys),
                                             static_cast<double>(site.head_dim)) /
           hardware_.clock_hz.value / hardware_.core_efficiency.value;
  }

  void carry(const Operator& op, std::vector<Strategy>& out) const {
    const auto add = [&](const Layout& output, const std::map<Label, Mask>& rules) {
      Strategy s;
      s.output = output;
      s.communication_seconds = reductions_seconds(op, output);
      s.rules = rules;
      out.push_back(std::move(s));
    };
    if (!options_.rules) {
      bound_strategies(std::pow(static_cast<double>(op.labels.size() + 1), static_cast<double>(axes_.size())));
      each_layout(ruled(op.labels), [&](const Layout& layout) { add(layout, {}); });
      return;
    }
    std::vector<Label> labels = ruled(op.labels);
    std::erase_if(labels, [&](Label at) { return workload_.axes[at].kind == AxisKind::weight && !on_activations(at); });
    std::map<Label, Mask> chosen;
    each_rules(labels, chosen, 0, [&](const std::map<Label, Mask>& rules) {
      if (const auto output = ruled_layout(op.labels, rules)) add(*output, rules);
    });
  }

  void add_operator(std::size_t v) {
    const Operator& op = graph_.operators[v];
    std::vector<Strategy> strategies;
    if (op.kind == OperatorKind::contraction) contraction(op, strategies);
    if (op.kind == OperatorKind::attention) attention(op, strategies);
    if (op.kind == OperatorKind::carry) carry(op, strategies);
    if (strategies.empty()) throw InvalidRequest("no sharding of \"" + op.name + "\" is legal on this logical mesh");
    ChoiceNode node{op.name, {}};
    result_.choices.emplace_back();
    const auto trips = static_cast<double>(op.trips);
    for (const Strategy& s : strategies) {
      node.choices.push_back({trips * (s.compute_seconds + s.communication_seconds), s.resident_bytes});
      result_.choices.back().push_back({text(s), trips * s.compute_seconds, trips * s.communication_seconds});
    }
    result_.problem.nodes.push_back(std::move(node));
    strategies_.push_back(std::move(strategies));
  }

  std::string text(const Strategy& s) const {
    const auto print = [&](const Layout& layout) {
      std::string out;
      for (std::size_t a = 0; a < axes_.size(); ++a) {
        if (layout[a] >= 0) out += (out.empty() ? "" : " ") + workload_.axes[layout[a]].name + ":" + axes_[a].name;
      }
      return out.empty() ? std::string("replicated") : out;
    };
    std::string out = print(s.output);
    if (s.input != kReplicated) out += " | reads " + print(s.input);
    if (s.storage != kReplicated) out += " | stored " + print(s.storage);
    return out;
  }

  // -- edges

  /// Layouts of a tensor as classes of the choices of a node.
  struct Classes {
    std::vector<int> of_choice;
    std::vector<Layout> layouts;
  };
  Classes classes(int node, const std::vector<Label>& labels, Layout Strategy::* layout) const {
    Classes result;
    std::map<Layout, int> known;
    for (const Strategy& s : strategies_[node]) {
      const Layout at = restricted(s.*layout, labels);
      const auto [entry, fresh] = known.try_emplace(at, static_cast<int>(result.layouts.size()));
      if (fresh) result.layouts.push_back(at);
      result.of_choice.push_back(entry->second);
    }
    return result;
  }

  void add_read(const Read& read) {
    const FlowTensor& tensor = graph_.tensors[read.tensor];
    const Operator& consumer = graph_.operators[read.consumer];
    const auto asked = read.role == ReadRole::contracted ? &Strategy::input
                       : read.role == ReadRole::keys     ? &Strategy::keys
                                                         : &Strategy::output;
    const Classes from = classes(tensor.producer, tensor.labels, &Strategy::output);
    const Classes to = classes(read.consumer, tensor.labels, asked);
    ChoiceEdge edge{tensor.producer, read.consumer, from.of_choice, to.of_choice, {}, 0, 0};
    if (from.layouts.size() * to.layouts.size() > kMaximumPairs)
      throw InvalidRequest("two operators have more than 2^22 pairs of layouts on this logical mesh");
    edge.from_classes = static_cast<int>(from.layouts.size());
    edge.to_classes = static_cast<int>(to.layouts.size());
    MemoryMoment::EdgeTerm copies{static_cast<int>(result_.problem.edges.size()), {}};
    for (const Layout& p : from.layouts) {
      for (const Layout& q : to.layouts) {
        const double seconds = reshard_seconds(tensor.bytes, tensor.labels, p, q);
        edge.cost_seconds.push_back(static_cast<double>(read.trips) * seconds);
        copies.bytes.push_back(seconds > 0 ? tensor.bytes * share(tensor.labels, q) : 0);
      }
    }
    result_.problem.edges.push_back(std::move(edge));
    if (consumer.kind != OperatorKind::carry) copies_.emplace_back(read.consumer, std::move(copies));
  }

  void add_rules() {
    constexpr double forbidden = std::numeric_limits<double>::infinity();
    const auto join = [&](int node, const std::vector<int>& wanted, int options) {  // wanted: -1 for any
      const int rule_node = static_cast<int>(result_.problem.nodes.size()) - 1;
      ChoiceEdge edge{node, rule_node, {}, {}, {}, options + 1, options};
      for (const int w : wanted) edge.from_class.push_back(w < 0 ? options : w);
      for (int o = 0; o < options; ++o) edge.to_class.push_back(o);
      for (int p = 0; p <= options; ++p) {
        for (int q = 0; q < options; ++q) edge.cost_seconds.push_back(p == q || p == options ? 0 : forbidden);
      }
      result_.problem.edges.push_back(std::move(edge));
    };
    for (std::size_t a = 0; a < workload_.axes.size(); ++a) {
      const auto label = static_cast<Label>(a);
      if (workload_.axes[a].kind == AxisKind::whole) continue;
      const std::vector<Mask> options = rule_options(label);
      if (options.empty())
        throw InvalidRequest("the logical mesh does not divide the axis \"" + workload_.axes[a].name + "\"");
      RuleNode rule{workload_.axes[a].name, {}};
      for (const Mask option : options) rule.options.push_back(names(option));
      result_.rules.push_back(std::move(rule));
      result_.problem.nodes.push_back({"rule " + workload_.axes[a].name, std::vector<Choice>(options.size())});
      for (std::size_t v = 0; v < strategies_.size(); ++v) {
        std::vector<int> wanted;
        for (const Strategy& s : strategies_[v]) {
          const auto asked = s.rules.find(label);
          wanted.push_back(
              asked == s.rules.end()
                  ? -1
                  : static_cast<int>(std::find(options.begin(), options.end(), asked->second) - options.begin()));
        }
        if (std::any_of(wanted.begin(), wanted.end(), [](int w) { return w >= 0; }))
          join(static_cast<int>(v), wanted, static_cast<int>(options.size()));
      }
    }
    result_.rules.push_back({"", {{"gathered"}, {"ulysses"}}});
    result_.problem.nodes.push_back({"attention kind", std::vector<Choice>(2)});
    // Where nothing tells the two apart the kernel is the plain one.
    bool told_apart = false;
    for (std::size_t v = 0; v < strategies_.size(); ++v) {
      std::vector<int> wanted;
      for (const Strategy& s : strategies_[v]) wanted.push_back(s.kind);
      const bool ulysses = std::find(wanted.begin(), wanted.end(), 1) != wanted.end();
      told_apart = told_apart || ulysses;
      if (std::any_of(wanted.begin(), wanted.end(), [](int w) { return w >= 0; })) join(static_cast<int>(v), wanted, 2);
    }
    if (!told_apart) {
      result_.rules.back().options.pop_back();
      result_.problem.nodes.back().choices.pop_back();
      const int node = static_cast<int>(result_.problem.nodes.size()) - 1;
      std::erase_if(result_.problem.edges, [&](const ChoiceEdge& edge) { return edge.to == node; });
    }
  }

  std::vector<std::string> names(Mask mask) const {
    std::vector<std::string> result;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (mask >> a & 1) result.push_back(axes_[a].name);
    }
    return result;
  }

  // -- memory

  void add_memory() {
    const double hbm =
        options_.hbm_budget_bytes > 0 ? static_cast<double>(options_.hbm_budget_bytes) : hardware_.hbm_bytes.value;
    result_.problem.memory_bytes = options_.memory ? hbm : 0;
    for (const int w : graph_.unread_weights) {
      const workload::Tensor& weight = workload_.weights[w];
      double bytes = bits(weight.dtype) / 8.0 * static_cast<double>(weight.repeat);
      for (const workload::Dim& dim : weight.dims) bytes *= static_cast<double>(dim.size);
      result_.problem.resident_bytes += bytes;
    }
    const auto count = static_cast<int>(graph_.operators.size());
    int block_end = -1;
    for (int v = 0; v < count; ++v) {
      if (graph_.operators[v].in_block) block_end = v;
    }
    std::vector<int> last(graph_.tensors.size(), -1);
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) last[t] = graph_.tensors[t].producer;
    for (const Read& read : graph_.reads) {
      const int producer = graph_.tensors[read.tensor].producer;
      const bool from_outside = graph_.operators[read.consumer].in_block && !graph_.operators[producer].in_block &&
                                graph_.operators[read.consumer].kind != OperatorKind::carry;
      const bool back = read.consumer < producer;
      last[read.tensor] = std::max(last[read.tensor], from_outside || back ? block_end : read.consumer);
    }
    for (int v = 0; v < count; ++v) {
      MemoryMoment moment;
      bool own = false;
      for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
        const FlowTensor& tensor = graph_.tensors[t];
        if (tensor.producer > v || last[t] < v) continue;
        own = own || tensor.producer == v;
        moment.nodes.push_back({tensor.producer, held(tensor.producer, tensor.bytes, tensor.labels)});
      }
      const Operator& op = graph_.operators[v];
      if (!own) moment.nodes.push_back({v, held(v, op.output_bytes, op.labels)});
      MemoryMoment::NodeTerm transient{v, {}};
      for (const Strategy& s : strategies_[v]) transient.bytes.push_back(s.transient_bytes);
      moment.nodes.push_back(std::move(transient));
      for (const auto& [consumer, term] : copies_) {
        if (consumer == v) moment.edges.push_back(term);
      }
      result_.problem.moments.push_back(std::move(moment));
    }
  }

  std::vector<double> held(int node, double bytes, const std::vector<Label>& labels) const {
    std::vector<double> result;
    for (const Strategy& s : strategies_[node]) result.push_back(bytes * share(labels, s.output));
    return result;
  }

  const OperatorGraph& graph_;
  const workload::Workload& workload_;
  const topology::Hardware& hardware_;
  const AlpaOptions& options_;
  std::vector<MeshAxis> axes_;
  Mask present_ = 0;
  AlpaProblem result_;
  std::vector<std::vector<Strategy>> strategies_;
  std::vector<std::pair<int, MemoryMoment::EdgeTerm>> copies_;
};

}  // namespace

std::vector<std::vector<MeshAxis>> logical_meshes(const workload::Workload& workload, const topology::Slice& slice,
                                                  const AlpaOptions& options) {
  const auto devices = static_cast<std::int64_t>(slice.devices.size());
  std::vector<std::vector<MeshAxis>> result;
  if (!options.rules) {
    for (std::int64_t x = 1; x <= devices; ++x) {
      if (devices % x == 0 && x * x <= devices) result.push_back({{"x", devices / x}, {"y", x}});
    }
    return result;
  }
  candidates::EnumerationOptions enumeration;
  enumeration.hbm_budget_bytes = options.hbm_budget_bytes;
  enumeration.ulysses = options.ulysses;
  const auto batch_on_fsdp = [&](std::int64_t data, std::int64_t fsdp) {
    return data > 1 && std::any_of(workload.axes.begin(), workload.axes.end(), [&](const workload::Axis& axis) {
             return axis.kind == AxisKind::batch && axis.size % (data * fsdp) == 0;
           });
  };
  // Axes of size > 1, then sizes: of equal plans the one on fewer axes is found first.
  std::set<std::pair<std::ptrdiff_t, std::vector<std::int64_t>>> sizes;
  for (const auto& candidate : candidates::enumerate(workload, slice, enumeration).candidates) {
    std::int64_t data = candidate.axis_size("data"), fsdp = candidate.axis_size("fsdp");
    std::int64_t context = candidate.axis_size("context"), tensor = candidate.axis_size("tensor");
    if (fsdp > tensor && !batch_on_fsdp(data, fsdp)) std::swap(fsdp, tensor);  // alike, but for the batch
    std::vector<std::int64_t> mesh{data, fsdp, context, tensor};
    sizes.emplace(std::count_if(mesh.begin(), mesh.end(), [](std::int64_t n) { return n > 1; }), std::move(mesh));
  }
  for (const auto& [axes, mesh] : sizes)
    result.push_back({{"data", mesh[0]}, {"fsdp", mesh[1]}, {"context", mesh[2]}, {"tensor", mesh[3]}});
  return result;
}

AlpaProblem make_problem(const OperatorGraph& graph, const workload::Workload& workload,
                         const topology::Hardware& hardware, const std::vector<MeshAxis>& mesh,
                         const AlpaOptions& options) {
  return ProblemBuilder(graph, workload, hardware, mesh, options).build();
}

AlpaPlan read_plan(const AlpaProblem& problem, const workload::Workload& workload, const std::vector<int>& choices) {
  const Evaluation evaluation = evaluate(problem.problem, choices);
  if (!std::isfinite(evaluation.cost_seconds)) throw InvalidRequest("the choices contradict the axis rules");
  AlpaPlan plan;
  plan.total_seconds = evaluation.cost_seconds;
  plan.memory_bytes = evaluation.memory_bytes;
  for (std::size_t v = 0; v < problem.choices.size(); ++v) {
    const AlpaChoice& choice = problem.choices[v][choices[v]];
    plan.compute_seconds += choice.compute_seconds;
    plan.communication_seconds += choice.communication_seconds;
    plan.operators.emplace_back(problem.problem.nodes[v].name, choice.text);
  }
  plan.reshard_seconds = plan.total_seconds - plan.compute_seconds - plan.communication_seconds;
  if (problem.rules.empty()) return plan;
  plan.candidate.mesh = problem.mesh;
  for (std::size_t r = 0; r < problem.rules.size(); ++r) {
    const RuleNode& rule = problem.rules[r];
    const auto& option = rule.options[choices[problem.choices.size() + r]];
    if (rule.axis.empty()) {
      plan.candidate.attention = option.front() == candidates::name(candidates::AttentionKind::ulysses)
                                     ? candidates::AttentionKind::ulysses
                                     : candidates::AttentionKind::gathered;
    } else {
      plan.candidate.rules[rule.axis] = option;
    }
  }
  if (const std::string reason = candidates::illegal_because(workload, plan.candidate); !reason.empty())
    throw InvalidRequest("the choices are no legal candidate: " + reason);
  return plan;
}

}  // namespace aoizora::baseline
