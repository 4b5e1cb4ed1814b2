#include <boost/json.hpp>

#include "aoizora/ranking/q2.h"

namespace aoizora::ranking {

std::string to_json(const Q2& q2) {
  namespace json = boost::json;
  json::array collectives;
  for (const CollectiveCost& cost : q2.collectives) {
    collectives.push_back(json::object{{"name", cost.name},
                                       {"kind", topology::name(cost.kind)},
                                       {"runs", cost.runs},
                                       {"bytes", cost.bytes},
                                       {"seconds", cost.seconds},
                                       {"exposed_seconds", cost.exposed_seconds},
                                       {"contention_seconds", cost.contention_seconds},
                                       {"effective_bytes_per_second", cost.effective_bytes_per_second},
                                       {"links", json::value_from(cost.links)}});
  }
  const json::object compute{{"matmul_seconds", q2.compute.matmul_seconds},
                             {"attention_seconds", q2.compute.attention_seconds},
                             {"padding_seconds", q2.compute.padding_seconds},
                             {"relayout_seconds", q2.compute.relayout_seconds},
                             {"other_seconds", q2.compute.other_seconds}};
  const json::object result{{"step_seconds", q2.step_seconds},
                            {"block_seconds", q2.block_seconds},
                            {"outside_seconds", q2.outside_seconds},
                            {"contention_seconds", q2.contention_seconds},
                            {"exposed_communication_seconds", q2.exposed_communication_seconds},
                            {"compute", compute},
                            {"collectives", std::move(collectives)}};
  return json::serialize(result);
}

}  // namespace aoizora::ranking
