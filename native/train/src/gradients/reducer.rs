//! The averaging of gradients over ranks: flat buckets that are reduced while backward still runs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use flambeau_collective::{CollectiveError, DType, Device, ProcessGroup, RawBuffer, ReduceOp};

use crate::device::Accelerator;
use crate::error::{Cause, JobError, ModelError, ReduceError};
use crate::gradients::buckets::{Buckets, DeviceBuckets, HostBuckets, lock};
use crate::gradients::compression::{self, CompressionState, ParameterState};
use crate::gradients::elements;
use crate::gradients::usage::UsageCode;
use crate::job::compression::Compression;
use crate::model::layout::{BucketInfo, BucketLayout, BucketSizes, ParameterInfo};
use crate::model::sink::{DeviceGradients, GradientSink};
use crate::record::history::Traffic;

/// Averages gradients over the ranks of a group.
///
/// Its buckets lie in memory that the group owns, and live as long as the reducer: whoever holds a view holds the
/// `Arc`. Those of parameters on a device lie in the model's memory there. All ranks make the same reducers in the same
/// order. A step goes:
///
/// 1. [`begin`](Self::begin) before each micro-batch;
/// 2. in backward, for each parameter with a gradient: write or add to its [`view`](Self::view), then
///    [`mark_ready`](Self::mark_ready). In the last micro-batch a full bucket is reduced at once, on the calling thread;
/// 3. [`finish`](Self::finish): what no rank marked counts as zeros, and the last bucket is reduced together with the
///    sums of the step;
/// 4. [`scale`](Self::scale) and [`clip`](Self::clip), and the optimizer reads the views.
///
/// `mark_ready` may be called from any thread. The other steps are the training loop's, on one thread. On a device the
/// gradients of a step are written, reduced and read in the order of the model's stream, which nothing here waits for.
pub struct GradientReducer {
    group: ProcessGroup,
    parameters: Vec<ParameterInfo>,
    layout: Arc<BucketLayout>,
    buckets: Buckets,
    compression: Compression,
    is_local: bool,
    slots: Vec<Slot>,
    /// Parameters that are not yet ready, for each bucket.
    pending: Vec<AtomicUsize>,
    /// Buckets reduced in this step.
    launched: AtomicUsize,
    /// Held by the one thread that reduces.
    launching: AtomicBool,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReducerOptions {
    /// How large buckets may be.
    pub sizes: BucketSizes,
    /// The parameters, each in one group at most, that have buckets of their own. Default none.
    pub groups: Vec<Vec<usize>>,
    /// Whether full buckets are reduced on the group's communication thread while backward goes on. Worth it where ranks
    /// wait for a network, or there is a core to spare for that thread: its hand-over costs more than a small reduction in
    /// shared memory. Default false.
    pub overlaps: bool,
    /// How gradients are compressed on their way. Default not at all.
    pub compression: Compression,
    /// Whether each rank keeps the gradients of its own rows, and the sums alone travel. Not on a device. Default false.
    pub is_local: bool,
}

impl GradientReducer {
    /// Lays out buckets for `parameters`, which lie in main memory, and allocates them. A collective call: all ranks make
    /// it with the same arguments.
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
        check(&parameters)?;
        if let Some(info) = parameters.iter().find(|info| info.device != Device::Cpu) {
            return Err(refused(
                &info.name,
                &format!("on {}", info.device),
                "on the CPU",
            ));
        }
        let layout = Arc::new(lay_out(&parameters, order, &options));
        let buckets = HostBuckets::new(
            group.clone(),
            &parameters,
            layout.clone(),
            options.compression,
            options.overlaps,
        )?;
        let buckets = Buckets::Host(buckets);
        Ok(GradientReducer::over(
            group, parameters, layout, buckets, options,
        ))
    }

    /// The same for the parameters of a model on the device of `accelerator`. `allocate` has the model make the buckets there, with
    /// floats of 16 bits beside them where such travel. They are always reduced while backward goes on.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); those of the model; a compression that is the CPU's alone.
    pub(crate) fn on_device(
        group: ProcessGroup,
        accelerator: &Accelerator,
        parameters: Vec<ParameterInfo>,
        order: Option<&[usize]>,
        options: ReducerOptions,
        allocate: impl FnOnce(
            &[BucketInfo],
            Option<DType>,
        ) -> Result<Arc<dyn DeviceGradients>, ModelError>,
    ) -> Result<GradientReducer, Cause> {
        check(&parameters)?;
        let device = accelerator.runtime.device();
        if let Some(info) = parameters.iter().find(|info| info.device != device) {
            let allowed = format!("on {device}, as the others");
            return Err(refused(
                &info.name,
                &format!("on {}", info.device),
                &allowed,
            ));
        }
        let layout = Arc::new(lay_out(&parameters, order, &options));
        let halves = options.compression.on_device()?;
        let gradients = allocate(&layout.buckets, halves);
        let gradients = gradients.map_err(Cause::Model)?;
        let buckets = DeviceBuckets::new(
            group.clone(),
            accelerator,
            layout.clone(),
            gradients,
            halves,
        );
        let buckets = Buckets::Device(buckets);
        Ok(GradientReducer::over(
            group, parameters, layout, buckets, options,
        ))
    }

    fn over(
        group: ProcessGroup,
        parameters: Vec<ParameterInfo>,
        layout: Arc<BucketLayout>,
        buckets: Buckets,
        options: ReducerOptions,
    ) -> GradientReducer {
        let num = parameters.len();
        GradientReducer {
            slots: (0..num).map(|_| Slot::new()).collect(),
            pending: layout.buckets.iter().map(|_| AtomicUsize::new(0)).collect(),
            launched: AtomicUsize::new(0),
            launching: AtomicBool::new(false),
            reducing: AtomicBool::new(false),
            observed: AtomicUsize::new(0),
            nanos_in_backward: AtomicU64::new(0),
            num_steps: AtomicU64::new(0),
            num_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
            sums: Mutex::new(Sums {
                usage: UsageCode::new(num, group.world_size()),
                vector: vec![],
                used: vec![false; num],
            }),
            group,
            parameters,
            layout,
            buckets,
            compression: options.compression,
            is_local: options.is_local,
        }
    }

    /// The failure of an earlier reduction, if there was one: the reason why a backward failed that called
    /// [`mark_ready`](Self::mark_ready).
    pub fn failure(&self) -> Option<ReduceError> {
        self.failure.get().cloned()
    }

    /// Why a step failed that gave `failure`: where the model could not compress on its device, the model's own error.
    pub(crate) fn cause_of(&self, failure: ReduceError) -> Cause {
        match self.buckets.take_failure() {
            Some(error) => Cause::Model(error),
            None => Cause::Collective(failure),
        }
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
        self.reducing
            .store(is_last && !self.is_local, Ordering::Release);
    }

    /// Ends the step: gradients that this rank lacks count as zeros, and whatever is not reduced yet is, the last
    /// bucket together with `sums`, which are added up over the ranks; of gradients that each rank keeps, the sums alone. Waits
    /// for the other ranks, up to the group's timeout.
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
                let num_bytes = self.view(index).numel * self.parameters[index].dtype.size();
                // SAFETY: the view has that many bytes, and its bucket is not being reduced: it is not full.
                let zeroed = unsafe { self.buckets.zero(self.view_ptr(index).cast(), num_bytes) };
                self.keep(zeroed)?;
            }
        }
        let last = self.layout.buckets.len() - 1;
        if !self.is_local {
            for bucket in self.launched.load(Ordering::Acquire)..last {
                self.reduce(bucket)?;
            }
        }
        let mut guard = lock(&self.sums);
        let Sums {
            usage,
            vector,
            used,
        } = &mut *guard;
        vector.clear();
        vector.extend_from_slice(sums);
        usage.encode(|index| self.is_filled(index), vector);
        let stats = RawBuffer::cpu(vector.as_mut_ptr().cast(), vector.len(), DType::Float64);
        let finished = if self.is_local {
            self.group.label_next_call(|| "the sums".into());
            // SAFETY: the vector lives and is touched by nobody else until the call returns.
            unsafe { self.group.all_reduce(stats, ReduceOp::Sum) }.map(|()| 0)
        } else {
            self.group
                .label_next_call(|| format!("bucket {last} and the sums"));
            // SAFETY: as above.
            unsafe { self.buckets.finish(self.num_steps(), stats) }
        };
        let num_bytes = self.keep(finished)?;
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
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
    ///
    /// # Errors
    ///
    /// The model's, where the gradients are on its device; so also of the next two.
    pub fn scale(&self, factor: f64) -> Result<(), Cause> {
        if let Buckets::Device(buckets) = &self.buckets {
            return buckets.gradients().scale(factor).map_err(Cause::Model);
        }
        if factor != 1.0 {
            for (bucket, info) in self.layout.buckets.iter().enumerate() {
                // SAFETY: the bucket has that many elements of that type, and between `finish` and the next `begin` only
                // the loop's thread touches it.
                unsafe { elements::scale(self.bucket_ptr(bucket), info.numel, info.dtype, factor) };
            }
        }
        Ok(())
    }

    /// Multiplies all gradients by `factor` and tells whether they are finite, which is the same on every rank; where
    /// they are not, some may be left as they were. There are no gradients of type float16. Waits for the device.
    pub(crate) fn unscale(&self, factor: f64) -> Result<bool, Cause> {
        if let Buckets::Device(buckets) = &self.buckets {
            self.scale(factor)?;
            return buckets.gradients().are_finite().map_err(Cause::Model);
        }
        let mut buckets = self.layout.buckets.iter().enumerate();
        // SAFETY: as in `scale`.
        Ok(buckets.all(|(bucket, info)| unsafe {
            elements::unscale(self.bucket_ptr(bucket), info.numel, info.dtype, factor)
        }))
    }

    /// The 2-norm of all gradients together; none on a device, which would have to be waited for.
    ///
    /// The squares are added up in float64 and in registration order, so that the result does not depend on the
    /// layout of the buckets.
    pub(crate) fn norm(&self) -> Option<f64> {
        if let Buckets::Device(_) = &self.buckets {
            return None;
        }
        let mut sum = 0.0;
        for (index, info) in self.parameters.iter().enumerate() {
            // SAFETY: as in `scale`, for one view.
            sum +=
                unsafe { elements::sum_of_squares(self.view_ptr(index), info.numel, info.dtype) };
        }
        Some(sum.sqrt())
    }

    /// Scales all gradients down so that their 2-norm is at most `max_norm`, by the factor
    /// `min(1, max_norm / (norm + 1e-6))` of PyTorch's `clip_grad_norm_`. Returns the norm before.
    pub fn clip(&self, max_norm: f64) -> Result<Option<f64>, Cause> {
        if let Buckets::Device(buckets) = &self.buckets {
            buckets.gradients().clip(max_norm).map_err(Cause::Model)?;
            return Ok(None);
        }
        let norm = self.norm();
        if let Some(norm) = norm {
            self.scale((max_norm / (norm + 1e-6)).min(1.0))?;
        }
        Ok(norm)
    }

    /// Cuts each entry of the gradients to a magnitude of at most `max_value`, as PyTorch's `clip_grad_value_` does. On a device
    /// it is refused before.
    pub(crate) fn clip_value(&self, max_value: f64) {
        if let Buckets::Device(_) = &self.buckets {
            unreachable!("a job that clips by value has no device");
        }
        for (bucket, info) in self.layout.buckets.iter().enumerate() {
            // SAFETY: as in `scale`.
            unsafe { elements::clamp(self.bucket_ptr(bucket), info.numel, info.dtype, max_value) };
        }
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
        self.buckets.save(&mut parameters);
        Some(CompressionState { parameters })
    }

    /// Goes on, between steps, after `num_steps` steps that another reducer of the same parameters has taken, from what its
    /// compression carried. Returns whether it could: that what was carried is as long as what this one carries.
    pub fn restore(&self, num_steps: u64, state: Option<&CompressionState>) -> bool {
        self.num_steps.store(num_steps, Ordering::Relaxed);
        match (self.compression_state(), state) {
            (None, None) => true,
            (Some(own), Some(state)) if own.is_like(state) => {
                self.buckets.restore(state);
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
                self.layout.whole_bytes.iter().sum(),
                world_size,
            ),
        }
    }

    /// Reduces the full buckets that are next in line. The last one waits for `finish`.
    fn launch_full(&self) -> Result<(), ReduceError> {
        let last = self.layout.buckets.len() - 1;
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
                result = self.reduce(self.launched.load(Ordering::Acquire));
                let nanos = began.elapsed().as_nanos() as u64;
                self.nanos_in_backward.fetch_add(nanos, Ordering::Relaxed);
                self.launched.fetch_add(1, Ordering::AcqRel);
            }
            self.launching.store(false, Ordering::Release);
            result?;
        }
        Ok(())
    }

    /// Reduces a bucket, or begins to.
    fn reduce(&self, bucket: usize) -> Result<(), ReduceError> {
        self.group.label_next_call(|| format!("bucket {bucket}"));
        let num_bytes = self.keep(self.buckets.reduce(bucket, self.num_steps()))?;
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps the first failure.
    fn keep<T>(&self, result: Result<T, CollectiveError>) -> Result<T, ReduceError> {
        result.map_err(|error| self.failure.get_or_init(|| Arc::new(error)).clone())
    }
}

impl GradientSink for GradientReducer {
    fn parameters(&self) -> &[ParameterInfo] {
        &self.parameters
    }

    fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    fn bucket_ptr(&self, bucket: usize) -> *mut c_void {
        self.buckets.ptr(bucket).cast()
    }

    fn is_filled(&self, index: usize) -> bool {
        self.slots[index].filled.load(Ordering::Acquire)
    }

    fn mark_ready(&self, index: usize) -> Result<(), ReduceError> {
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

/// Refuses what cannot be reduced.
fn check(parameters: &[ParameterInfo]) -> Result<(), Cause> {
    if parameters.is_empty() {
        let allowed = "at least one that requires a gradient";
        return Err(refused("parameters", "[]", allowed));
    }
    for info in parameters {
        let floating = matches!(
            info.dtype,
            DType::Float32 | DType::Float64 | DType::Float16 | DType::BFloat16
        );
        if !floating || info.numel == 0 {
            let value = format!("{} elements of {}", info.numel, info.dtype);
            let allowed = "float32, float64, float16 or bfloat16, and not empty";
            return Err(refused(&info.name, &value, allowed));
        }
    }
    Ok(())
}

/// The layout in an order, by default the reverse of the registration.
fn lay_out(
    parameters: &[ParameterInfo],
    order: Option<&[usize]>,
    options: &ReducerOptions,
) -> BucketLayout {
    let reversed: Vec<usize> = (0..parameters.len()).rev().collect();
    let order = order.unwrap_or(&reversed);
    BucketLayout::new(parameters, order, options.sizes, &options.groups)
}

fn refused(param: &str, value: &str, allowed: &str) -> Cause {
    JobError::invalid(param, value, allowed).into()
}
