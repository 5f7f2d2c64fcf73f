// SPDX-License-Identifier: Apache-2.0
// A device that passes every call on to another: base of those that see to some calls themselves.
#pragma once

#include "driver/driver.hpp"

namespace penstock::driver {

class ForwardingDriver : public Driver {
 public:
  explicit ForwardingDriver(Driver& device) : device_(device) {}

  const DeviceInfo& info() const override { return device_.info(); }
  LiveCounts live() const override { return device_.live(); }
  Result<MemoryInfo> memory_info() override { return device_.memory_info(); }

  Result<Addr> reserve(Bytes size) override { return device_.reserve(size); }
  Status unreserve(Addr address, Bytes size) override { return device_.unreserve(address, size); }
  Result<Chunk> create_chunk(Bytes size, Place place) override {
    return device_.create_chunk(size, place);
  }
  Status release_chunk(Chunk chunk) override { return device_.release_chunk(chunk); }
  Status map(Addr address, Bytes size, Chunk chunk) override {
    return device_.map(address, size, chunk);
  }
  Status unmap(Addr address, Bytes size) override { return device_.unmap(address, size); }
  Status set_access(Addr address, Bytes size) override { return device_.set_access(address, size); }
  Status share_with(int ordinal) override { return device_.share_with(ordinal); }

  Result<void*> host_alloc(Bytes size) override { return device_.host_alloc(size); }
  Status host_free(void* pointer) override { return device_.host_free(pointer); }
  Result<Addr> managed_alloc(Bytes size) override { return device_.managed_alloc(size); }
  Status managed_free(Addr address) override { return device_.managed_free(address); }
  Status managed_advise(Addr address, Bytes size, Advice advice) override {
    return device_.managed_advise(address, size, advice);
  }
  Status managed_prefetch(Addr address, Bytes size, Place to, Stream stream) override {
    return device_.managed_prefetch(address, size, to, stream);
  }

  Result<Stream> create_stream() override { return device_.create_stream(); }
  Status destroy_stream(Stream stream) override { return device_.destroy_stream(stream); }
  Status synchronize(Stream stream) override { return device_.synchronize(stream); }
  Status synchronize_device() override { return device_.synchronize_device(); }
  Result<bool> capturing(Stream stream) override { return device_.capturing(stream); }
  Result<Event> create_event(bool timing) override { return device_.create_event(timing); }
  Status destroy_event(Event event) override { return device_.destroy_event(event); }
  Status record(Event event, Stream stream) override { return device_.record(event, stream); }
  Status wait(Stream stream, Event event) override { return device_.wait(stream, event); }
  Status query(Event event) override { return device_.query(event); }
  Status synchronize(Event event) override { return device_.synchronize(event); }
  Result<float> elapsed_ms(Event from, Event to) override { return device_.elapsed_ms(from, to); }

  Status copy_in(Addr to, const void* from, Bytes size, Stream stream) override {
    return device_.copy_in(to, from, size, stream);
  }
  Status copy_out(void* to, Addr from, Bytes size, Stream stream) override {
    return device_.copy_out(to, from, size, stream);
  }
  Status copy_out_changed(void* to, Addr from, Bytes size, Fingerprint* fingerprint, bool still,
                          Stream stream) override {
    return device_.copy_out_changed(to, from, size, fingerprint, still, stream);
  }
  Status copy_within(Addr to, Addr from, Bytes size, Stream stream) override {
    return device_.copy_within(to, from, size, stream);
  }
  Status fill(Addr to, std::uint8_t value, Bytes size, Stream stream) override {
    return device_.fill(to, value, size, stream);
  }
  Status survey(Addr counts, Addr raw, Bytes size, Stream stream) override {
    return device_.survey(counts, raw, size, stream);
  }
  Status encode(Addr to, Addr from, const codec::Survey& survey, Stream stream) override {
    return device_.encode(to, from, survey, stream);
  }
  Status decode(Addr to, Addr from, const codec::Shape& shape, Stream stream) override {
    return device_.decode(to, from, shape, stream);
  }
  std::int64_t* modelled_time() override { return device_.modelled_time(); }

 protected:
  Driver& device_;
};

}  // namespace penstock::driver
