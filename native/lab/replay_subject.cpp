// SPDX-License-Identifier: Apache-2.0
#include "lab/replay_subject.hpp"

#include <utility>
#include <vector>

#include "engine/allocation/allocator.hpp"
#include "lab/models/expandable_model.hpp"
#include "lab/models/native_model.hpp"

namespace penstock::engine {
namespace {

namespace baseline = policy::baseline;

// Penstock's own allocator on a driver without memory.
class StitchSubject final : public ReplaySubject {
 public:
  static Result<std::unique_ptr<ReplaySubject>> open(const ReplaySubjectOptions& options,
                                                     std::uint32_t streams) {
    std::unique_ptr<StitchSubject> subject(new StitchSubject);
    PENSTOCK_ASSIGN(subject->driver_,
                    driver::ModelledDriver::open({.capacity = options.capacity,
                                                  .granularity = options.granularity,
                                                  .costs = options.costs}));
    for (std::uint32_t i = 0; i < streams; ++i) {
      PENSTOCK_ASSIGN(const driver::Stream stream, subject->driver_->create_stream());
      subject->streams_.push_back(stream);
    }
    AllocatorOptions wanted;
    wanted.budget = options.capacity;
    wanted.packing = options.packing;
    PENSTOCK_ASSIGN(subject->allocator_, Allocator::create(*subject->driver_, wanted));
    return std::unique_ptr<ReplaySubject>(std::move(subject));
  }

  Status allocate(Bytes bytes, std::uint32_t stream, std::uint64_t& handle) override {
    PENSTOCK_ASSIGN(handle, allocator_->allocate(bytes, streams_[stream]));
    return {};
  }
  Status free(std::uint64_t handle) override { return allocator_->free(handle); }

  Bytes reserved() const override { return driver_->used(); }
  Bytes peak_reserved() const override { return driver_->peak(); }
  std::int64_t map_calls() const override { return driver_->calls().map; }
  double modelled_us() const override { return driver_->modelled_us(); }
  std::int64_t stitches() const override { return allocator_->stats().stitches; }
  std::int64_t stitch_hits() const override { return allocator_->stats().stitch_hits; }

 private:
  StitchSubject() = default;

  std::unique_ptr<driver::ModelledDriver> driver_;
  std::unique_ptr<Allocator> allocator_;  // goes before its driver does
  std::vector<driver::Stream> streams_;
};

}  // namespace

Result<std::unique_ptr<ReplaySubject>> make_replay_subject(const ReplaySubjectOptions& options,
                                                           std::uint32_t streams) {
  switch (options.allocator) {
    case ReplayAllocator::kNative:
      return std::unique_ptr<ReplaySubject>(
          std::make_unique<baseline::NativeModel>(options.capacity, options.costs));
    case ReplayAllocator::kExpandable:
      return std::unique_ptr<ReplaySubject>(
          std::make_unique<baseline::ExpandableModel>(options.capacity, options.costs));
    case ReplayAllocator::kStitch:
      break;
  }
  return StitchSubject::open(options, streams);
}

}  // namespace penstock::engine
