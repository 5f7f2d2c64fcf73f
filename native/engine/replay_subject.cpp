// SPDX-License-Identifier: Apache-2.0
#include "engine/replay_subject.hpp"

#include <string>
#include <utility>

#include "policy/baseline/expandable_model.hpp"
#include "policy/baseline/native_model.hpp"

namespace penstock::engine {
namespace {

namespace baseline = policy::baseline;

class ModelSubject final : public ReplaySubject {
 public:
  ModelSubject(std::unique_ptr<baseline::Model> model, const driver::DriverCosts& costs,
               Bytes capacity)
      : model_(std::move(model)), costs_(costs), capacity_(capacity) {}

  Status allocate(Bytes bytes, std::uint32_t stream, std::uint64_t& handle) override {
    const auto block = model_->allocate(bytes, stream);
    if (!block) {
      return {Code::kOutOfMemory, std::to_string(bytes) +
                                      " bytes do not fit: " + std::to_string(model_->reserved()) +
                                      " of " + std::to_string(capacity_) + " are reserved"};
    }
    handle = *block;
    return {};
  }
  Status free(std::uint64_t handle) override {
    model_->free(static_cast<baseline::Handle>(handle));
    return {};
  }

  Bytes reserved() const override { return model_->reserved(); }
  Bytes peak_reserved() const override { return model_->peak_reserved(); }
  std::int64_t map_calls() const override { return model_->calls().map; }
  double modelled_us() const override {
    const baseline::DeviceCalls& calls = model_->calls();
    return static_cast<double>(calls.create) * costs_.create_us +
           static_cast<double>(calls.map) * costs_.map_us +
           static_cast<double>(calls.set_access) * costs_.set_access_us +
           static_cast<double>(calls.unmap) * costs_.unmap_us;
  }

 private:
  std::unique_ptr<baseline::Model> model_;
  const driver::DriverCosts costs_;
  const Bytes capacity_;
};

}  // namespace

Result<std::unique_ptr<ReplaySubject>> make_replay_subject(const ReplaySubjectOptions& options,
                                                           std::uint32_t streams) {
  const auto model = [&](std::unique_ptr<baseline::Model> made) {
    return std::unique_ptr<ReplaySubject>(
        std::make_unique<ModelSubject>(std::move(made), options.costs, options.capacity));
  };
  switch (options.allocator) {
    case ReplayAllocator::kNative:
      return model(std::make_unique<baseline::NativeModel>(options.capacity));
    case ReplayAllocator::kExpandable:
      return model(std::make_unique<baseline::ExpandableModel>(options.capacity));
    case ReplayAllocator::kStitch:
      break;
  }
  return make_stitch_subject(options, streams);
}

}  // namespace penstock::engine
