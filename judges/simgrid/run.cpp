#include "simgrid/run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <simgrid/s4u.hpp>
#include <tuple>

namespace judge {
namespace {

namespace sg = simgrid::s4u;

// SimGrid counts whole bytes. Fractions of a byte would be lost where a payload is cut many times: bytes and rates are
// counted in thousandths.
constexpr double grain = 1000;

/// Collectives ready to run: what each sends, and SimGrid's hosts. A device is one host for each kind of collective,
/// because a route in SimGrid belongs to two hosts and each kind has its own limit of one flow. The hosts of a device
/// share the links.
class Machine {
 public:
  Machine(const Mesh& mesh, const std::vector<Collective>& collectives) : mesh_(mesh) {
    sg::NetZone* zone = sg::create_full_zone("mesh");
    core_ = zone->create_host("core", 1e9);
    std::map<std::string, sg::Link*> limits;
    std::vector<sg::Link*> links;
    for (std::size_t k = 0; k < mesh.wires.size(); ++k) {
      links.push_back(zone->create_link("link" + std::to_string(k), mesh.wires[k].bytes_per_second * grain));
      links.back()->seal();
    }
    std::set<std::tuple<std::string, int, int>> routed;
    for (const Collective& collective : collectives) {
      const Rate& rate = mesh.rates.at(collective.kind);
      if (rate.flow_bytes_per_second > 0 && !limits.contains(collective.kind)) {
        sg::Link* limit =
            zone->create_link("limit of " + collective.kind, rate.flow_bytes_per_second / rate.link_fraction * grain);
        limit->set_sharing_policy(sg::Link::SharingPolicy::FATPIPE);
        limit->seal();
        limits[collective.kind] = limit;
      }
      plans_.push_back(expand(collective, mesh));
      kinds_.push_back(collective.kind);
      for (const Message& message : plans_.back().messages) {
        if (!routed.emplace(collective.kind, message.from, message.to).second) continue;
        std::vector<sg::LinkInRoute> route;
        if (limits.contains(collective.kind)) route.emplace_back(limits[collective.kind]);
        for (const int wire : mesh.route(message.from, message.to)) route.emplace_back(links[wire]);
        zone->add_route(host(zone, collective.kind, message.from)->get_netpoint(),
                        host(zone, collective.kind, message.to)->get_netpoint(), nullptr, nullptr, route, false);
      }
    }
    zone->seal();
  }

  const Mesh& mesh() const { return mesh_; }
  const Plan& plan(int collective) const { return plans_[collective]; }
  const Rate& rate(int collective) const { return mesh_.rates.at(kinds_[collective]); }
  sg::Host* host(int collective, int device) const { return hosts_.at({kinds_[collective], device}); }
  sg::Host* core() const { return core_; }

 private:
  sg::Host* host(sg::NetZone* zone, const std::string& kind, int device) {
    sg::Host*& host = hosts_[{kind, device}];
    if (host == nullptr) host = zone->create_host(kind + " " + std::to_string(device), 1e9);
    return host;
  }

  const Mesh& mesh_;
  std::vector<Plan> plans_;
  std::vector<std::string> kinds_;
  std::map<std::pair<std::string, int>, sg::Host*> hosts_;
  sg::Host* core_ = nullptr;
};

/// One run of a collective: an actor for each lane, on the host that sends.
class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(const Machine& machine, int collective) : machine_(machine), collective_(collective) {}

  void start() {
    const Plan& plan = machine_.plan(collective_);
    lanes_left_ = plan.lanes.size();
    missing_.resize(plan.messages.size());
    lane_of_.resize(plan.messages.size());
    waited_by_.resize(plan.messages.size());
    for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      wake_.push_back(sg::Semaphore::create(0));
      for (const int index : plan.lanes[lane]) {
        lane_of_[index] = lane;
        missing_[index] = static_cast<int>(plan.messages[index].waits.size());
        for (const int before : plan.messages[index].waits) waited_by_[before].push_back(index);
      }
    }
    waiting_for_.assign(plan.lanes.size(), -1);
    for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      const Message& first = plan.messages[plan.lanes[lane].front()];
      sg::Actor::create("lane", machine_.host(collective_, first.from),
                        [self = shared_from_this(), lane] { self->send_lane(lane); });
    }
  }

  /// Returns at the run's end.
  void join() {
    if (lanes_left_ == 0) return;
    ++joined_;
    over_->acquire();
  }

 private:
  void send_lane(std::size_t lane) {
    const Rate& rate = machine_.rate(collective_);
    sg::this_actor::sleep_for(rate.alpha_seconds);
    const Plan& plan = machine_.plan(collective_);
    for (const int index : plan.lanes[lane]) {
      const Message& message = plan.messages[index];
      if (missing_[index] > 0) {
        waiting_for_[lane] = index;
        wake_[lane]->acquire();
        waiting_for_[lane] = -1;
      }
      sg::this_actor::sleep_for(message.latency_hops * machine_.mesh().hop_seconds);
      const double counted = message.bytes / rate.link_fraction * grain;
      if (counted >= 0.5)
        sg::Comm::sendto(machine_.host(collective_, message.from), machine_.host(collective_, message.to),
                         static_cast<std::uint64_t>(counted + 0.5));
      for (const int next : waited_by_[index])
        if (--missing_[next] == 0 && waiting_for_[lane_of_[next]] == next) wake_[lane_of_[next]]->release();
    }
    if (--lanes_left_ == 0)
      for (; joined_ > 0; --joined_) over_->release();
  }

  const Machine& machine_;
  int collective_;
  std::size_t lanes_left_ = 0;
  int joined_ = 0;
  std::vector<int> missing_;  ///< by message: arrivals it still waits for
  std::vector<std::size_t> lane_of_;
  std::vector<std::vector<int>> waited_by_;
  std::vector<int> waiting_for_;  ///< by lane: the message whose arrivals it sleeps for, -1 for none
  std::vector<sg::SemaphorePtr> wake_;
  sg::SemaphorePtr over_ = sg::Semaphore::create(0);
};

/// The core's timeline: the program is the same on every device.
class Core {
 public:
  Core(const Machine& machine, const Program& program, ProgramTimes& times)
      : machine_(machine), program_(program), times_(times), runs_(program.collectives.size()) {}

  void run(int sequence) {
    for (const Step& step : program_.sequences.at(sequence)) run(step);
  }

 private:
  static double now() { return sg::Engine::get_clock(); }
  static void wait_until(double seconds) {
    if (seconds > now()) sg::this_actor::sleep_until(seconds);
  }

  void run(const Step& step) {
    switch (step.kind) {
      case Step::Kind::compute:
        if (step.seconds > 0) sg::this_actor::sleep_for(step.seconds);
        return;
      case Step::Kind::start:
        start(step.index);
        return;
      case Step::Kind::done:
        done(step.index);
        return;
      case Step::Kind::sync:
        start(step.index);
        done(step.index);
        return;
      case Step::Kind::copy_start:
        copies_free_ = std::max(now(), copies_free_) + step.seconds;
        copies_[step.index] = copies_free_;
        return;
      case Step::Kind::copy_done:
        wait_until(copies_.at(step.index));
        return;
      case Step::Kind::loop:
        for (std::int64_t trip = 0; trip < step.trips; ++trip) {
          const double begin = now();
          if (step.index == program_.block) times_.exposed_seconds = 0;
          run(step.index);
          if (step.index == program_.block) times_.block_seconds = now() - begin;
        }
        return;
    }
  }

  void start(int collective) {
    if (runs_.at(collective)) runs_[collective]->join();
    runs_[collective] = std::make_shared<Run>(machine_, collective);
    times_.messages += static_cast<std::int64_t>(machine_.plan(collective).messages.size());
    runs_[collective]->start();
  }

  void done(int collective) {
    const double begin = now();
    if (runs_.at(collective)) runs_[collective]->join();
    times_.exposed_seconds += now() - begin;
  }

  const Machine& machine_;
  const Program& program_;
  ProgramTimes& times_;
  std::vector<std::shared_ptr<Run>> runs_;
  std::map<int, double> copies_;
  double copies_free_ = 0;
};

}  // namespace

void configure(const std::string& model) {
  if (model == "L07") {
    sg::Engine::set_config("host/model:ptask_L07");
  } else {
    sg::Engine::set_config("network/model:CM02");
    sg::Engine::set_config("network/weight-S:0");
  }
  for (const char* setting : {"network/bandwidth-factor:1", "network/latency-factor:1", "network/crosstraffic:0",
                              "network/TCP-gamma:1e15", "contexts/stack-size:64", "contexts/guard-size:0"})
    sg::Engine::set_config(setting);
}

std::vector<double> time_collectives(const Mesh& mesh, const std::vector<Collective>& collectives,
                                     const std::vector<double>& starts) {
  const Machine machine(mesh, collectives);
  std::vector<double> ends(collectives.size());
  for (std::size_t k = 0; k < collectives.size(); ++k)
    sg::Actor::create("starter", machine.core(), [&, k] {
      sg::this_actor::sleep_for(starts[k]);
      const auto run = std::make_shared<Run>(machine, static_cast<int>(k));
      run->start();
      run->join();
      ends[k] = sg::Engine::get_clock();
    });
  sg::Engine::get_instance()->run();
  return ends;
}

ProgramTimes time_program(const Mesh& mesh, const Program& program) {
  const Machine machine(mesh, program.collectives);
  ProgramTimes times;
  sg::Actor::create("core", machine.core(), [&] { Core(machine, program, times).run(program.entry); });
  sg::Engine::get_instance()->run();
  times.step_seconds = sg::Engine::get_clock();
  return times;
}

}  // namespace judge
