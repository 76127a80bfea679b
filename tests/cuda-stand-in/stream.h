// Streams and events of the host, with CUDA's semantics.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace stand_in {

using Clock = std::chrono::steady_clock;

// A thread that does one job after the other, and begins late whenever it had none: whoever does not wait reads too early.
class Stream {
 public:
  explicit Stream(int device) : launch_(&launch_raw), device_(device), thread_([this] { run(); }) {}

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Ends after the last job.
  ~Stream() {
    add({});
    thread_.join();
  }

  int device() const {
    return device_;
  }

  void launch(std::function<void()> job) {
    add(std::move(job));
  }

  // Waits for all jobs that the stream has now.
  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto number = added_;
    changed_.wait(lock, [&] { return done_ >= number; });
  }

  bool is_idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == added_;
  }

 private:
  using RawJob = void (*)(void*);

  static void launch_raw(Stream* stream, RawJob job, void* argument) {
    stream->launch([job, argument] { job(argument); });
  }

  static std::chrono::microseconds lateness();

  void add(std::function<void()> job) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back(std::move(job));
      ++added_;
    }
    changed_.notify_all();
  }

  void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      const bool was_idle = jobs_.empty();
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      if (was_idle) {
        std::this_thread::sleep_for(lateness());
      }
      if (job) {
        job();
      }
      lock.lock();
      ++done_;
      changed_.notify_all();
      if (!job) {
        return;
      }
    }
  }

  // Comes first: it is all that the stand-in for NCCL knows of a stream, which adds its jobs through it.
  void (*launch_)(Stream*, RawJob, void*);
  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  uint64_t added_ = 0;
  uint64_t done_ = 0;
  std::thread thread_;
};

// A point in a stream's work. One that was never recorded is done.
class Event {
 public:
  explicit Event(int device) : device_(device) {}

  int device() const {
    return device_;
  }

  // Puts the event behind the stream's present work.
  void record(Stream& stream) {
    const auto state = state_;
    const auto number = [&] {
      const std::lock_guard<std::mutex> lock(state->mutex);
      return ++state->recorded;
    }();
    stream.launch([state, number] {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->reached = number;
      state->time = Clock::now();
      state->changed.notify_all();
    });
  }

  // Has the stream's further work wait for the event as it was last recorded.
  void hold(Stream& stream) const {
    stream.launch([state = state_, number = recorded()] { state->wait_for(number); });
  }

  void wait() const {
    state_->wait_for(recorded());
  }

  bool is_done() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->reached >= state_->recorded;
  }

  Clock::time_point time() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->time;
  }

 private:
  // Jobs hold it, so that an event may be destroyed before they have run.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0;
    uint64_t reached = 0;
    Clock::time_point time;

    void wait_for(uint64_t number) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return reached >= number; });
    }
  };

  uint64_t recorded() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->recorded;
  }

  int device_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace stand_in
