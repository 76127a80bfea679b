//! The averaging of gradients over ranks: flat buckets that are reduced while backward still runs.

use std::ffi::c_void;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use flambeau_collective::{
    CollectiveError, DType, Device, GroupBuffer, ProcessGroup, RawBuffer, ReduceOp, Work,
};

use crate::compression::{
    self, BucketView, Compression, CompressionState, Compressor, Exchange, ParameterState,
};
use crate::elements;
use crate::error::{Cause, JobError};
use crate::history::Traffic;
use crate::layout::{BucketInfo, BucketLayout, BucketSizes, View};
use crate::model::ParameterInfo;
use crate::usage::UsageCode;

/// Averages gradients over the ranks of a group.
///
/// Its buckets lie in memory that the group owns, and live as long as the reducer: whoever holds a view holds the
/// `Arc`. All ranks make the same reducers in the same order. A step goes:
///
/// 1. [`begin`](Self::begin) before each micro-batch;
/// 2. in backward, for each parameter with a gradient: write or add to its [`view`](Self::view), then
///    [`mark_ready`](Self::mark_ready). In the last micro-batch a full bucket is reduced at once, on the calling thread;
/// 3. [`finish`](Self::finish): what no rank marked counts as zeros, and the last bucket is reduced together with the
///    sums of the step;
/// 4. [`scale`](Self::scale) and [`clip`](Self::clip), and the optimizer reads the views.
///
/// `mark_ready` may be called from any thread. The other steps are the training loop's, on one thread.
pub struct GradientReducer {
    group: ProcessGroup,
    parameters: Vec<ParameterInfo>,
    layout: BucketLayout,
    buffers: Vec<GroupBuffer>,
    compression: Compression,
    /// What makes less of each bucket; none where it travels as it is.
    compressors: Vec<Option<Mutex<Box<dyn Compressor>>>>,
    slots: Vec<Slot>,
    /// Parameters that are not yet ready, for each bucket.
    pending: Vec<AtomicUsize>,
    /// Buckets reduced in this step.
    launched: AtomicUsize,
    /// Held by the one thread that reduces.
    launching: AtomicBool,
    /// Whether full buckets are reduced on the group's communication thread rather than the caller's.
    overlaps: bool,
    /// Reductions on the communication thread that `finish` waits for.
    in_flight: Mutex<Vec<Work>>,
    /// Whether the micro-batch is the last of the step.
    reducing: AtomicBool,
    /// Number of parameters seen ready in this step, which numbers them in order.
    observed: AtomicUsize,
    /// Nanoseconds that reductions within backward took since they were last taken.
    nanos_in_backward: AtomicU64,
    /// Steps that have ended.
    num_steps: AtomicU64,
    /// Bytes that travelled in this step.
    num_bytes: AtomicU64,
    /// Bytes that travel of each bucket that is reduced as it is, padding left out: so that they do not depend on the layout.
    whole_bytes: Vec<u64>,
    /// The first failure of a reduction. Every later call gives it again.
    failure: OnceLock<Arc<CollectiveError>>,
    sums: Mutex<Sums>,
}

/// The state of one parameter within a step.
struct Slot {
    /// Whether the view holds a gradient of this step.
    filled: AtomicBool,
    /// Whether the gradient of the last micro-batch is in.
    ready: AtomicBool,
    /// When it became ready, counted among all.
    position: AtomicUsize,
}

/// What is reduced along with the last bucket.
struct Sums {
    usage: UsageCode,
    /// The caller's sums, then the usage code.
    vector: Vec<f64>,
    /// For each parameter whether any rank used it, after `finish`.
    used: Vec<bool>,
}

/// How a reducer lays out and launches its buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReducerOptions {
    /// How large buckets may be.
    pub sizes: BucketSizes,
    /// Whether full buckets are reduced on the group's communication thread while backward goes on. Worth it only
    /// where there is a core to spare for that thread: its hand-over costs more than a small reduction. Default false.
    pub overlaps: bool,
    /// How gradients are compressed on their way. Default not at all.
    pub compression: Compression,
}

/// What a failed reduction gives: shared, since the first failure is what every later call reports.
pub type ReduceError = Arc<CollectiveError>;

impl GradientReducer {
    /// Lays out buckets for `parameters` and allocates them. A collective call: all ranks make it with the same
    /// arguments.
    ///
    /// `order` is that in which the gradients are expected to become ready, every index once; without it, the reverse
    /// of the registration order.
    ///
    /// # Errors
    ///
    /// A model without parameters and a parameter that is not of a floating type are refused; otherwise what
    /// [`ProcessGroup::allocate`] says.
    pub fn new(
        group: ProcessGroup,
        parameters: Vec<ParameterInfo>,
        order: Option<&[usize]>,
        options: ReducerOptions,
    ) -> Result<GradientReducer, Cause> {
        if parameters.is_empty() {
            return Err(refused(
                "parameters",
                "[]",
                "at least one that requires a gradient",
            ));
        }
        for info in &parameters {
            let floating = matches!(
                info.dtype,
                DType::Float32 | DType::Float64 | DType::Float16 | DType::BFloat16
            );
            if !floating || info.numel == 0 {
                let value = format!("{} elements of {}", info.numel, info.dtype);
                let allowed = "float32, float64, float16 or bfloat16, and not empty";
                return Err(refused(&info.name, &value, allowed));
            }
            if let Device::Cuda(index) = info.device {
                return Err(refused(
                    &info.name,
                    &format!("on cuda:{index}"),
                    "on the CPU",
                ));
            }
        }
        let reversed: Vec<usize>;
        let order = match order {
            Some(order) => order,
            None => {
                reversed = (0..parameters.len()).rev().collect();
                &reversed
            }
        };
        let layout = BucketLayout::new(&parameters, order, options.sizes);
        let mut buffers = Vec::with_capacity(layout.buckets.len());
        for bucket in &layout.buckets {
            let buffer = group.allocate(bucket.num_bytes())?;
            // SAFETY: the buffer has that many bytes, and nobody else knows of it yet.
            unsafe {
                buffer
                    .as_ptr()
                    .cast::<u8>()
                    .write_bytes(0, bucket.num_bytes())
            };
            buffers.push(buffer);
        }
        let mut compressors = Vec::with_capacity(buffers.len());
        for bucket in &layout.buckets {
            let of_view = |&index: &usize| BucketView {
                index,
                num_rows: parameters[index].num_rows,
                range: layout.views[index].elements(bucket.dtype),
            };
            let views: Vec<BucketView> = bucket.parameters.iter().map(of_view).collect();
            let compressor = options.compression.of_bucket(&group, bucket, &views)?;
            compressors.push(compressor.map(Mutex::new));
        }
        let bytes_to_reduce = |bucket: &BucketInfo| {
            let numel = bucket
                .parameters
                .iter()
                .map(|&index| parameters[index].numel);
            2 * (numel.sum::<usize>() * bucket.dtype.size()) as u64
        };
        let whole_bytes = layout.buckets.iter().map(bytes_to_reduce).collect();
        // A rank may reach into another's buffer as soon as that one reduces.
        group.barrier()?;
        let num = parameters.len();
        let reducer = GradientReducer {
            slots: (0..num).map(|_| Slot::new()).collect(),
            pending: layout.buckets.iter().map(|_| AtomicUsize::new(0)).collect(),
            launched: AtomicUsize::new(0),
            launching: AtomicBool::new(false),
            overlaps: options.overlaps,
            in_flight: Mutex::new(vec![]),
            reducing: AtomicBool::new(false),
            observed: AtomicUsize::new(0),
            nanos_in_backward: AtomicU64::new(0),
            num_steps: AtomicU64::new(0),
            num_bytes: AtomicU64::new(0),
            whole_bytes,
            failure: OnceLock::new(),
            sums: Mutex::new(Sums {
                usage: UsageCode::new(num, group.world_size()),
                vector: vec![],
                used: vec![false; num],
            }),
            group,
            parameters,
            layout,
            buffers,
            compression: options.compression,
            compressors,
        };
        Ok(reducer)
    }

    /// The parameters, in registration order.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.parameters
    }

    /// The buckets and the views in them.
    pub fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// Where the gradient of parameter `index` lies.
    pub fn view(&self, index: usize) -> View {
        self.layout.views[index]
    }

    /// The first byte of a bucket, 64-byte aligned. Valid as long as the reducer.
    pub fn bucket_ptr(&self, bucket: usize) -> *mut c_void {
        self.buffers[bucket].as_ptr().cast()
    }

    /// The first byte of the gradient of parameter `index`, 64-byte aligned. Valid as long as the reducer.
    pub fn view_ptr(&self, index: usize) -> *mut c_void {
        let view = self.view(index);
        // SAFETY: the layout keeps every view inside its bucket.
        unsafe {
            self.buffers[view.bucket]
                .as_ptr()
                .cast::<u8>()
                .add(view.byte_offset)
                .cast()
        }
    }

    /// Whether the view of parameter `index` holds a gradient of this step already, to be added to; otherwise it is
    /// to be written over.
    pub fn is_filled(&self, index: usize) -> bool {
        self.slots[index].filled.load(Ordering::Acquire)
    }

    /// The failure of an earlier reduction, if there was one: the reason why a backward failed that called
    /// [`mark_ready`](Self::mark_ready).
    pub fn failure(&self) -> Option<ReduceError> {
        self.failure.get().cloned()
    }

    /// Begins a micro-batch. `is_first` forgets the gradients of the step before.
    pub fn begin(&self, is_first: bool, is_last: bool) {
        if is_first {
            for slot in &self.slots {
                slot.filled.store(false, Ordering::Relaxed);
                slot.ready.store(false, Ordering::Relaxed);
            }
            for (pending, bucket) in self.pending.iter().zip(&self.layout.buckets) {
                pending.store(bucket.parameters.len(), Ordering::Relaxed);
            }
            self.launched.store(0, Ordering::Relaxed);
            self.observed.store(0, Ordering::Relaxed);
        }
        self.reducing.store(is_last, Ordering::Release);
    }

    /// Tells that the view of parameter `index` holds its gradient of this micro-batch. In the last one this may
    /// reduce buckets and so wait for other ranks, up to the group's timeout; the caller holds no lock that another
    /// thread of its process may need.
    ///
    /// # Errors
    ///
    /// The failure of a reduction, of this call or an earlier one.
    pub fn mark_ready(&self, index: usize) -> Result<(), ReduceError> {
        let slot = &self.slots[index];
        slot.filled.store(true, Ordering::Release);
        if !self.reducing.load(Ordering::Acquire) || slot.ready.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        slot.position.store(
            self.observed.fetch_add(1, Ordering::Relaxed),
            Ordering::Relaxed,
        );
        if self.pending[self.view(index).bucket].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.launch_full()?;
        }
        Ok(())
    }

    /// Ends the step: gradients that this rank lacks count as zeros, and whatever is not reduced yet is, the last
    /// bucket together with `sums`, which are added up over the ranks. Waits for the other ranks, up to the group's
    /// timeout.
    ///
    /// # Errors
    ///
    /// The failure of a reduction, of this call or an earlier one.
    pub fn finish(&self, sums: &mut [f64]) -> Result<(), ReduceError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        for (index, slot) in self.slots.iter().enumerate() {
            if !slot.filled.load(Ordering::Acquire) {
                // SAFETY: the view has that many bytes, and its bucket is not being reduced: it is not full.
                unsafe {
                    let num_bytes = self.view(index).numel * self.parameters[index].dtype.size();
                    self.view_ptr(index).cast::<u8>().write_bytes(0, num_bytes);
                }
            }
        }
        let last = self.buffers.len() - 1;
        for bucket in self.launched.load(Ordering::Acquire)..last {
            self.keep(self.reduce(bucket))?;
        }
        self.wait_in_flight()?;
        let mut guard = lock(&self.sums);
        let Sums {
            usage,
            vector,
            used,
        } = &mut *guard;
        vector.clear();
        vector.extend_from_slice(sums);
        usage.encode(|index| self.is_filled(index), vector);
        let stats = RawBuffer {
            ptr: vector.as_mut_ptr().cast(),
            len: vector.len(),
            dtype: DType::Float64,
            device: Device::Cpu,
            stream: None,
        };
        // SAFETY: both buffers live and are touched by nobody else until the call returns.
        let reduced = unsafe { self.exchange(last).run_with_sum(&self.group, stats) };
        self.keep(reduced)?;
        self.keep(self.exchange_again())?;
        self.decompress();
        self.num_steps.fetch_add(1, Ordering::Relaxed);
        sums.copy_from_slice(&vector[..sums.len()]);
        usage.decode(&vector[sums.len()..], used);
        Ok(())
    }

    /// Gives `visit` whether any rank used each parameter, after [`finish`](Self::finish).
    pub fn with_used<R>(&self, visit: impl FnOnce(&[bool]) -> R) -> R {
        let used = std::mem::take(&mut lock(&self.sums).used);
        let result = visit(&used);
        lock(&self.sums).used = used;
        result
    }

    /// Multiplies all gradients by `factor`; exactly 1 leaves them alone.
    pub fn scale(&self, factor: f64) {
        if factor == 1.0 {
            return;
        }
        for (bucket, info) in self.layout.buckets.iter().enumerate() {
            // SAFETY: the bucket has that many elements of that type, and between `finish` and the next `begin` only
            // the loop's thread touches it.
            unsafe { elements::scale(self.bucket_ptr(bucket), info.numel, info.dtype, factor) };
        }
    }

    /// Multiplies all gradients by `factor` and tells whether they are finite, which is the same on every rank; where
    /// they are not, some are left as they were. There are no gradients of type float16.
    pub(crate) fn unscale(&self, factor: f64) -> bool {
        let mut buckets = self.layout.buckets.iter().enumerate();
        // SAFETY: as in `scale`.
        buckets.all(|(bucket, info)| unsafe {
            elements::unscale(self.bucket_ptr(bucket), info.numel, info.dtype, factor)
        })
    }

    /// Scales all gradients down so that their 2-norm is at most `max_norm`, by the factor
    /// `min(1, max_norm / (norm + 1e-6))` of PyTorch's `clip_grad_norm_`. Returns the norm before.
    ///
    /// The squares are added up in float64 and in registration order, so that the result does not depend on the
    /// layout of the buckets.
    pub fn clip(&self, max_norm: f64) -> f64 {
        let mut sum = 0.0;
        for (index, info) in self.parameters.iter().enumerate() {
            // SAFETY: as in `scale`, for one view.
            sum +=
                unsafe { elements::sum_of_squares(self.view_ptr(index), info.numel, info.dtype) };
        }
        let norm = sum.sqrt();
        self.scale((max_norm / (norm + 1e-6)).min(1.0));
        norm
    }

    /// The order in which this rank's gradients became ready in the step that ended; what was not used comes last,
    /// in the order of the present layout.
    pub fn observed_order(&self) -> Vec<usize> {
        let planned = self
            .layout
            .buckets
            .iter()
            .flat_map(|bucket| bucket.parameters.iter().copied());
        let mut order: Vec<usize> = planned.collect();
        order.sort_by_key(|&index| {
            let slot = &self.slots[index];
            let ready = slot.ready.load(Ordering::Acquire);
            if ready {
                slot.position.load(Ordering::Relaxed)
            } else {
                usize::MAX
            }
        });
        order
    }

    /// How long `mark_ready` reduced and waited since this was last asked.
    pub(crate) fn take_time_in_backward(&self) -> Duration {
        Duration::from_nanos(self.nanos_in_backward.swap(0, Ordering::Relaxed))
    }

    /// What the compression of gradients carries to the next step, between steps; none where it carries nothing.
    pub fn compression_state(&self) -> Option<CompressionState> {
        if !self.compression.has_state() {
            return None;
        }
        let mut parameters = vec![ParameterState::default(); self.parameters.len()];
        for compressor in self.compressors.iter().flatten() {
            lock(compressor).save(&mut parameters);
        }
        Some(CompressionState { parameters })
    }

    /// Goes on, between steps, after `num_steps` steps that another reducer of the same parameters has taken, from what its
    /// compression carried. Returns whether it could: that what was carried is as long as what this one carries.
    pub fn restore(&self, num_steps: u64, state: Option<&CompressionState>) -> bool {
        self.num_steps.store(num_steps, Ordering::Relaxed);
        match (self.compression_state(), state) {
            (None, None) => true,
            (Some(own), Some(state)) if own.is_like(state) => {
                for compressor in self.compressors.iter().flatten() {
                    lock(compressor).restore(&state.parameters);
                }
                true
            }
            _ => false,
        }
    }

    /// Steps that have ended, those before [`restore`](Self::restore) included.
    pub(crate) fn num_steps(&self) -> u64 {
        self.num_steps.load(Ordering::Relaxed)
    }

    /// The gradients that this rank sent in the step that ended.
    pub(crate) fn take_traffic(&self) -> Traffic {
        let world_size = self.group.world_size();
        let travelled = self.num_bytes.swap(0, Ordering::Relaxed);
        Traffic {
            sent_bytes: compression::sent_by_each(travelled, world_size),
            uncompressed_bytes: compression::sent_by_each(
                self.whole_bytes.iter().sum(),
                world_size,
            ),
        }
    }

    /// Reduces the full buckets that are next in line. The last one waits for `finish`.
    fn launch_full(&self) -> Result<(), ReduceError> {
        let last = self.buffers.len() - 1;
        let next_is_full = || {
            let next = self.launched.load(Ordering::Acquire);
            next < last && self.pending[next].load(Ordering::Acquire) == 0
        };
        while next_is_full() {
            if self.launching.swap(true, Ordering::AcqRel) {
                // The thread that reduces looks again after it has let go.
                return Ok(());
            }
            let mut result = self.failure().map_or(Ok(()), Err);
            while result.is_ok() && next_is_full() {
                let began = Instant::now();
                result = self.keep(self.reduce(self.launched.load(Ordering::Acquire)));
                let nanos = began.elapsed().as_nanos() as u64;
                self.nanos_in_backward.fetch_add(nanos, Ordering::Relaxed);
                self.launched.fetch_add(1, Ordering::AcqRel);
            }
            self.launching.store(false, Ordering::Release);
            result?;
        }
        Ok(())
    }

    /// Reduces a bucket, or hands it to the communication thread.
    fn reduce(&self, bucket: usize) -> Result<(), CollectiveError> {
        let exchange = self.exchange(bucket);
        // SAFETY: nobody touches the exchange's memory until `finish` has waited for it.
        unsafe {
            if self.overlaps {
                let work = exchange.start(&self.group)?;
                lock(&self.in_flight).push(work);
                return Ok(());
            }
            exchange.run(&self.group)
        }
    }

    /// What is to be exchanged of a bucket, which is full or has its missing views zeroed: the bucket itself, or what its
    /// compressor makes of it.
    fn exchange(&self, bucket: usize) -> Exchange {
        let compressed = self.compressors[bucket].as_ref().and_then(|compressor| {
            let step = self.num_steps.load(Ordering::Relaxed);
            // SAFETY: the bucket is full, so nobody touches it until `finish` has returned.
            lock(compressor).compress(step, unsafe { self.gradients(bucket) })
        });
        let num_bytes = match &compressed {
            Some(exchange) => exchange.num_bytes(),
            None => self.whole_bytes[bucket],
        };
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        compressed.unwrap_or_else(|| Exchange::Reduce(self.raw(bucket), ReduceOp::Average))
    }

    /// The second exchange of the buckets whose compressors have one, all at once.
    fn exchange_again(&self) -> Result<(), CollectiveError> {
        let buffers: Vec<_> = self
            .compressors
            .iter()
            .flatten()
            .filter_map(|compressor| Some((lock(compressor).compress_again()?, ReduceOp::Average)))
            .collect();
        if buffers.is_empty() {
            return Ok(());
        }
        let num_bytes = buffers.iter().map(|(buffer, _)| 2 * buffer.bytes() as u64);
        self.num_bytes.fetch_add(num_bytes.sum(), Ordering::Relaxed);
        // SAFETY: the buffers are the compressors' own, and nobody asks for another before the call returns.
        unsafe { self.group.grouped_all_reduce(&buffers) }
    }

    /// Writes what came of the exchanges over the buckets that were compressed.
    fn decompress(&self) {
        for (bucket, compressor) in self.compressors.iter().enumerate() {
            if let Some(compressor) = compressor {
                // SAFETY: no exchange is under way, and this is the loop's thread.
                lock(compressor).decompress(unsafe { self.gradients(bucket) });
            }
        }
    }

    /// The elements of a bucket of float32.
    ///
    /// # Safety
    ///
    /// Nobody else uses the bucket while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is not the reducer's own")]
    unsafe fn gradients(&self, bucket: usize) -> &mut [f32] {
        let info = &self.layout.buckets[bucket];
        debug_assert_eq!(info.dtype, DType::Float32);
        // SAFETY: the bucket has that many elements, and the rest is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.bucket_ptr(bucket).cast(), info.numel) }
    }

    fn raw(&self, bucket: usize) -> RawBuffer {
        let info = &self.layout.buckets[bucket];
        RawBuffer {
            ptr: self.bucket_ptr(bucket),
            len: info.numel,
            dtype: info.dtype,
            device: info.device,
            stream: None,
        }
    }

    /// Waits for every reduction on the communication thread, also after one has failed: it works on the buckets.
    fn wait_in_flight(&self) -> Result<(), ReduceError> {
        let works = std::mem::take(&mut *lock(&self.in_flight));
        let results: Vec<_> = works
            .into_iter()
            .map(|work| self.keep(work.wait()))
            .collect();
        results.into_iter().collect()
    }

    /// Keeps the first failure.
    fn keep(&self, result: Result<(), CollectiveError>) -> Result<(), ReduceError> {
        result.map_err(|error| self.failure.get_or_init(|| Arc::new(error)).clone())
    }
}

impl Drop for GradientReducer {
    fn drop(&mut self) {
        // The buckets go next. Who took the failed step knows its failure.
        let _ = self.wait_in_flight();
    }
}

impl Slot {
    fn new() -> Slot {
        Slot {
            filled: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            position: AtomicUsize::new(0),
        }
    }
}

/// What the mutexes guard stays whole even where a thread panicked, since nothing is done under them that could.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(param: &str, value: &str, allowed: &str) -> Cause {
    JobError::Invalid {
        param: param.into(),
        value: value.into(),
        allowed: allowed.into(),
    }
    .into()
}
