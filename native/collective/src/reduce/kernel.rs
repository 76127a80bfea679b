//! The same loops, compiled for the widest vectors that the processor has.

/// A loop over memory. No fused multiply-add is ever formed, so its results do not depend on what it is compiled for.
pub trait Kernel: Sized {
    /// The loop: `#[inline(always)]`, as is all that it calls, so that it is compiled anew for each kind of vector.
    fn body(self);

    /// Runs the loop with the widest vectors of this processor.
    #[inline]
    fn run(self) {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                // SAFETY: the processor has these instructions.
                return unsafe { avx512(self) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has these instructions.
                return unsafe { avx2(self) };
            }
        }
        self.body();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn avx512<K: Kernel>(kernel: K) {
    kernel.body();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<K: Kernel>(kernel: K) {
    kernel.body();
}
